// Which cached beginning a new prompt can start from. A slot keeps its cache after its request has ended, so the next
// turn of the same conversation computes only what is new, and requests that share a long beginning compute it once.
import type { Generation } from './generation.ts'

export type Slot = {
  index: number
  /** The tokens whose keys and values are in the slot's cache. */
  cached: number[]
  account: string
  used_at: number
  generation: Generation | null
}

export type Placement =
  | { kind: 'wait' }
  /** Keep `keep` tokens of the slot itself, or copy `keep` tokens of `donor` into it. */
  | { kind: 'slot'; slot: Slot; donor: Slot | null; keep: number }

/**
 * How many tokens a copy has to spare to be faster than computing them. It moves the whole cache of a slot, `cached`
 * tokens; computing a token costs as much as moving about a hundred.
 */
export const copyGainMin = (cached: number) => 16 + cached / 64

/**
 * Chooses a free slot for `generation`. 'wait' when no slot is free, or when another slot is just computing a beginning
 * that this prompt shares: waiting for it costs less than computing it twice.
 */
export function place(slots: readonly Slot[], generation: Generation, sharing: boolean): Placement {
  const near = nearestFree(slots)
  if (!near) return { kind: 'wait' }
  // A batch of another size rounds differently: who asks for a seed gets the same computation each time, from the first
  // token on.
  if (!sharing || generation.moved || generation.request.sampling.seed !== null)
    return { kind: 'slot', slot: near, donor: null, keep: 0 }

  const { prompt, account } = generation.request
  const own = slots.filter((slot) => slot.account === account)
  const shared = (tokens: readonly number[]) => commonPrefix(tokens, prompt, prompt.length - 1)
  let best = { slot: near, donor: null as Slot | null, keep: near.account === account ? shared(near.cached) : 0 }
  for (const slot of own) {
    const keep = shared(slot.cached)
    // A slot of which less than half fits is left for its own conversation to come back to.
    if (slot.generation !== null || keep <= best.keep || keep * 2 < slot.cached.length) continue
    if (runsWith(slots, slot) <= runsWith(slots, near)) best = { slot, donor: null, keep }
    else if (keep >= best.keep + copyGainMin(slot.cached.length)) best = { slot: near, donor: slot, keep }
  }
  for (const slot of own) {
    const keep = shared(slot.cached)
    if (slot !== near && keep >= best.keep + copyGainMin(slot.cached.length)) best = { slot: near, donor: slot, keep }
  }
  const isComing = (slot: Slot) =>
    slot.generation !== null &&
    shared(slot.generation.request.prompt) >=
      Math.max(best.keep + copyGainMin(slot.cached.length), slot.cached.length + 1)
  if (own.some(isComing)) return { kind: 'wait' }
  return { kind: 'slot', ...best }
}

/** Of the slots that leave the fewest gaps between those in use, the one unused for longest. */
export function nearestFree(slots: readonly Slot[]): Slot | null {
  let best: Slot | null = null
  let fewest = Number.POSITIVE_INFINITY
  for (const slot of slots) {
    if (slot.generation !== null) continue
    const runs = runsWith(slots, slot)
    if (best && (runs > fewest || (runs === fewest && slot.used_at >= best.used_at))) continue
    best = slot
    fewest = runs
  }
  return best
}

/**
 * How many runs of neighbours the slots in use make together with `more`. The library decodes each run by itself:
 * scattered slots cost as much as that many steps.
 */
export function runsWith(slots: readonly Slot[], more: Slot | null): number {
  let runs = 0
  let inRun = false
  for (const slot of slots) {
    const used = slot === more || slot.generation !== null
    if (used && !inRun) runs++
    inRun = used
  }
  return runs
}

export function commonPrefix(a: readonly number[], b: readonly number[], max: number): number {
  const end = Math.min(a.length, b.length, max)
  let length = 0
  while (length < end && a[length] === b[length]) length++
  return length
}
