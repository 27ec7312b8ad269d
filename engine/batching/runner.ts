// A lane: the requests for one model with one adapter (or none), decoded together. Requests join and leave at any step.
import { ApiError } from '../../contract/errors.ts'
import type { Context } from '../llama/context.ts'
import type { Vocab } from '../llama/vocab.ts'
import { createSpeculation } from '../sampling/speculative.ts'
import { createBatchFiller, type Running, startRunning } from './batch.ts'
import { abandonGeneration, acceptToken, chooseToken, failGeneration, type Generation } from './generation.ts'
import { createSlots, type Lent, type Slots } from './kv-cache.ts'
import { createPromptPace } from './prefill.ts'
import { commonPrefix, nearestFree, type Placement, place, runsWith, type Slot } from './prefix-cache.ts'

export type LaneOptions = {
  vocab: Vocab
  context: Context
  slots: number
  /** Prompt and answer together; an answer that needs more is handed over to `onOutgrown`. */
  tokens_per_slot: number
  /** Tokens that one step may hold, prompt and output together. */
  batch_tokens: number
  can_share_prefix: boolean
  /** Whether next tokens are guessed while few requests run. */
  speculate: boolean
  makeContext(slots: number): Context
  /** Something that should not happen failed one answer. */
  onFault(error: unknown): void
  /** Takes a generation whose `moved` says where to go on. */
  onOutgrown(generation: Generation): void
  /**
   * A beginning of a prompt of this account that a lane of other slots has cached, if a copy of it pays beside the
   * `tokens` that the slot has already.
   */
  borrow(prompt: readonly number[], account: string, tokens: number): Lent | null
}

export type StepStats = { prompt_tokens: number; output_tokens: number; seconds: number; failed: boolean }

export type Lane = {
  waiting: Generation[]
  running(): number
  slotCount(): number
  /** How many prompts are not computed to their end. */
  prompts(): number
  /** How many answers are being written. */
  answers(): number
  /** Goes on in a context of more slots; what runs and what is cached moves along. */
  moveInto(wider: Context, slots: number): void
  lend: Slots['lend']
  used_at_ms: number
  /** Admits what fits, decodes one batch and passes the new text on. Null when nothing was left to compute. */
  step(prompt_ms: number): StepStats | null
  close(): void
}

// How long one step waits for the mask of a grammar, which is made by another thread while the step before is computed.
const maskWaitMs = 1
const maskWaitAloneMs = 5
// Moving a sequence costs about two steps; one that ends soon stays where it is.
const moveTokensMin = 16

