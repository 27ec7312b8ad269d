// Prefix cache: chooses the slot for a new request by the longest cached prefix of its prompt. A slot keeps its KV
// cache after its request has ended. So the next request of a conversation computes only its new tokens, and requests
// with a long common prefix compute it once.
import type { Generation } from './generation.ts'

export interface Slot {
  index: number
  /** The tokens whose keys and values are in the slot's KV cache. */
  cached: number[]
  account: string
  used_at: number
  generation: Generation | null
}

export type SlotChoice =
  | { kind: 'wait' }
  /** Keep the first `keep` tokens of the slot, or copy them from `donor`. */
  | { kind: 'slot'; slot: Slot; donor: Slot | null; keep: number }

/**
 * Tokens that a copy must save to be faster than computing them. A copy moves all `cached` tokens of a slot. Computing
 * one token costs about as much as moving a hundred.
 */
export const copyGainMin = (cached: number) => 16 + cached / 64

/**
 * Chooses a free slot for `generation`. 'wait' if no slot is free, or if another slot is computing a prefix that this
 * prompt shares: waiting costs less than computing it twice.
 */
export function chooseSlot(slots: readonly Slot[], generation: Generation, canShare: boolean): SlotChoice {
  const nearest = nearestFreeSlot(slots)
  if (!nearest) return { kind: 'wait' }
  // A request with a seed computes its whole prompt: batches of different sizes round differently, and a seed promises
  // the same result each time.
  if (!canShare || generation.migration || generation.request.sampling.seed !== null)
    return { kind: 'slot', slot: nearest, donor: null, keep: 0 }

  const { prompt, account } = generation.request
  const accountSlots = slots.filter((slot) => slot.account === account)
  const sharedTokens = (tokens: readonly number[]) => commonPrefix(tokens, prompt, prompt.length - 1)
  let best = {
    slot: nearest,
    donor: null as Slot | null,
    keep: nearest.account === account ? sharedTokens(nearest.cached) : 0,
  }
  for (const slot of accountSlots) {
    const keep = sharedTokens(slot.cached)
    // If less than half of a slot fits, leave it for the next request of its own conversation.
    if (slot.generation !== null || keep <= best.keep || keep * 2 < slot.cached.length) continue
    if (countRuns(slots, slot) <= countRuns(slots, nearest)) best = { slot, donor: null, keep }
    else if (keep >= best.keep + copyGainMin(slot.cached.length)) best = { slot: nearest, donor: slot, keep }
  }
  for (const slot of accountSlots) {
    const keep = sharedTokens(slot.cached)
    if (slot !== nearest && keep >= best.keep + copyGainMin(slot.cached.length))
      best = { slot: nearest, donor: slot, keep }
  }
  const isComputingPrefix = (slot: Slot) =>
    slot.generation !== null &&
    // It may be paused for as long as there are other requests.
    (generation.request.background || !slot.generation.request.background) &&
    sharedTokens(slot.generation.request.prompt) >=
      Math.max(best.keep + copyGainMin(slot.cached.length), slot.cached.length + 1)
  if (accountSlots.some(isComputingPrefix)) return { kind: 'wait' }
  return { kind: 'slot', ...best }
}

/** The least recently used of the free slots that leave the fewest gaps between slots in use. */
export function nearestFreeSlot(slots: readonly Slot[]): Slot | null {
  let best: Slot | null = null
  let fewest = Number.POSITIVE_INFINITY
  for (const slot of slots) {
    if (slot.generation !== null) continue
    const runs = countRuns(slots, slot)
    if (best && (runs > fewest || (runs === fewest && slot.used_at >= best.used_at))) continue
    best = slot
    fewest = runs
  }
  return best
}

/**
 * Counts the runs of adjacent slots in use, as if `extra` were in use too. The library decodes each run separately, so
 * scattered slots cost as much as that many steps.
 */
export function countRuns(slots: readonly Slot[], extra: Slot | null): number {
  let runs = 0
  let inRun = false
  for (const slot of slots) {
    const used = slot === extra || slot.generation !== null
    if (used && !inRun) runs++
    inRun = used
  }
  return runs
}

/** Length of the common prefix, at most `max`. */
export function commonPrefix(a: readonly number[], b: readonly number[], max: number): number {
  const end = Math.min(a.length, b.length, max)
  let length = 0
  while (length < end && a[length] === b[length]) length++
  return length
}
