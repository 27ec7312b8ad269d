// Size classes of slots and their memory limits. Models have contexts of 8,000 tokens and more. Reserving that much KV
// cache for every request would leave room for few, so a request starts in a runner with short slots and migrates to
// longer ones when its answer outgrows them.
import type { Model } from '../llama/model.ts'

export interface RunnerShape {
  slots: number
  slots_first: number
  tokens_per_slot: number
  bytes_per_slot: number
}

export interface MemoryLimits {
  /** Slots of the runner with the shortest slots, if memory allows. */
  slots: number
  /** Maximum for one runner. */
  runner_bytes: number
  /** Maximum for all runners together. */
  total_bytes: number
}

const classes = [
  { tokens: 512, share: 1 },
  { tokens: 2048, share: 1 / 2 },
  { tokens: 16_384, share: 1 / 16 },
]
// The library rounds the length of a sequence up to a multiple of this.
const lengthStep = 256
// A runner starts small and grows when requests wait: clearing the memory of many slots takes seconds.
const slotsFirst = 4
// Room for the answer in the first slot. Most answers are shorter.
const answerTokensExpected = 256

/**
 * The runners of a model by size class, shortest slots first. The last has slots of the model's whole context, or as
 * much of it as memory allows.
 */
export function runnerShapes(
  model: Pick<Model, 'context_length' | 'kv_bytes_per_token'>,
  limits: MemoryLimits,
): RunnerShape[] {
  const length = Math.max(lengthStep, Math.floor(model.context_length / lengthStep) * lengthStep)
  const shapes: RunnerShape[] = []
  for (const { tokens, share } of classes) {
    const slots = Math.max(1, Math.round(limits.slots * share))
    const shape = fit(
      Math.min(tokens, length),
      slots,
      model.kv_bytes_per_token,
      Math.min(limits.runner_bytes, limits.total_bytes),
    )
    if (shape.tokens_per_slot > (shapes.at(-1)?.tokens_per_slot ?? 0)) shapes.push(shape)
  }
  return shapes
}

/** The index in `shapes` of the runner that a request starts in. */
export function firstSizeClass(shapes: readonly RunnerShape[], prompt_tokens: number, max_tokens: number): number {
  const needed = prompt_tokens + Math.min(max_tokens, answerTokensExpected)
  const size = shapes.findIndex((shape) => shape.tokens_per_slot >= needed)
  return size < 0 ? shapes.length - 1 : size
}

/** Reduces the number of slots, then their length, until the runner needs at most `bytes`. */
function fit(tokens: number, slots: number, bytesPerToken: number, bytes: number): RunnerShape {
  const perToken = Math.max(1, bytesPerToken)
  const tokensAffordable = Math.floor(bytes / perToken / lengthStep) * lengthStep
  const tokens_per_slot = Math.max(lengthStep, Math.min(tokens, tokensAffordable))
  const bytes_per_slot = tokens_per_slot * perToken
  const count = Math.max(1, Math.min(slots, Math.floor(bytes / bytes_per_slot)))
  return { slots: count, slots_first: Math.min(count, slotsFirst), tokens_per_slot, bytes_per_slot }
}