export function createLane(options: LaneOptions): Lane {
  const { vocab } = options
  const slots = createSlots(options.context, options.slots, options.tokens_per_slot)
  // In ascending order of slots, as the batch needs it.
  let running: Running[] = []
  const pace = createPromptPace()
  const fill = createBatchFiller(slots, options)
  let clock = 0

  const leave = (entry: Running) => {
    entry.slot.generation = null
    entry.slot.used_at = ++clock
    running = running.filter((other) => other !== entry)
  }

  const dropCancelled = () => {
    for (const generation of lane.waiting) if (generation.cancelled) abandonGeneration(generation)
    lane.waiting = lane.waiting.filter((generation) => generation.state === 'waiting')
    for (const entry of running) {
      if (entry.generation.cancelled) abandonGeneration(entry.generation)
      if (entry.generation.state === 'ended') leave(entry)
    }
  }

  const admit = () => {
    const left: Generation[] = []
    for (const generation of lane.waiting) {
      const placement: Placement =
        running.length === slots.all().length
          ? { kind: 'wait' }
          : place(slots.all(), generation, options.can_share_prefix)
      if (placement.kind === 'wait') {
        left.push(generation)
        continue
      }
      join(generation, placement.slot, placement.donor, placement.keep)
    }
    lane.waiting = left
    running.sort((a, b) => a.slot.index - b.slot.index)
  }

  // A grammar's masks cannot be taken back. Who asks for a seed gets the same computation each time: no rows that
  // depend on what else is running.
  const speculationFor = ({ grammar, sampling }: Generation['request']) =>
    options.speculate && options.can_share_prefix && !grammar && sampling.seed === null
      ? createSpeculation(vocab.isEndOfGeneration)
      : null

  const join = (generation: Generation, slot: Slot, donor: Slot | null, keep: number) => {
    const { request, moved } = generation
    if (donor) slots.copy(donor, slot)
    slots.cut(slot, keep)
    const entry = startRunning(slot, generation, speculationFor(request))
    if (moved) {
      if (moved.saved) slots.fill(slot, moved.saved, moved.tokens.slice())
    } else {
      const shares = options.can_share_prefix && request.sampling.seed === null
      const lent = shares ? options.borrow(request.prompt, request.account, keep) : null
      if (lent) slots.fill(slot, lent.saved, lent.tokens)
      slots.cut(
        slot,
        Math.min(slot.cached.length, commonPrefix(slot.cached, request.prompt, request.prompt.length - 1)),
      )
      generation.cached_tokens = slot.cached.length
      generation.events.onStart({
        cached_tokens: slot.cached.length,
        queue_ms: performance.now() - generation.submitted_at_ms,
      })
    }
    generation.moved = null
    generation.state = 'running'
    slot.generation = generation
    slot.account = request.account
    running.push(entry)
  }

  /** Hands over the answers that their slot has no room for. */
  const sendOutgrown = () => {
    for (const entry of running) {
      const { slot, generation } = entry
      if (entry.next < 0 || entry.held || slot.cached.length < options.tokens_per_slot) continue
      generation.moved = { tokens: slot.cached.slice(), next: entry.next, saved: slots.context().save(slot.index) }
      generation.state = 'waiting'
      leave(entry)
      options.onOutgrown(generation)
    }
  }

  /** Closes a gap between the slots in use, if one is worth it: at most one sequence a step. */
  const closeGap = () => {
    const runs = runsWith(slots.all(), null)
    if (runs < 2 || running.some(({ held }) => held)) return
    for (const entry of running) {
      const { slot, generation } = entry
      if (entry.next < 0 || generation.request.max_tokens - generation.completion_tokens < moveTokensMin) continue
      slot.generation = null
      const near = nearestFree(slots.all())!
      const better = near !== slot && runsWith(slots.all(), near) < runs
      const to = better ? near : slot
      if (better) slots.copy(slot, near)
      Object.assign(to, { generation, account: slot.account })
      entry.slot = to
      if (!better) continue
      slot.used_at = ++clock
      running.sort((a, b) => a.slot.index - b.slot.index)
      return
    }
  }

  /** Chooses a token for the entry from these logits. False where it ended, or must wait, or failed with it. */
  const advance = (entry: Running, logits: Float32Array, wait_ms: number): boolean => {
    try {
      const chosen = chooseToken(entry.generation, vocab, logits, wait_ms)
      if (!chosen) {
        entry.held ??= Float32Array.from(logits)
        return false
      }
      entry.held = null
      entry.next = chosen.token
      if (!acceptToken(entry.generation, vocab, chosen)) return true
      leave(entry)
    } catch (error) {
      if (!(error instanceof ApiError)) options.onFault(error)
      fail(
        entry,
        error instanceof ApiError
          ? error
          : new ApiError('engine_failed', 'The engine failed to choose the next token of this answer.'),
      )
    }
    return false
  }

  const advanceAll = (): number => {
    let tokens = 0
    for (const entry of running) {
      if (entry.logits_at < 0) continue
      const { guessed, slot, generation } = entry
      const before = generation.completion_tokens
      let right = 0
      while (
        advance(entry, slots.context().logits(entry.logits_at + right, vocab.size), maskWaitMs) &&
        guessed[right] === entry.next
      )
        right++
      tokens += generation.completion_tokens - before
      if (guessed.length === 0) continue
      entry.speculation!.checked(guessed.length, right)
      slots.cut(slot, slot.cached.length - (guessed.length - right))
      entry.guessed = []
    }
    return tokens
  }

  /** Goes on with those that waited for a mask, where it is there. */
  const releaseHeld = (): number => {
    const held = running.filter((entry) => entry.held)
    const wait_ms = held.length === running.length ? maskWaitAloneMs : 0
    let tokens = 0
    held.forEach((entry, index) => {
      const before = entry.generation.completion_tokens
      advance(entry, entry.held!, index === 0 ? wait_ms : 0)
      tokens += entry.generation.completion_tokens - before
    })
    return tokens
  }

  const fail = (entry: Running, error: ApiError) => {
    leave(entry)
    failGeneration(entry.generation, error)
  }

  const rebuild = () => {
    for (const entry of running)
      fail(
        entry,
        new ApiError(
          'engine_failed',
          'The engine failed to compute this answer. Other requests are not affected; try again.',
        ),
      )
    slots.context().free()
    slots.replace(options.makeContext(slots.all().length))
  }

  const lane: Lane = {
    waiting: [],
    used_at_ms: performance.now(),
    running: () => running.length,
    prompts: () => lane.waiting.length + running.length - lane.answers(),
    answers: () => running.filter(({ tokens, slot }) => slot.cached.length >= tokens.length).length,
    slotCount: () => slots.all().length,
    moveInto(wider, count) {
      // Where a cache cannot be moved, its tokens are computed again.
      for (const entry of running) if (entry.next >= 0) entry.tokens = entry.slot.cached.slice()
      slots.moveInto(wider, count)
      for (const entry of running) entry.slot = slots.all()[entry.slot.index]!
    },
    lend: slots.lend,
    step(prompt_ms) {
      dropCancelled()
      admit()
      if (running.length === 0) return null
      lane.used_at_ms = performance.now()
      const released = releaseHeld()
      sendOutgrown()
      closeGap()
      const { prompt_tokens, rows } = fill(running, pace.tokens(prompt_ms))
      const context = slots.context()
      const length = context.batchLength()
      if (length === 0) return { prompt_tokens: 0, output_tokens: released, seconds: 0, failed: false }
      const failed = context.decode() !== 0
      const seconds = (performance.now() - lane.used_at_ms) / 1000
      if (failed) {
        rebuild()
        return { prompt_tokens: 0, output_tokens: 0, seconds, failed }
      }
      pace.measured(rows, Math.max(0, length - rows), seconds * 1000)
      return { prompt_tokens, output_tokens: released + advanceAll(), seconds, failed }
    },
    close() {
      for (const entry of running) fail(entry, new ApiError('engine_failed', 'The model was unloaded.'))
      for (const generation of lane.waiting)
        failGeneration(generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
      lane.waiting = []
      slots.context().free()
    },
  }
  return lane
}
