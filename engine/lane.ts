// A lane: the requests for one model with one adapter (or none), decoded together. Requests join and leave at any step.
import { ApiError } from '../contract/errors.ts'
import { acceptToken, failGeneration, type Generation } from './generation.ts'
import type { Context } from './llama/context.ts'
import type { SamplingParams } from './llama/sampler.ts'
import type { Pointer } from './llama/structs.ts'
import type { Vocab } from './llama/vocab.ts'
import { type Placement, place, type Slot } from './prefix-cache.ts'
import { createPromptPace } from './prompt-pace.ts'

export type LaneOptions = {
  vocab: Vocab
  slots: number
  /** Tokens that one step may hold, prompt and output together. */
  batch_tokens: number
  can_share_prefix: boolean
  makeContext(): Context
  makeSampler(params: SamplingParams): Pointer
  freeSampler(sampler: Pointer): void
}

export type StepStats = { prompt_tokens: number; output_tokens: number; seconds: number; failed: boolean }

export type Lane = {
  waiting: Generation[]
  running(): number
  slotCount(): number
  used_at_ms: number
  /** Admits what fits, decodes one batch and passes the new text on. Null when nothing was left to compute. */
  step(prompt_ms: number): StepStats | null
  close(): void
}

type Running = { slot: Slot; generation: Generation; sampler: Pointer; next: number; logits_at: number }

export function createLane(options: LaneOptions): Lane {
  const { vocab } = options
  let slots = makeSlots(options.slots)
  let context = options.makeContext()
  // In ascending order of slots, as the batch needs it.
  let running: Running[] = []
  const pace = createPromptPace()
  let clock = 0

  const leave = (entry: Running) => {
    options.freeSampler(entry.sampler)
    entry.slot.generation = null
    entry.slot.used_at = ++clock
    running = running.filter((other) => other !== entry)
  }

  const dropCancelled = () => {
    lane.waiting = lane.waiting.filter((generation) => !generation.cancelled && generation.state === 'waiting')
    for (const entry of running) if (entry.generation.cancelled || entry.generation.state === 'ended') leave(entry)
  }

  const admit = () => {
    const left: Generation[] = []
    for (const generation of lane.waiting) {
      const placement: Placement = running.length === slots.length ? { kind: 'wait' } : place(slots, generation, options.can_share_prefix)
      if (placement.kind === 'wait') {
        left.push(generation)
        continue
      }
      const { slot, donor, keep } = placement
      prepare(slot, donor, keep)
      slot.generation = generation
      slot.account = generation.request.account
      generation.state = 'running'
      running.push({ slot, generation, sampler: options.makeSampler(generation.request.sampling), next: -1, logits_at: -1 })
    }
    lane.waiting = left
    running.sort((a, b) => a.slot.index - b.slot.index)
  }

  const prepare = (slot: Slot, donor: Slot | null, keep: number) => {
    if (donor) {
      context.truncate(slot.index, 0)
      context.copy(donor.index, slot.index)
      slot.cached = donor.cached.slice()
    }
    const cut = slot.cached.length === keep || context.truncate(slot.index, keep)
    if (!cut) context.truncate(slot.index, 0)
    slot.cached.length = cut ? keep : 0
  }

  const fillBatch = (prompt_ms: number): number => {
    let prompt_left = Math.min(pace.tokens(prompt_ms), options.batch_tokens - slots.length)
    let prompt_tokens = 0
    for (const entry of running) {
      const { slot, generation } = entry
      const { prompt } = generation.request
      entry.logits_at = -1
      if (entry.next >= 0) {
        entry.logits_at = context.add(entry.next, slot.cached.length, slot.index, true)
        slot.cached.push(entry.next)
        continue
      }
      // Every prompt gets on by one token at least, so that none waits for a long one beside it to end.
      const end = Math.min(prompt.length, slot.cached.length + Math.max(1, prompt_left))
      const count = end - slot.cached.length
      prompt_left -= count
      prompt_tokens += count
      for (let position = end - count; position < end; position++) {
        const index = context.add(prompt[position]!, position, slot.index, position === prompt.length - 1)
        if (position === prompt.length - 1) entry.logits_at = index
        slot.cached.push(prompt[position]!)
      }
    }
    return prompt_tokens
  }

  const sampleAll = (): number => {
    let tokens = 0
    for (const entry of running) {
      if (entry.logits_at < 0) continue
      entry.next = context.sample(entry.sampler, entry.logits_at)
      tokens++
      if (acceptToken(entry.generation, vocab, entry.next)) leave(entry)
    }
    return tokens
  }

  const fail = (entry: Running, message: string) => {
    leave(entry)
    failGeneration(entry.generation, new ApiError('engine_failed', message))
  }

  const rebuild = () => {
    for (const entry of running) fail(entry, 'The engine failed to compute this answer. Other requests are not affected; try again.')
    context.free()
    slots = makeSlots(options.slots)
    context = options.makeContext()
  }

  const lane: Lane = {
    waiting: [],
    used_at_ms: performance.now(),
    running: () => running.length,
    slotCount: () => slots.length,
    step(prompt_ms) {
      dropCancelled()
      admit()
      if (running.length === 0) return null
      lane.used_at_ms = performance.now()
      const prompt_tokens = fillBatch(prompt_ms)
      const failed = context.decode() !== 0
      const seconds = (performance.now() - lane.used_at_ms) / 1000
      if (failed) {
        rebuild()
        return { prompt_tokens: 0, output_tokens: 0, seconds, failed }
      }
      pace.measured(prompt_tokens, seconds * 1000)
      return { prompt_tokens, output_tokens: sampleAll(), seconds, failed }
    },
    close() {
      for (const entry of running) fail(entry, 'The model was unloaded.')
      for (const generation of lane.waiting) failGeneration(generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
      lane.waiting = []
      context.free()
    },
  }
  return lane
}

function makeSlots(count: number): Slot[] {
  return Array.from({ length: count }, (_, index) => ({ index, cached: [], account: '', used_at: 0, generation: null }))
}
