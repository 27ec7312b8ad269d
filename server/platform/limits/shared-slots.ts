// The concurrency slots that this process holds, with their count in Redis. Redis frees those of a process that no
// longer renews them.
import type { Beat, Redis } from '../redis/connection.ts'
import { releaseScript, renewScript, slotLease_ms } from './scripts.ts'

/** A slot that Redis is asked for. Call one of these when it is known whether it was given. */
interface Holding {
  taken(): () => void
  refused(): undefined
  /** Redis did not answer: it may have counted the slot. */
  lost(): void
}

export interface SharedSlots {
  key(account_id: string): string
  held(account_id: string): number
  begin(account_id: string): Holding
  /** Takes a slot without asking Redis. */
  take(account_id: string): () => void
  renew(beat: Beat): Promise<void>
}

interface Entry {
  held: number
  /** Asked for and not answered. */
  pending: number
  renewed_at: number
  /** Redis may count more or fewer than are held. */
  inexact: boolean
}

const renew_ms = slotLease_ms / 4
/** Accounts renewed at once. */
const batch = 200

export function createSharedSlots(redis: Redis): SharedSlots {
  const entries = new Map<string, Entry>()
  const key = (account_id: string) => `{${account_id}}:slots`

  function entryOf(account_id: string): Entry {
    const entry = entries.get(account_id) ?? { held: 0, pending: 0, renewed_at: 0, inexact: false }
    entries.set(account_id, entry)
    return entry
  }
  function drop(account_id: string, entry: Entry): void {
    if (entry.held === 0 && entry.pending === 0 && !entry.inexact) entries.delete(account_id)
  }

  function take(account_id: string): () => void {
    const entry = entryOf(account_id)
    entry.held++
    if (redis.isAway()) entry.inexact = true
    let released = false
    return () => {
      if (released) return
      released = true
      entry.held--
      // Also where its entry is dropped by then.
      const lost = () => {
        entryOf(account_id).inexact = true
      }
      if (redis.isAway()) lost()
      else redis.run(releaseScript, [key(account_id)], [redis.process]).catch(lost)
      drop(account_id, entry)
    }
  }

  return {
    key,
    held: (account_id) => entries.get(account_id)?.held ?? 0,
    take,
    begin(account_id) {
      const entry = entryOf(account_id)
      entry.pending++
      return {
        taken() {
          entry.pending--
          entry.renewed_at = performance.now()
          return take(account_id)
        },
        refused() {
          entry.pending--
          drop(account_id, entry)
        },
        lost() {
          entry.pending--
          entry.inexact = true
        },
      }
    },
    async renew({ returned, run }) {
      const due = performance.now() - renew_ms
      const all = [...entries].filter(([, each]) => returned || each.inexact || each.renewed_at < due)
      for (let from = 0; from < all.length; from += batch)
        await Promise.all(
          all.slice(from, from + batch).map(async ([account_id, entry]) => {
            const exact = entry.pending === 0
            if (exact) entry.inexact = false
            try {
              await run(renewScript, [key(account_id)], [redis.process, entry.held, exact ? 1 : 0])
              entry.renewed_at = performance.now()
            } catch (error) {
              entry.inexact = true
              throw error
            }
            drop(account_id, entry)
          }),
        )
    },
  }
}
