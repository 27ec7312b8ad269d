// Batch runner: decodes the requests for one model with one adapter (or none) together, with continuous batching:
// requests join and leave the batch at any step.
import { ApiError } from '../../contract/errors.ts'
import type { Context } from '../llama/context.ts'
import type { Vocab } from '../llama/vocab.ts'
import type { Drafter, Drafting } from '../sampling/drafts/drafter.ts'
import { isPictureToken } from '../vision/picture-tokens.ts'
import { BatchFiller, type FilledBatch, type RunningSequence, startSequence } from './batch.ts'
import { createPartTime, createPrefillSpeed, type PrefillBudget } from './chunked-prefill.ts'
import { abandonGeneration, acceptToken, failGeneration, type Generation, sampleToken } from './generation.ts'
import { type CachedPrefix, createKvCache, type KvCache } from './kv-cache.ts'
import { chooseSlot, commonPrefix, countRuns, nearestFreeSlot, type Slot, type SlotChoice } from './prefix-cache.ts'

export interface RunnerOptions {
  vocab: Vocab
  context: Context
  slots: number
  /** For prompt and answer together. A generation that needs more goes to `onOutgrown`. */
  tokens_per_slot: number
  /** Tokens in the batch of one step: prompts, last tokens and draft tokens. */
  batch_tokens: number
  can_share_prefix: boolean
  /** The model counts positions of pictures in several dimensions. */
  uses_mrope: boolean
  /** Speculative decoding; null: none. */
  drafting: Drafting | null
  makeContext(slots: number): Context
  /** An unexpected error failed one generation. */
  onFault(error: unknown): void
  /** Takes over a generation whose slot is too short. Its `migration` holds its state. */
  onOutgrown(generation: Generation): void
  /**
   * A cached prefix of this prompt from another runner of the model. Null if a copy saves too little over the `tokens`
   * that the slot has cached already.
   */
  importPrefix(prompt: readonly number[], account: string, tokens: number): CachedPrefix | null
}

export interface StepStats {
  prompt_tokens: number
  output_tokens: number
  seconds: number
  failed: boolean
}

// How long one step waits for a grammar's mask, which another thread computes during the step before.
const mask_wait_ms = 1
const mask_wait_alone_ms = 5
// Moving a sequence to another slot costs about two steps, so one that ends soon stays.
const moveTokensMin = 16

/**
 * Waiting generations in the order in which they get slots: live ones first, then those of the account with the fewest
 * sequences, counting those before it here. Otherwise, and within an account, first come.
 */
export function admissionOrder<T extends { request: Pick<Generation['request'], 'account' | 'background'> }>(
  waiting: readonly T[],
  running: readonly T[],
): T[] {
  if (waiting.length < 2) return [...waiting]
  const sequences = new Map<string, number>()
  const next = ({ request }: T) => {
    const count = sequences.get(request.account) ?? 0
    sequences.set(request.account, count + 1)
    return count
  }
  for (const generation of running) next(generation)
  const isLive = ({ request }: T) => !request.background
  const ranked = [...waiting.filter(isLive), ...waiting.filter((generation) => !isLive(generation))].map(
    (generation) => ({ generation, rank: next(generation), background: generation.request.background }),
  )
  return ranked
    .sort((a, b) => Number(a.background) - Number(b.background) || a.rank - b.rank)
    .map(({ generation }) => generation)
}

/** Runs the generations of one model with one adapter, or none. */
export class Runner {
  waiting: Generation[] = []
  used_at_ms = performance.now()
  /** Pauses background generations: set while any runner has another one. */
  background_paused = false
  private readonly options: RunnerOptions
  private readonly cache: KvCache
  private readonly batch: BatchFiller
  private readonly prefillSpeed = createPrefillSpeed()
  private readonly partTime = createPartTime()
  // In ascending order of slots, as the library requires for a batch.
  private sequences: RunningSequence[] = []
  private clock = 0

  constructor(options: RunnerOptions) {
    this.options = options
    this.cache = createKvCache(options.context, options.slots, options.tokens_per_slot, options.uses_mrope)
    this.batch = new BatchFiller(this.cache, options)
  }

  /** Whether it computes, or has waiting, a generation that is no background one. */
  hasForeground(): boolean {
    return (
      this.waiting.some(({ request }) => !request.background) ||
      this.sequences.some(({ generation }) => !generation.request.background)
    )
  }

