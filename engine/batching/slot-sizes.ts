// The size classes of lanes and what they may cost. Models claim contexts of 8,000 tokens and more; reserving that for
// every request would leave room for a few, so a request begins in a lane of short slots and moves on when its answer
// outgrows them.
import type { Model } from '../llama/model.ts'

export type LaneShape = { slots: number; slots_first: number; tokens_per_slot: number; bytes_per_slot: number }

export type MemoryLimits = {
  /** Slots of the shortest lane, where the memory allows. */
  slots: number
  lane_bytes: number
  /** Of all lanes together. */
  total_bytes: number
}

const classes = [
  { tokens: 512, share: 1 },
  { tokens: 2048, share: 1 / 2 },
  { tokens: 16_384, share: 1 / 16 },
]
// The library rounds a sequence's length up to this.
const lengthStep = 256
// A lane begins small and grows when requests wait: clearing the memory of many slots takes seconds.
const slotsFirst = 4
// An answer is first given this much room: most end before.
const answerTokensExpected = 256

/**
 * What the lanes of a model look like, shortest slots first; the last take its whole context, or what the memory allows
 * of it.
 */
export function laneShapes(
  model: Pick<Model, 'context_length' | 'kv_bytes_per_token'>,
  limits: MemoryLimits,
): LaneShape[] {
  const length = Math.max(lengthStep, Math.floor(model.context_length / lengthStep) * lengthStep)
  const shapes: LaneShape[] = []
  for (const { tokens, share } of classes) {
    const slots = Math.max(1, Math.round(limits.slots * share))
    const shape = fit(
      Math.min(tokens, length),
      slots,
      model.kv_bytes_per_token,
      Math.min(limits.lane_bytes, limits.total_bytes),
    )
    if (shape.tokens_per_slot > (shapes.at(-1)?.tokens_per_slot ?? 0)) shapes.push(shape)
  }
  return shapes
}

/** The place in `shapes` of the lane that a request begins in. */
export function firstSize(shapes: readonly LaneShape[], prompt_tokens: number, max_tokens: number): number {
  const needed = prompt_tokens + Math.min(max_tokens, answerTokensExpected)
  const size = shapes.findIndex((shape) => shape.tokens_per_slot >= needed)
  return size < 0 ? shapes.length - 1 : size
}

/** Fewer slots first, then shorter ones, until the lane costs no more than `bytes`. */
function fit(tokens: number, slots: number, bytesPerToken: number, bytes: number): LaneShape {
  const perToken = Math.max(1, bytesPerToken)
  const tokensAffordable = Math.floor(bytes / perToken / lengthStep) * lengthStep
  const tokens_per_slot = Math.max(lengthStep, Math.min(tokens, tokensAffordable))
  const bytes_per_slot = tokens_per_slot * perToken
  const count = Math.max(1, Math.min(slots, Math.floor(bytes / bytes_per_slot)))
  return { slots: count, slots_first: Math.min(count, slotsFirst), tokens_per_slot, bytes_per_slot }
}
