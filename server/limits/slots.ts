/** Counts what each account has under way. In this process's memory: what a killed process held is free again when the next one starts. */
export interface Slots {
  /** Takes one of `max` places; the result gives it back, once. Undefined where all are taken. */
  take(account_id: string, max: number | null): (() => void) | undefined
  used(account_id: string): number
}

export function createSlots(): Slots {
  const taken = new Map<string, number>()
  const used = (account_id: string) => taken.get(account_id) ?? 0
  return {
    used,
    take(account_id, max) {
      if (max !== null && used(account_id) >= max) return undefined
      taken.set(account_id, used(account_id) + 1)
      let given = false
      return () => {
        if (given) return
        given = true
        const left = used(account_id) - 1
        if (left > 0) taken.set(account_id, left)
        else taken.delete(account_id)
      }
    },
  }
}
