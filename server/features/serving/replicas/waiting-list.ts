// Requests that wait for a replica, fair over accounts: the next one is of the account that has the fewest requests in
// progress, and among those of the one that was served longest ago. Requests that nobody waits for come last.

interface Waiting {
  account_id: string
  background: boolean
}

export interface WaitingList<T extends Waiting> {
  readonly length: number
  /**
   * Adds a request. Returns whom to refuse, where the list is longer than it may be: the last of the account with the
   * most, which may be this one.
   */
  add(one: T): T | undefined
  remove(one: T): void
  /** In the order in which they are served. */
  inOrder(): T[]
  /** A request of this account begins, or has ended. */
  begin(account_id: string): void
  end(account_id: string): void
  clear(): T[]
}

export function createWaitingList<T extends Waiting>(length_max: number): WaitingList<T> {
  /** By arrival. */
  let all: T[] = []
  const inProgress = new Map<string, number>()
  /** Accounts that have or had requests since the list was idle, the one that was served longest ago first. */
  const served = new Map<string, number>()
  let turn = 0

  function inOrder(): T[] {
    if (all.length < 2) return [...all]
    const position = new Map<string, number>()
    const ranked = all.map((one) => {
      const key = `${one.background} ${one.account_id}`
      const nth = position.get(key) ?? 0
      position.set(key, nth + 1)
      // Its account will have so many in progress by the time that it is next.
      return { one, rank: nth + (inProgress.get(one.account_id) ?? 0), since: served.get(one.account_id) ?? -1 }
    })
    return ranked
      .sort((a, b) => Number(a.one.background) - Number(b.one.background) || a.rank - b.rank || a.since - b.since)
      .map(({ one }) => one)
  }

  function remove(one: T): void {
    const index = all.indexOf(one)
    if (index >= 0) all.splice(index, 1)
  }

  return {
    get length() {
      return all.length
    },
    add(one) {
      all.push(one)
      if (all.length <= length_max) return undefined
      const counts = new Map<string, number>()
      for (const { account_id } of all) counts.set(account_id, (counts.get(account_id) ?? 0) + 1)
      const most = Math.max(...counts.values())
      // Among equals the newcomer.
      const isLast = counts.get(one.account_id) === most
      const refused = isLast ? one : all.findLast(({ account_id }) => counts.get(account_id) === most)!
      remove(refused)
      return refused
    },
    remove,
    inOrder,
    begin(account_id) {
      inProgress.set(account_id, (inProgress.get(account_id) ?? 0) + 1)
      served.set(account_id, turn++)
    },
    end(account_id) {
      const count = (inProgress.get(account_id) ?? 1) - 1
      if (count > 0) inProgress.set(account_id, count)
      else inProgress.delete(account_id)
      // Nobody is behind anybody any more.
      if (inProgress.size === 0 && all.length === 0) served.clear()
    },
    clear() {
      const left = all
      all = []
      return left
    },
  }
}
