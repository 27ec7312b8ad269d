// One generation: from the prompt's tokens to the end of the answer, across all runners that compute it.
import { ApiError } from '../../contract/errors.ts'
import type { FinishReason } from '../../contract/sampling.ts'
import type { GrammarSession } from '../grammar/grammars.ts'
import type { SavedSequence } from '../llama/context.ts'
import type { Vocab } from '../llama/vocab.ts'
import { createLogprobReader, type LogprobReader, type TokenLogprobs } from '../sampling/logprobs.ts'
import { createSampler, type Sampler, type SamplingParams } from '../sampling/sampler.ts'
import { createTextOutput, type TextOutput } from '../sampling/stop-sequences.ts'
import { isPictureToken, type PictureSpan } from '../vision/picture-tokens.ts'

export interface GenerationRequest {
  /** Tokens of the vocabulary, and those of pictures, which `pictures` has the vectors of. */
  prompt: number[]
  pictures: readonly PictureSpan[]
  /** At least 1. Prompt and output together fit the longest slots of the model. */
  max_tokens: number
  /** Sequences that end the text, wherever they are in it. */
  stop: readonly string[]
  sampling: SamplingParams
  /** How many likeliest tokens to report at each position; null: no log-probabilities. */
  top_logprobs: number | null
  /** Whether the tokens that end the answer have log-probabilities too, though they have no text in it. */
  end_logprob?: boolean
  /** Tokens that end the answer beside the model's own. */
  stop_tokens?: ReadonlySet<number>
  /** Whether the model's own end of an answer is a token like others. */
  ignore_end?: boolean
  /** Control tokens that are output as text, with their bytes. */
  control_texts: ReadonlyMap<number, Buffer> | null
  /** Constrains the answer. The generation closes it. */
  grammar: GrammarSession | null
  /** The prefix cache is shared within an account only: timing would reveal the prompts of other accounts. */
  account: string
  /** Computed only while no other request is. Such a generation may lose its slot and get another one later. */
  background: boolean
}

interface GenerationEnd {
  finish_reason: FinishReason
  completion_tokens: number
  cached_tokens: number
}

export interface GenerationEvents {
  /** It has a slot. Prefill of all but the cached tokens starts. */
  onStart(start: { cached_tokens: number; queue_ms: number }): void
  /** Its first token is sampled; the text may follow later. */
  onFirstToken?(): void
  /**
   * `logprobs`: one entry for each token of the text, if the request wants them. Returns whether a stop sequence in the
   * answer's content ends it here.
   */
  onText(text: string, logprobs: TokenLogprobs[]): boolean
  onEnd(end: GenerationEnd): void
  onError(error: ApiError): void
  /** Its caller has left. */
  onAbandoned?(): void
}

/** State of a generation that outgrew its slot and migrates to a runner with longer slots. */
interface Migration {
  /** All tokens that were in its cache. */
  tokens: number[]
  /** The token sampled last, which was not in the cache. */
  next_token: number
  /** The KV cache itself; null: it must be computed again. */
  saved: SavedSequence | null
}

export interface Generation {
  request: GenerationRequest
  events: GenerationEvents
  migration: Migration | null
  sampler: Sampler
  logprob_reader: LogprobReader | null
  output: TextOutput
  /** Log-probabilities of tokens whose text is not sent yet. `start` is the output offset of their bytes. */
  unsent_logprobs: { token_logprobs: TokenLogprobs; start: number }[]
  bytes_generated: number
  bytes_sent: number
  completion_tokens: number
  /** Tokens of the prompt that came from the prefix cache. */
  cached_tokens: number
  submitted_at_ms: number
  state: 'waiting' | 'running' | 'ended'
  cancelled: boolean
}

export function createGeneration(request: GenerationRequest, events: GenerationEvents): Generation {
  const { prompt, pictures, sampling } = request
  const written = pictures.length > 0 ? prompt.filter((token) => !isPictureToken(token)) : prompt
  return {
    request,
    events,
    migration: null,
    sampler: createSampler(sampling, written),
    logprob_reader: request.top_logprobs === null ? null : createLogprobReader(request.top_logprobs),
    output: createTextOutput(request.stop),
    unsent_logprobs: [],
    bytes_generated: 0,
    bytes_sent: 0,
    completion_tokens: 0,
    cached_tokens: 0,
    submitted_at_ms: performance.now(),
    state: 'waiting',
    cancelled: false,
  }
}