  /** Fails its background generations as overloaded, to make room for others. */
  dropBackground(): void {
    const error = new ApiError('overloaded', 'Other requests need the memory of this one. Try again in a moment.')
    for (const entry of this.sequences.filter(({ generation }) => generation.request.background))
      this.fail(entry, error)
    for (const generation of this.waiting) if (generation.request.background) failGeneration(generation, error)
    this.waiting = this.waiting.filter(({ state }) => state === 'waiting')
  }

  running(): number {
    return this.sequences.length
  }

  /** Tokens in the KV cache of the running sequences. */
  tokensInUse(): number {
    return this.sequences.reduce((sum, { slot }) => sum + slot.cached.length, 0)
  }

  /** Number of prompts not fully computed, including waiting ones. */
  prefilling(): number {
    return (
      this.waiting.filter((generation) => !this.isPaused(generation)).length + this.computed().length - this.decoding()
    )
  }

  /** Number of answers in generation. */
  decoding(): number {
    return this.computed().filter(({ tokens, slot }) => slot.cached.length >= tokens.length).length
  }

  slotCount(): number {
    return this.cache.slots().length
  }

  /** Moves all sequences and caches into a context with more slots. */
  growInto(larger: Context, count: number): void {
    // Tokens of a cache that cannot be moved are computed again.
    for (const entry of this.sequences) if (entry.next_token >= 0) entry.tokens = entry.slot.cached.slice()
    this.cache.growInto(larger, count)
    for (const entry of this.sequences) entry.slot = this.cache.slots()[entry.slot.index]!
  }

  exportPrefix(...request: Parameters<KvCache['exportPrefix']>): CachedPrefix | null {
    return this.cache.exportPrefix(...request)
  }

  /** How long a step of these answers takes without prompts; 0 if none was measured. */
  decode_ms(): number {
    return this.prefillSpeed.decode_ms(this.decoding())
  }

  /** Admits what fits, decodes one batch and sends the new text. Null if there was nothing to compute. */
  step(budget: PrefillBudget): StepStats | null {
    this.dropCancelled()
    this.admit()
    for (const entry of this.sequences) entry.logits_index = -1
    if (this.computed().length === 0) return null
    this.used_at_ms = performance.now()
    const pending_tokens = this.samplePending()
    this.handOverOutgrown()
    this.compactSlots()
    const { prompt_tokens, rows, pictures } = this.batch.fillTokens(
      this.computed(),
      this.prefillSpeed.tokensIn(budget.whole_ms),
      this.prefillSpeed.tokensIn(this.partTime(budget)),
    )
    const context = this.cache.context()
    const length = context.batchLength()
    const stats: StepStats = { prompt_tokens, output_tokens: pending_tokens, seconds: 0, failed: false }
    if (length > 0) {
      stats.failed = context.decode() !== 0
      stats.seconds = (performance.now() - this.used_at_ms) / 1000
      if (!stats.failed) {
        this.prefillSpeed.record(rows, prompt_tokens === 0 ? 0 : Math.max(0, length - rows), stats.seconds * 1000)
        if (prompt_tokens === 0) this.options.drafting?.costs.record(length, stats.seconds * 1000)
        stats.output_tokens += this.sampleAll()
      }
    }
    const vectors = stats.failed ? null : this.computeVectors(pictures)
    if (!vectors) {
      this.rebuild()
      return { prompt_tokens: 0, output_tokens: 0, seconds: stats.seconds, failed: true }
    }
    stats.prompt_tokens += vectors.prompt_tokens
    stats.seconds += vectors.seconds
    return stats
  }

