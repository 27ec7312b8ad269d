// Fills the batches of one step: the last token of each answer, draft tokens that may follow it, and chunks of prompts.
// Vectors of pictures have a batch of their own, which is computed after that of the tokens.
import { microBatchTokensMax } from '../llama/context.ts'
import type { Drafter, Drafting } from '../sampling/drafts/drafter.ts'
import { draftTokensFor, draftTokensPerStep, planDrafts } from '../sampling/drafts/plan.ts'
import { isPictureToken, type PictureSpan, spanAt } from '../vision/picture-tokens.ts'
import { sharePrefillBudget } from './chunked-prefill.ts'
import type { Generation } from './generation.ts'
import type { KvCache } from './kv-cache.ts'
import type { Slot } from './prefix-cache.ts'

interface Options {
  batch_tokens: number
  tokens_per_slot: number
  drafting: Drafting | null
}
export interface FilledBatch {
  prompt_tokens: number
  /** Sequences in the batch. */
  rows: number
  /** Prompts that continue with a picture, with the tokens left to each. */
  pictures: { entry: RunningSequence; tokens_max: number }[]
}
// A step costs nearly as much with few streams as with all of them. In a burst of requests, a few steps therefore
// prefill prompts only, so that the streams then decode together.
const prefillOnlyPromptsMin = 8
const prefillOnlyStepsMax = 3

/** Rows of logits that a context needs for `slots` sequences. */
export const outputsFor = (slots: number) => slots + draftTokensPerStep

/** Fills the batches of the cache's context. `running` must be in ascending order of slots. */
export class BatchFiller {
  private readonly cache: KvCache
  private readonly options: Options
  private prefillOnlySteps = 0

  constructor(cache: KvCache, options: Options) {
    this.cache = cache
    this.options = options
  }

  /** `part_tokens_max`: for prompts that do not end with the step. */
  fillTokens(running: readonly RunningSequence[], prompt_tokens_max: number, part_tokens_max: number): FilledBatch {
    const tokensLeft = ({ tokens, slot }: RunningSequence) => Math.max(0, tokens.length - slot.cached.length)
    const budget = Math.min(prompt_tokens_max, this.options.batch_tokens - outputsFor(this.cache.slots().length))
    const prompts = running
      .filter((entry) => tokensLeft(entry) > 0)
      .map((entry) => {
        const tokens_left = tokensLeft(entry)
        entry.in_parts ??= tokens_left > budget
        return { entry, tokens_left, since_ms: entry.generation.submitted_at_ms, in_parts: entry.in_parts }
      })
    const shares = sharePrefillBudget(prompts, budget, part_tokens_max)
    const chunks = new Map([...shares].map(([{ entry }, count]) => [entry, count]))
    const prefillOnly = prompts.length >= prefillOnlyPromptsMin && this.prefillOnlySteps < prefillOnlyStepsMax
    this.prefillOnlySteps = prefillOnly ? this.prefillOnlySteps + 1 : 0
    const decodes = (entry: RunningSequence) => tokensLeft(entry) === 0 && !entry.pending_logits && !prefillOnly
    const endsPrompt = (entry: RunningSequence) => chunks.get(entry) === tokensLeft(entry) && entry.next_token < 0
    for (const entry of running) entry.draft = []
    const sampled = running.filter((entry) => (chunks.has(entry) ? endsPrompt(entry) : decodes(entry)))
    this.chooseDrafts(sampled, chunks.size > 0)
    const filled: FilledBatch = { prompt_tokens: 0, rows: 0, pictures: [] }
    for (const entry of running) {
      entry.logits_index = -1
      const count = chunks.get(entry)
      if (count !== undefined) {
        const added = this.addPromptChunk(entry, count)
        filled.prompt_tokens += added
        if (added > 0) filled.rows++
        if (added < count) filled.pictures.push({ entry, tokens_max: count - added })
      } else if (decodes(entry)) {
        this.addLastToken(entry)
        filled.rows++
      }
    }
    return filled
  }

  /** Call it after the tokens are decoded. Returns how many vectors there are, and whether attention is causal. */
  fillVectors(pictures: FilledBatch['pictures']): { prompt_tokens: number; rows: number; is_causal: boolean } {
    const filled = { prompt_tokens: 0, rows: 0, is_causal: true }
    let room = Math.min(microBatchTokensMax, this.options.batch_tokens)
    for (const { entry, tokens_max } of pictures) {
      const span = spanAt(entry.generation.request.pictures, entry.slot.cached.length)
      const { is_non_causal } = span
      // A part whose vectors attend to each other is never split, nor mixed with causal ones, nor with longer or
      // shorter ones: the library computes as many vectors of each sequence at once as the shortest has.
      const count = is_non_causal ? span.n_tokens : Math.min(tokens_max, room)
      if (count === 0 || count > room) continue
      const others = filled.rows > 0 ? filled.prompt_tokens / filled.rows : count
      if (filled.rows > 0 && (filled.is_causal === is_non_causal || (is_non_causal && count !== others))) continue
      const added = this.addVectors(entry, span, count)
      filled.is_causal = !is_non_causal
      filled.prompt_tokens += added
      filled.rows++
      room -= added
    }
    return filled
  }

