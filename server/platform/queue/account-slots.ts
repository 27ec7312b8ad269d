import type { Claim, Queue } from './queue.ts'

/** Bounds of the delay before work without a free slot is claimed again: a tenth of its waiting time so far. */
const retry_ms = { least: 1000, most: 30_000 }

/** When work that waits for room since `created_at` is claimed again. */
export const nextLook = (created_at: number, now: number) =>
  now + Math.min(retry_ms.most, Math.max(retry_ms.least, (now - created_at) / 10))

/** Takes one of an account's concurrency slots and returns its release function; undefined if none is free. */
export type AcquireSlot = (account_id: string) => Promise<(() => void) | undefined>

interface SlotContext {
  queue: Queue
  acquireSlot: AcquireSlot
  now(): number
}

/**
 * Takes a concurrency slot for claimed work. If none is free, defers the work, so that other entries pass, and returns
 * undefined. Work that was deleted needs no slot.
 */
export async function acquireSlotOrDefer(
  { queue, acquireSlot, now }: SlotContext,
  claim: Claim,
  work: { account_id: string; created_at: number } | undefined,
): Promise<(() => void) | undefined> {
  const releaseSlot = work ? await acquireSlot(work.account_id) : () => {}
  if (!releaseSlot) await queue.defer(claim, nextLook(work!.created_at, now()), 'unused')
  return releaseSlot
}
