// A generation in a slot of a lane.
import type { Generation } from './generation.ts'
import type { Slot } from './prefix-cache.ts'
import type { Speculation } from './speculation.ts'

export type Running = {
  slot: Slot
  generation: Generation
  /** What must be in the cache before the next token is chosen: the prompt, or what was lost on the way into a bigger lane. */
  tokens: readonly number[]
  /** The token chosen last, which is not in the cache yet; -1 while the prompt is computed. */
  next: number
  /** Tokens guessed to follow it, in the batch right after it. */
  guessed: number[]
  speculation: Speculation | null
  /** The row of the batch whose logits choose the next token, or -1. */
  logits_at: number
  /** Logits that wait for the grammar's mask; the sequence stands still meanwhile. */
  held: Float32Array | null
}

/** Begins a generation, or goes on with one that comes from another lane. */
export function startRunning(slot: Slot, generation: Generation, speculation: Speculation | null): Running {
  const { request, moved } = generation
  return {
    slot,
    generation,
    tokens: moved?.tokens ?? request.prompt,
    next: moved?.next ?? -1,
    guessed: [],
    speculation,
    logits_at: -1,
    held: null,
  }
}
