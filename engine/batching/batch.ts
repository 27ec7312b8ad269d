// Fills the batch of one step: the last token of each answer, draft tokens that may follow it, and chunks of prompts.

import { type Drafter, draftTokensAfterPrompt, draftTokensMax } from '../sampling/speculative.ts'
import { sharePrefillBudget } from './chunked-prefill.ts'
import type { Generation } from './generation.ts'
import type { KvCache } from './kv-cache.ts'
import type { Slot } from './prefix-cache.ts'

type Sizes = { batch_tokens: number; tokens_per_slot: number }
type BatchFiller = (
  running: readonly RunningSequence[],
  prompt_tokens_max: number,
) => { prompt_tokens: number; rows: number }

// Speculative decoding pays only while few requests run: with more, the batch is full enough without draft tokens.
const speculatedSequencesMax = 2
// A step costs nearly as much with few streams as with all of them. In a burst of requests, a few steps therefore
// prefill prompts only, so that the streams then decode together.
const prefillOnlyPromptsMin = 8
const prefillOnlyStepsMax = 3

/** Rows of logits that a context needs for `slots` sequences. */
export const outputsFor = (slots: number) => slots + speculatedSequencesMax * draftTokensMax

/**
 * Returns a function that fills the batch of the cache's context. `running` must be in ascending order of slots.
 * `rows` is the number of sequences in the batch.
 */
export function createBatchFiller(cache: KvCache, { batch_tokens, tokens_per_slot }: Sizes): BatchFiller {
  let prefillOnlySteps = 0

  const addLastToken = (entry: RunningSequence, mayDraft: boolean) => {
    const { slot } = entry
    entry.logits_index = cache.context().add(entry.next_token, slot.cached.length, slot.index, true)
    slot.cached.push(entry.next_token)
    if (mayDraft) addDraft(entry, draftTokensMax)
  }

  const addDraft = (entry: RunningSequence, max: number) => {
    const { slot, generation, drafter } = entry
    const room = Math.min(
      generation.request.max_tokens - generation.completion_tokens - 1,
      tokens_per_slot - slot.cached.length,
      max,
    )
    entry.draft = drafter && room > 0 ? drafter.draft(slot.cached, room) : []
    for (const token of entry.draft) {
      cache.context().add(token, slot.cached.length, slot.index, true)
      slot.cached.push(token)
    }
  }

  const addPromptChunk = (entry: RunningSequence, count: number, mayDraft: boolean) => {
    const { slot, tokens } = entry
    for (let added = 0; added < count; added++) {
      const position = slot.cached.length
      const wantsLogits = position === tokens.length - 1 && entry.next_token < 0
      const index = cache.context().add(tokens[position]!, position, slot.index, wantsLogits)
      slot.cached.push(tokens[position]!)
      if (!wantsLogits) continue
      entry.logits_index = index
      // The step is computed for the prompt anyway: a draft of the answer's start is nearly free.
      if (mayDraft) addDraft(entry, draftTokensAfterPrompt(cache.context().batchLength()))
    }
  }

  return (running, prompt_tokens_max) => {
    const tokensLeft = ({ tokens, slot }: RunningSequence) => Math.max(0, tokens.length - slot.cached.length)
    const prompts = running
      .filter((entry) => tokensLeft(entry) > 0)
      .map((entry) => ({ entry, tokens_left: tokensLeft(entry), since_ms: entry.generation.submitted_at_ms }))
    const budget = Math.min(prompt_tokens_max, batch_tokens - outputsFor(cache.slots().length))
    const chunks = new Map([...sharePrefillBudget(prompts, budget)].map(([{ entry }, count]) => [entry, count]))
    const prefillOnly = prompts.length >= prefillOnlyPromptsMin && prefillOnlySteps < prefillOnlyStepsMax
    prefillOnlySteps = prefillOnly ? prefillOnlySteps + 1 : 0
    const mayDraft = running.length <= speculatedSequencesMax
    let prompt_tokens = 0
    let rows = 0
    for (const entry of running) {
      entry.logits_index = -1
      const count = chunks.get(entry)
      if (count !== undefined) addPromptChunk(entry, count, mayDraft)
      else if (tokensLeft(entry) === 0 && !entry.pending_logits && !prefillOnly) addLastToken(entry, mayDraft)
      else continue
      prompt_tokens += count ?? 0
      rows++
    }
    return { prompt_tokens, rows }
  }
}

/** A generation in a slot of a runner. */
export type RunningSequence = {
  slot: Slot
  generation: Generation
  /**
   * What the KV cache must hold before the next token is sampled: the prompt, or all tokens of a sequence whose cache
   * could not be migrated.
   */
  tokens: readonly number[]
  /** The token sampled last, which is not in the cache yet; -1 during prefill. */
  next_token: number
  /** Draft tokens after `next_token` in the current batch. */
  draft: number[]
  /** Null: no speculative decoding. */
  drafter: Drafter | null
  /** Index in the batch of the token whose logits give the next token, or -1. */
  logits_index: number
  /** Logits that wait for the grammar's mask. The sequence is not computed meanwhile. */
  pending_logits: Float32Array | null
}

/** Starts a generation, or resumes one that migrated from another runner. */
export function startSequence(slot: Slot, generation: Generation, drafter: Drafter | null): RunningSequence {
  const { request, migration } = generation
  return {
    slot,
    generation,
    tokens: migration?.tokens ?? request.prompt,
    next_token: migration?.next_token ?? -1,
    draft: [],
    drafter,
    logits_index: -1,
    pending_logits: null,
  }
}
