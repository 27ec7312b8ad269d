// The two size classes of lanes and what they may cost. Models claim contexts of 8,000 tokens and more; reserving that for every
// request would leave room for a few, so most requests run in lanes of short slots and the others in lanes with few long ones.
import type { Model } from './llama/model.ts'

export type SizeClass = 'short' | 'long'
export type LaneShape = { slots: number; slots_first: number; tokens_per_slot: number; bytes_per_slot: number }

export type MemoryLimits = {
  /** Slots of a short lane, where the budget allows. */
  short_slots: number
  short_lane_bytes: number
  long_lane_bytes: number
  /** Of all lanes together. */
  total_bytes: number
}

const shortTokens = 2048
const longTokensMax = 16_384
const longSlots = 2
// The library rounds a sequence's length up to this.
const lengthStep = 256
// A lane begins small and doubles when requests wait: clearing the memory of many slots would delay the first answer.
const slotsFirst = 4

/** What the lanes of a model look like; `long` is null where the short ones already hold the model's whole context. */
export function laneShapes(model: Pick<Model, 'context_length' | 'kv_bytes_per_token'>, limits: MemoryLimits): { short: LaneShape; long: LaneShape | null } {
  const length = Math.max(lengthStep, Math.floor(model.context_length / lengthStep) * lengthStep)
  const short = fit(Math.min(shortTokens, length), limits.short_slots, model.kv_bytes_per_token, Math.min(limits.short_lane_bytes, limits.total_bytes))
  const long = fit(Math.min(longTokensMax, length), longSlots, model.kv_bytes_per_token, Math.min(limits.long_lane_bytes, limits.total_bytes))
  return { short, long: long.tokens_per_slot > short.tokens_per_slot ? long : null }
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