  private addLastToken(entry: RunningSequence) {
    const { slot } = entry
    entry.logits_index = this.cache.context().add(entry.next_token, this.cache.positionAfter(slot), slot.index, true)
    slot.cached.push(entry.next_token)
    this.addDraft(entry)
  }

  private addDraft({ slot, draft }: RunningSequence) {
    let position = this.cache.positionAfter(slot)
    for (const token of draft) {
      this.cache.context().add(token, position++, slot.index, true)
      slot.cached.push(token)
    }
  }

  /** Chooses the drafts of sequences that get a token in this step. `hasPrompts`: it computes prompts too. */
  private chooseDrafts(sequences: readonly RunningSequence[], hasPrompts: boolean) {
    if (!this.options.drafting || sequences.length === 0) return
    const { cost, isFresh } = this.options.drafting.costs
    // What a step costs without drafts must be known to tell whether they pay.
    if (!hasPrompts && !isFresh(sequences.length)) return
    const longest = draftTokensFor(sequences.length, cost)
    if (longest === 0) return
    const rooms = sequences.map(({ slot, generation, drafter, tokens, next_token }) => {
      const used = next_token < 0 ? tokens.length : slot.cached.length + 1
      const left = generation.request.max_tokens - generation.completion_tokens - 1
      return drafter ? Math.max(0, Math.min(left, this.options.tokens_per_slot - used, longest)) : 0
    })
    const proposals = sequences.map(
      ({ drafter }, index) => drafter?.propose(rooms[index]!) ?? { tokens: [], reach: [] },
    )
    const length = planDrafts(
      proposals.map(({ reach }) => reach),
      cost,
    )
    for (const [index, entry] of sequences.entries()) {
      const { tokens } = proposals[index]!
      // Filled up with any token: see planDrafts.
      const filler = tokens.at(-1) ?? entry.tokens.at(-1)!
      entry.draft = Array.from({ length: Math.min(length, rooms[index]!) }, (_, at) => tokens[at] ?? filler)
    }
  }

  /** Adds up to `count` tokens, but none of a picture. Returns how many. */
  private addPromptChunk(entry: RunningSequence, count: number): number {
    const { slot, tokens } = entry
    let position = this.cache.positionAfter(slot)
    for (let added = 0; added < count; added++) {
      const at = slot.cached.length
      const token = tokens[at]!
      if (isPictureToken(token)) return added
      const wantsLogits = at === tokens.length - 1 && entry.next_token < 0
      const index = this.cache.context().add(token, position++, slot.index, wantsLogits)
      slot.cached.push(token)
      if (!wantsLogits) continue
      entry.logits_index = index
      this.addDraft(entry)
    }
    return count
  }

  /** Adds up to `count` vectors of the picture part that the prompt continues with. Returns how many. */
  private addVectors({ slot, tokens }: RunningSequence, span: PictureSpan, count: number): number {
    const from = slot.cached.length - span.start
    const n_tokens = Math.min(count, span.n_tokens - from)
    const first_position = this.cache.positionAfter(slot, span.start)
    this.cache
      .context()
      .addVectors(
        {
          n_tokens,
          vectors: span.vectors.subarray(from * span.vector_length, (from + n_tokens) * span.vector_length),
          positions: span.positions?.subarray(3 * from, 3 * (from + n_tokens)) ?? null,
          first_position: span.positions ? first_position : first_position + from,
        },
        slot.index,
      )
    for (let added = 0; added < n_tokens; added++) slot.cached.push(tokens[slot.cached.length]!)
    return n_tokens
  }
}

/** A generation in a slot of a runner. */
export interface RunningSequence {
  slot: Slot
  generation: Generation
  /**
   * What the KV cache must hold before the next token is sampled: the prompt, or all tokens of a sequence whose cache
   * could not be migrated.
   */
  tokens: readonly number[]
  /** The token sampled last, which is not in the cache yet; -1 during prefill. */
  next_token: number
  /** Whether its prompt was longer than the prefill budget of its first step; null before that. */
  in_parts: boolean | null
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
    in_parts: null,
    draft: [],
    drafter,
    logits_index: -1,
    pending_logits: null,
  }
}
