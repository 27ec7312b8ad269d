// One answer, from the prompt's tokens to its last word, whichever lane computes it.
import { ApiError } from '../../contract/errors.ts'
import type { FinishReason } from '../../contract/sampling.ts'
import type { GrammarSession } from '../grammar/grammars.ts'
import type { SavedSequence } from '../llama/context.ts'
import type { Vocab } from '../llama/vocab.ts'
import { createLogprobs, type Logprobs, type PlaceLogprobs } from '../sampling/logprobs.ts'
import { createSampler, type Sampler, type SamplingParams } from '../sampling/sampler.ts'
import { createTextOutput, type TextOutput } from '../sampling/text-output.ts'

export type GenerationRequest = {
  prompt: number[]
  /** At least 1; prompt and output together fit the lane that gets it. */
  max_tokens: number
  stop: string[]
  sampling: SamplingParams
  /** How many likely tokens to tell of each place; null tells nothing. */
  top_logprobs: number | null
  /** Control tokens that are passed on as text. */
  control_texts: ReadonlyMap<number, Buffer> | null
  /** Holds the answer to its form; the generation closes it. */
  grammar: GrammarSession | null
  /**
   * Beginnings of prompts are computed once and shared within an account only: across accounts, the timing would tell
   * what others ask.
   */
  account: string
}

export type GenerationEnd = { finish_reason: FinishReason; completion_tokens: number; cached_tokens: number }

export type GenerationEvents = {
  /** It has a slot: its prompt is computed from here on, apart from the tokens that were cached. */
  onStart(start: { cached_tokens: number; queue_ms: number }): void
  /** `places` are the tokens that the text is made of, where they were asked for. */
  onText(text: string, places: PlaceLogprobs[]): void
  onEnd(end: GenerationEnd): void
  onError(error: ApiError): void
}

/** What a generation brings along from a lane whose slots became too short for it. */
export type Moved = {
  /** All tokens that were in its cache. */
  tokens: number[]
  /** The token chosen last, which was not. */
  next: number
  /** The cache itself; null where it must be computed again. */
  saved: SavedSequence | null
}

export type Generation = {
  request: GenerationRequest
  events: GenerationEvents
  moved: Moved | null
  sampler: Sampler
  logprobs: Logprobs | null
  output: TextOutput
  /** Tokens whose text has not been passed on yet, with where in the output their bytes begin. */
  places: { place: PlaceLogprobs; start: number }[]
  bytes_written: number
  bytes_passed: number
  completion_tokens: number
  /** Tokens of the prompt that were taken from a cache. */
  cached_tokens: number
  submitted_at_ms: number
  state: 'waiting' | 'running' | 'ended'
  cancelled: boolean
}

export function createGeneration(request: GenerationRequest, events: GenerationEvents): Generation {
  return {
    request,
    events,
    moved: null,
    sampler: createSampler(request.sampling, request.prompt),
    logprobs: request.top_logprobs === null ? null : createLogprobs(request.top_logprobs),
    output: createTextOutput(request.stop),
    places: [],
    bytes_written: 0,
    bytes_passed: 0,
    completion_tokens: 0,
    cached_tokens: 0,
    submitted_at_ms: performance.now(),
    state: 'waiting',
    cancelled: false,
  }
}

export type Chosen = { token: number; place: PlaceLogprobs | null }

/**
 * Chooses the next token from `logits`, which it changes. Null where the grammar's mask is not ready within `wait_ms`;
 * `logits` are unchanged then. Throws ApiError where the grammar has failed.
 */
export function chooseToken(
  { request, sampler, logprobs }: Generation,
  vocab: Vocab,
  logits: Float32Array,
  wait_ms: number,
): Chosen | null {
  const { grammar } = request
  const mask = grammar ? grammar.mask(wait_ms) : null
  if (grammar && !mask) return null
  const placeOf = logprobs?.read(logits)
  const token = sampler.sample(logits, mask)
  if (token < 0) throw new ApiError('engine_failed', 'The model gave no probabilities for this prompt.')
  if (grammar && !vocab.isEndOfGeneration(token)) grammar.accept(token)
  return { token, place: placeOf?.(token) ?? null }
}

/** Takes one chosen token, passes its text on, and returns whether the generation has ended with it. */
export function acceptToken(generation: Generation, vocab: Vocab, { token, place }: Chosen): boolean {
  // The token that ends the answer was generated too, and counts, as it does in vLLM.
  generation.completion_tokens++
  if (vocab.isEndOfGeneration(token)) return finish(generation, 'stop')
  const bytes = generation.request.control_texts?.get(token) ?? vocab.bytes(token)
  if (place) generation.places.push({ place, start: generation.bytes_written })
  generation.bytes_written += bytes.length
  const { text, stopped } = generation.output.push(bytes)
  pass(generation, text)
  if (stopped) return end(generation, 'stop')
  return generation.completion_tokens >= generation.request.max_tokens ? finish(generation, 'length') : false
}

/** Ends a generation that has not ended yet, with an error for its caller. */
export function failGeneration(generation: Generation, error: ApiError): void {
  if (generation.state === 'ended') return
  generation.state = 'ended'
  generation.request.grammar?.close()
  if (!generation.cancelled) generation.events.onError(error)
}

/** Ends one whose caller has left. */
export function abandonGeneration(generation: Generation): void {
  generation.state = 'ended'
  generation.request.grammar?.close()
}

function pass(generation: Generation, text: string): void {
  if (text === '') return
  generation.bytes_passed += Buffer.byteLength(text)
  const waiting = generation.places.findIndex(({ start }) => start >= generation.bytes_passed)
  const places = generation.places.splice(0, waiting < 0 ? generation.places.length : waiting)
  generation.events.onText(
    text,
    places.map(({ place }) => place),
  )
}

/** Ends with what was held back. */
function finish(generation: Generation, finish_reason: FinishReason): true {
  const rest = generation.output.finish()
  const places = generation.places.splice(0).map(({ place }) => place)
  if (rest !== '' || places.length > 0) generation.events.onText(rest, places)
  return end(generation, finish_reason)
}

function end(generation: Generation, finish_reason: FinishReason): true {
  generation.state = 'ended'
  generation.request.grammar?.close()
  const { completion_tokens, cached_tokens } = generation
  generation.events.onEnd({ finish_reason, completion_tokens, cached_tokens })
  return true
}
