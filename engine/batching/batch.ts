// What one step of a lane computes: the last token of each answer, with guesses of the next ones, and pieces of
// prompts.

import { fillUp, guessMax, type Speculation } from '../sampling/speculative.ts'
import type { Generation } from './generation.ts'
import type { Slots } from './kv-cache.ts'
import { allot } from './prefill.ts'
import type { Slot } from './prefix-cache.ts'

type Sizes = { batch_tokens: number; tokens_per_slot: number }
type BatchFiller = (running: readonly Running[], prompt_tokens_max: number) => { prompt_tokens: number; rows: number }

// Beside more requests than this a step has its rows to compute anyway, and guesses would only add to them.
const speculatedMax = 2
// A step costs nearly as much with few streams as with all of them: with a burst of requests, it pays to read their
// prompts first, and to go on with what streams already in one step of a few.
const manyPrompts = 8
const stepsAlone = 3

/** Rows of logits that a context needs for `slots` sequences. */
export const outputsFor = (slots: number) => slots + speculatedMax * guessMax

/**
 * Fills the batch of the slots' context, for `running` in ascending order of slots; tells how many sequences it is
 * over.
 */
export function createBatchFiller(slots: Slots, { batch_tokens, tokens_per_slot }: Sizes): BatchFiller {
  let alone = 0

  const addAnswer = (entry: Running, mayGuess: boolean) => {
    const { slot } = entry
    entry.logits_at = slots.context().add(entry.next, slot.cached.length, slot.index, true)
    slot.cached.push(entry.next)
    if (mayGuess) addGuess(entry, guessMax)
  }

  const addGuess = (entry: Running, max: number) => {
    const { slot, generation, speculation } = entry
    const room = Math.min(
      generation.request.max_tokens - generation.completion_tokens - 1,
      tokens_per_slot - slot.cached.length,
      max,
    )
    entry.guessed = speculation && room > 0 ? speculation.guess(slot.cached, room) : []
    for (const token of entry.guessed) {
      slots.context().add(token, slot.cached.length, slot.index, true)
      slot.cached.push(token)
    }
  }

  const addPrompt = (entry: Running, count: number, mayGuess: boolean) => {
    const { slot, tokens } = entry
    for (let added = 0; added < count; added++) {
      const position = slot.cached.length
      const wanted = position === tokens.length - 1 && entry.next < 0
      const index = slots.context().add(tokens[position]!, position, slot.index, wanted)
      slot.cached.push(tokens[position]!)
      if (!wanted) continue
      entry.logits_at = index
      // The step is made for the prompt anyway: a guess of how the answer begins costs little more in it than what
      // fills the columns up.
      if (mayGuess) addGuess(entry, fillUp(slots.context().batchLength()))
    }
  }

  return (running, prompt_tokens_max) => {
    const leftOf = ({ tokens, slot }: Running) => Math.max(0, tokens.length - slot.cached.length)
    const prompts = running
      .filter((entry) => leftOf(entry) > 0)
      .map((entry) => ({ entry, left: leftOf(entry), since_ms: entry.generation.submitted_at_ms }))
    const allotted = allot(prompts, Math.min(prompt_tokens_max, batch_tokens - outputsFor(slots.all().length)))
    const shares = new Map([...allotted].map(([{ entry }, count]) => [entry, count]))
    const promptsAlone = prompts.length >= manyPrompts && alone < stepsAlone
    alone = promptsAlone ? alone + 1 : 0
    const mayGuess = running.length <= speculatedMax
    let prompt_tokens = 0
    let rows = 0
    for (const entry of running) {
      entry.logits_at = -1
      const count = shares.get(entry)
      if (count !== undefined) addPrompt(entry, count, mayGuess)
      else if (leftOf(entry) === 0 && !entry.held && !promptsAlone) addAnswer(entry, mayGuess)
      else continue
      prompt_tokens += count ?? 0
      rows++
    }
    return { prompt_tokens, rows }
  }
}

// A generation in a slot of a lane.

export type Running = {
  slot: Slot
  generation: Generation
  /**
   * What must be in the cache before the next token is chosen: the prompt, or what was lost on the way into a bigger
   * lane.
   */
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
