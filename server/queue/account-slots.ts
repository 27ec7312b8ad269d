import type { Claim, Queue } from './queue.ts'

/**
 * How soon work is looked at again whose account has no place for it: a tenth of the time that it has waited, within
 * these bounds.
 */
const place_ms = { least: 1000, most: 30_000 }

/** Takes a place among what an account may have under way; undefined where it must wait. */
export type Place = (account_id: string) => Promise<(() => void) | undefined>

interface Placing {
  queue: Queue
  place: Place
  now(): number
}

/**
 * Takes the place of claimed work, or puts it back, so that it lets others by and is looked at again; undefined then.
 * Work that is gone takes none.
 */
export async function placeFor(
  { queue, place, now }: Placing,
  claim: Claim,
  work: { account_id: string; created_at: number } | undefined,
): Promise<(() => void) | undefined> {
  const taken = work ? await place(work.account_id) : () => {}
  if (!taken) {
    const waited = (now() - work!.created_at) / 10
    await queue.putBack(claim, now() + Math.min(place_ms.most, Math.max(place_ms.least, waited)))
  }
  return taken
}