  /** Frees the context. */
  close(): void {
    for (const entry of this.sequences) this.fail(entry, new ApiError('engine_failed', 'The model was unloaded.'))
    for (const generation of this.waiting)
      failGeneration(generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
    this.waiting = []
    this.cache.context().free()
  }

  /** Ends an idle runner, whose context another one takes. */
  giveContext(): Context {
    return this.cache.context()
  }

  private vacate(entry: RunningSequence): void {
    entry.slot.generation = null
    entry.slot.used_at = ++this.clock
    this.sequences = this.sequences.filter((other) => other !== entry)
  }

  private dropCancelled(): void {
    for (const generation of this.waiting) if (generation.cancelled) abandonGeneration(generation)
    this.waiting = this.waiting.filter((generation) => generation.state === 'waiting')
    for (const entry of this.sequences) {
      if (entry.generation.cancelled) abandonGeneration(entry.generation)
      if (entry.generation.state === 'ended') this.vacate(entry)
    }
  }

  private isPaused({ request }: Generation): boolean {
    return this.background_paused && request.background
  }

  private admit(): void {
    const stillWaiting: Generation[] = []
    const held = this.sequences.map(({ generation }) => generation)
    for (const generation of admissionOrder(this.waiting, held)) {
      if (this.isPaused(generation)) {
        stillWaiting.push(generation)
        continue
      }
      if (this.sequences.length === this.cache.slots().length && !generation.request.background)
        this.takeSlotFromBackground(stillWaiting)
      const choice: SlotChoice =
        this.sequences.length === this.cache.slots().length
          ? { kind: 'wait' }
          : chooseSlot(this.cache.slots(), generation, this.options.can_share_prefix)
      if (choice.kind === 'wait') {
        stillWaiting.push(generation)
        continue
      }
      this.start(generation, choice.slot, choice.donor, choice.keep)
    }
    this.waiting = stillWaiting
    this.sequences.sort((a, b) => a.slot.index - b.slot.index)
  }

  /** Puts a background generation back among the waiting ones, with what it has computed. */
  private takeSlotFromBackground(stillWaiting: Generation[]): void {
    const entry = this.sequences.find(
      ({ generation, pending_logits }) => generation.request.background && !pending_logits,
    )
    if (!entry) return
    const { slot, generation, next_token } = entry
    if (next_token >= 0) {
      // After a move its cache may be computed again only in part.
      const whole = slot.cached.length >= entry.tokens.length
      generation.migration = whole
        ? { tokens: slot.cached.slice(), next_token, saved: this.cache.context().save(slot.index) }
        : { tokens: [...entry.tokens], next_token, saved: null }
    }
    generation.state = 'waiting'
    this.vacate(entry)
    stillWaiting.push(generation)
  }

  // No drafts with a seed: whether drafts are made depends on the load, and batches of different sizes round
  // differently.
  private drafterFor({ request, migration }: Generation): Drafter | null {
    const { account, prompt, sampling } = request
    if (!this.options.drafting || !this.options.can_share_prefix || sampling.seed !== null) return null
    const answer = migration ? [...migration.tokens.slice(prompt.length), migration.next_token] : []
    const greedy = sampling.temperature === 0
    const endsAt = (token: number) => isPictureToken(token) || this.options.vocab.isEndOfGeneration(token)
    return this.options.drafting.drafter({ account, prompt, answer, greedy, endsAt })
  }

  private start(generation: Generation, slot: Slot, donor: Slot | null, keep: number): void {
    const { request, migration } = generation
    if (donor) this.cache.copy(donor, slot)
    this.cache.truncate(slot, keep)
    const entry = startSequence(slot, generation, this.drafterFor(generation))
    if (migration) {
      if (migration.saved) this.cache.restore(slot, migration.saved, migration.tokens.slice())
    } else {
      const canShare = this.options.can_share_prefix && request.sampling.seed === null
      const prefix = canShare ? this.options.importPrefix(request.prompt, request.account, keep) : null
      if (prefix) this.cache.restore(slot, prefix.saved, prefix.tokens)
      this.cache.truncate(
        slot,
        Math.min(slot.cached.length, commonPrefix(slot.cached, request.prompt, request.prompt.length - 1)),
      )
      generation.cached_tokens = slot.cached.length
      generation.events.onStart({
        cached_tokens: slot.cached.length,
        queue_ms: performance.now() - generation.submitted_at_ms,
      })
    }
    generation.migration = null
    generation.state = 'running'
    slot.generation = generation
    slot.account = request.account
    this.sequences.push(entry)
  }

  /** Hands over the generations whose slot is full. */
  private handOverOutgrown(): void {
    for (const entry of this.sequences) {
      const { slot, generation } = entry
      if (entry.next_token < 0 || entry.pending_logits || slot.cached.length < this.options.tokens_per_slot) continue
      generation.migration = {
        tokens: slot.cached.slice(),
        next_token: entry.next_token,
        saved: this.cache.context().save(slot.index),
      }
      generation.state = 'waiting'
      this.vacate(entry)
      this.options.onOutgrown(generation)
    }
  }

  /** Moves at most one sequence into a gap between the slots in use, if that pays. */
  private compactSlots(): void {
    const runs = countRuns(this.cache.slots(), null)
    if (runs < 2 || this.sequences.some(({ pending_logits }) => pending_logits)) return
    for (const entry of this.sequences) {
      const { slot, generation } = entry
      if (entry.next_token < 0 || generation.request.max_tokens - generation.completion_tokens < moveTokensMin) continue
      slot.generation = null
      const near = nearestFreeSlot(this.cache.slots())!
      const isBetter = near !== slot && countRuns(this.cache.slots(), near) < runs
      const to = isBetter ? near : slot
      if (isBetter) this.cache.copy(slot, near)
      Object.assign(to, { generation, account: slot.account })
      entry.slot = to
      if (!isBetter) continue
      slot.used_at = ++this.clock
      this.sequences.sort((a, b) => a.slot.index - b.slot.index)
      return
    }
  }

  /** Samples a token for the entry from these logits. False if it has ended, failed, or waits for its mask. */
  private sampleNext(entry: RunningSequence, logits: Float32Array, wait_ms: number): boolean {
    try {
      const sampled = sampleToken(entry.generation, this.options.vocab, logits, wait_ms)
      if (!sampled) {
        entry.pending_logits ??= Float32Array.from(logits)
        return false
      }
      entry.pending_logits = null
      entry.next_token = sampled.token
      entry.drafter?.append(sampled.token)
      if (!acceptToken(entry.generation, this.options.vocab, sampled)) return true
      entry.drafter?.finish()
      this.vacate(entry)
    } catch (error) {
      if (!(error instanceof ApiError)) this.options.onFault(error)
      this.fail(
        entry,
        error instanceof ApiError
          ? error
          : new ApiError('engine_failed', 'The engine failed to choose the next token of this answer.'),
      )
    }
    return false
  }

  /** Samples for all sequences in the batch and verifies their drafts. Returns the number of tokens. */
  private sampleAll(): number {
    let tokens = 0
    for (const entry of this.sequences) {
      if (entry.logits_index < 0) continue
      const { draft, slot, generation } = entry
      const tokensBefore = generation.completion_tokens
      let accepted = 0
      while (
        this.sampleNext(
          entry,
          this.cache.context().logits(entry.logits_index + accepted, this.options.vocab.size),
          mask_wait_ms,
        ) &&
        draft[accepted] === entry.next_token
      )
        accepted++
      tokens += generation.completion_tokens - tokensBefore
      if (draft.length === 0) continue
      this.cache.truncate(slot, slot.cached.length - (draft.length - accepted))
    }
    return tokens
  }

  /** Samples for the sequences that wait for a mask, where it is ready. Returns the number of tokens. */
  private samplePending(): number {
    const pending = this.sequences.filter((entry) => entry.pending_logits)
    const wait_ms = pending.length === this.computed().length ? mask_wait_alone_ms : 0
    let tokens = 0
    pending.forEach((entry, index) => {
      const tokensBefore = entry.generation.completion_tokens
      this.sampleNext(entry, entry.pending_logits!, index === 0 ? wait_ms : 0)
      tokens += entry.generation.completion_tokens - tokensBefore
    })
    return tokens
  }

  private fail(entry: RunningSequence, error: ApiError): void {
    this.vacate(entry)
    failGeneration(entry.generation, error)
  }

  /** After a failed decode: fails all running generations and starts with an empty context. */
  private rebuild(): void {
    for (const entry of this.sequences)
      this.fail(
        entry,
        new ApiError(
          'engine_failed',
          'The engine failed to compute this answer. Other requests are not affected; try again.',
        ),
      )
    this.cache.context().free()
    this.cache.reset(this.options.makeContext(this.cache.slots().length))
  }

  /** Computes the next vectors of these prompts. Null after a failed decode. */
  private computeVectors(pictures: FilledBatch['pictures']): { prompt_tokens: number; seconds: number } | null {
    if (pictures.length === 0) return { prompt_tokens: 0, seconds: 0 }
    const began_ms = performance.now()
    const { prompt_tokens, rows, is_causal } = this.batch.fillVectors(pictures)
    if (rows === 0) return { prompt_tokens: 0, seconds: 0 }
    if (this.cache.context().decodeVectors(is_causal) !== 0) return null
    const ms = performance.now() - began_ms
    this.prefillSpeed.record(rows, prompt_tokens, ms)
    return { prompt_tokens, seconds: ms / 1000 }
  }

  private computed(): RunningSequence[] {
    if (!this.background_paused) return this.sequences
    return this.sequences.filter(({ generation }) => !this.isPaused(generation))
  }
}