interface SampledToken {
  token: number
  token_logprobs: TokenLogprobs | null
}

/**
 * Samples the next token from `logits`, which it changes. Null if the grammar's mask is not ready within `wait_ms`;
 * `logits` are unchanged then. Throws ApiError if the grammar has failed.
 */
export function sampleToken(
  { request, sampler, logprob_reader }: Generation,
  vocab: Vocab,
  logits: Float32Array,
  wait_ms: number,
): SampledToken | null {
  const { grammar } = request
  const mask = grammar ? grammar.mask(wait_ms) : null
  if (grammar && !mask) return null
  const logprobsOf = logprob_reader?.read(logits)
  const token = sampler.sample(logits, mask)
  if (token < 0) throw new ApiError('engine_failed', 'The model gave no probabilities for this prompt.')
  if (grammar && !vocab.isEndOfGeneration(token)) grammar.accept(token)
  return { token, token_logprobs: logprobsOf?.(token) ?? null }
}

/** Appends a sampled token, sends its text, and returns whether the generation has ended. */
export function acceptToken(generation: Generation, vocab: Vocab, { token, token_logprobs }: SampledToken): boolean {
  // The end-of-generation token counts too, as it does in vLLM.
  generation.completion_tokens++
  if (generation.completion_tokens === 1) generation.events.onFirstToken?.()
  const { stop_tokens, ignore_end } = generation.request
  if (stop_tokens?.has(token) || (!ignore_end && vocab.isEndOfGeneration(token))) {
    if (token_logprobs && generation.request.end_logprob)
      generation.unsent_logprobs.push({ token_logprobs, start: generation.bytes_generated })
    return flushAndEnd(generation, 'stop')
  }
  const bytes = generation.request.control_texts?.get(token) ?? vocab.bytes(token)
  if (token_logprobs) generation.unsent_logprobs.push({ token_logprobs, start: generation.bytes_generated })
  generation.bytes_generated += bytes.length
  const { text, stopped } = generation.output.push(bytes)
  if (sendText(generation, text) || stopped) {
    if (generation.request.end_logprob) generation.events.onText('', takeLogprobs(generation))
    return end(generation, 'stop')
  }
  return generation.completion_tokens >= generation.request.max_tokens ? flushAndEnd(generation, 'length') : false
}

/** Ends a generation whose last token is accepted. Does nothing if it has ended. */
export function finishGeneration(generation: Generation, finish_reason: FinishReason): void {
  if (generation.state !== 'ended') flushAndEnd(generation, finish_reason)
}

/** Ends a generation with an error for its caller. Does nothing if it has ended. */
export function failGeneration(generation: Generation, error: ApiError): void {
  if (generation.state === 'ended') return
  generation.state = 'ended'
  generation.request.grammar?.close()
  if (!generation.cancelled) generation.events.onError(error)
}

/** Ends a generation whose caller disconnected. */
export function abandonGeneration(generation: Generation): void {
  generation.state = 'ended'
  generation.request.grammar?.close()
  generation.events.onAbandoned?.()
}

/** Returns whether the answer ends here. */
function sendText(generation: Generation, text: string): boolean {
  if (text === '') return false
  generation.bytes_sent += Buffer.byteLength(text)
  const firstUnsent = generation.unsent_logprobs.findIndex(({ start }) => start >= generation.bytes_sent)
  return generation.events.onText(text, takeLogprobs(generation, firstUnsent < 0 ? undefined : firstUnsent))
}

/** Removes and returns the first `count` unsent log-probabilities, or all. */
function takeLogprobs({ unsent_logprobs }: Generation, count = unsent_logprobs.length): TokenLogprobs[] {
  return unsent_logprobs.splice(0, count).map(({ token_logprobs }) => token_logprobs)
}

/** Sends the text held back as a possible stop sequence, then ends. */
function flushAndEnd(generation: Generation, finish_reason: FinishReason): true {
  const { text, stopped } = generation.output.finish()
  const logprobs = takeLogprobs(generation)
  const stopsHere = (text !== '' || logprobs.length > 0) && generation.events.onText(text, logprobs)
  return end(generation, stopped || stopsHere ? 'stop' : finish_reason)
}

function end(generation: Generation, finish_reason: FinishReason): true {
  generation.state = 'ended'
  generation.request.grammar?.close()
  const { completion_tokens, cached_tokens } = generation
  generation.events.onEnd({ finish_reason, completion_tokens, cached_tokens })
  return true
}
