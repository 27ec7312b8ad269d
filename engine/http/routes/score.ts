// Log-probabilities of given tokens: to compare a served model with its trainer, and of prompts (echo).
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { z } from 'zod'
import { ChatMessage } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { FairQueue } from '../../../lib/fair-queue.ts'
import type { SideWork } from '../../batching/side-work.ts'
import { renderChat } from '../../chat/conversation.ts'
import { findMarkers, picturesOf, showPictures } from '../../chat/pictures.ts'
import { readTemplate } from '../../chat/template.ts'
import { type Context, microBatchTokensMax } from '../../llama/context.ts'
import type { Models, ServedModel } from '../../models/models.ts'
import { createLogprobReader, logSumExp, type TokenLogprobs } from '../../sampling/logprobs.ts'
import { type Tokenizer, tokenizePrompt } from '../../tokenizer/tokenizer.ts'
import type { Features, PictureFeatures } from '../../vision/features.ts'
import { atPicture, pictureFile, pictureTextMax } from '../../vision/picture-files.ts'
import { isPictureToken, type PictureSpan, positionsIn, spanAt } from '../../vision/picture-tokens.ts'
import { bodyBytesMax, readBody, sendJson } from '../io.ts'

const tokensMax = 2048
const targetsMax = 128
// Largest batch of prompt tokens.
const batchTokensMax = 64
/** In tokens of requests and answers: a vector of a picture. */
const vectorToken = -1
const ScoreRequest = z.looseObject({
  model: z.string().min(1).max(256),
  rows: z
    .array(
      z.object({
        /** The conversation before the answer; rendered and tokenized like a chat request, with its pictures. */
        prompt: z.array(ChatMessage),
        /** With -1 for each vector of a picture, in the order of the prompt's pictures. */
        tokens: z.array(z.int().min(vectorToken)).min(2).max(tokensMax),
        /**
         * Positions of the tokens to score, ascending; the first token, and one after a vector, has no predecessor to
         * score it by.
         */
        targets: z.array(z.int().min(1)).min(1).max(targetsMax),
      }),
    )
    .min(1)
    .max(16),
  /** Batch size in tokens; 1 computes them as generation does. */
  at_once: z.int().min(1).max(batchTokensMax).default(batchTokensMax),
})

/**
 * Result of one row: prompt tokens as chat makes them, -1 for a picture's vector (null if the template writes the
 * current time), the natural log-probability of each target, its bytes in base64, and whether the last token ends an
 * answer.
 */
interface ScoredRow {
  prompt: number[] | null
  logprobs: number[]
  bytes: string[]
  ends: boolean
}
/**
 * Creates a context for one sequence of `tokens`, with batches of `outputs` tokens that may all have logits.
 * `batch_tokens`: most vectors of a batch.
 */
type CreateScoringContext = (
  served: ServedModel,
  tokens: number,
  outputs: number,
  batch_tokens?: number,
) => Promise<Context>

/** The log-probabilities of a prompt, of the server that computes the model; null: this process does. */
type RemoteLogprobs = (
  served: ServedModel,
  tokens: readonly number[],
  top: number,
  signal: AbortSignal,
) => Promise<TokenLogprobs[]> | null

export interface ScoreServices {
  models: Models
  createScoringContext: CreateScoringContext
  remoteLogprobs: RemoteLogprobs
  tokenizer: Tokenizer
  features: Features
}
/** Limit of waiting echo requests per account. */
export const scoringWaitingMax = 16
export const tooManyScorings = () =>
  new ApiError(
    'overloaded',
    `${scoringWaitingMax} requests of yours are waiting for the probabilities of their prompts. ` +
      'Try again in a moment.',
  )

export interface EchoServices {
  createScoringContext: CreateScoringContext
  remoteLogprobs: RemoteLogprobs
  scoringQueue: FairQueue
  sideWork: SideWork
}

export async function scoreTokens(
  { models, createScoringContext, remoteLogprobs, tokenizer, features }: ScoreServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { model: name, rows, at_once } = await readBody(request, ScoreRequest, bodyBytesMax + pictureTextMax)
  const served = models.get(name)
  const { vocab } = served.model
  for (const { tokens, targets } of rows) {
    if (tokens.some((token) => token >= vocab.size))
      throw new ApiError('invalid_request', `The vocabulary of '${name}' has ${vocab.size} tokens.`)
    if (targets.at(-1)! >= tokens.length || targets.some((target, index) => index > 0 && target <= targets[index - 1]!))
      throw new ApiError('invalid_request', 'targets must be positions of tokens, in ascending order.')
    if (targets.some((target) => tokens[target] === vectorToken || tokens[target - 1] === vectorToken))
      throw new ApiError('invalid_request', 'targets must be tokens after tokens, not vectors of pictures.')
  }
  const disconnected = new AbortController()
  response.on('close', () => disconnected.abort())
  // Unbounded: the service calls this with its own rows.
  const unbounded = {
    account: '',
    background: false,
    signal: disconnected.signal,
    tokens_max: Number.POSITIVE_INFINITY,
    tooLong: () => new ApiError('context_length_exceeded', ''),
  }
  served.active_requests++
  try {
    const shown: ShownPictures[] = []
    for (const { prompt, tokens } of rows)
      shown.push(await picturesIn(served, features, prompt, tokens, { account: '', signal: disconnected.signal }))
    const longest = Math.max(...rows.map(({ tokens }) => tokens.length))
    const sees = shown.some(({ pictures }) => pictures.length > 0)
    const context = served.remote
      ? null
      : await createScoringContext(served, longest, batchTokensMax, sees ? microBatchTokensMax : batchTokensMax)
    try {
      const scored: ScoredRow[] = []
      let least_ms = Number.POSITIVE_INFINITY
      for (const [index, { prompt, tokens, targets }] of rows.entries()) {
        const { pictures, sequence } = shown[index]!
        const isTimeless = !/strftime_now/.test(served.model.chat_template ?? '')
        const logprobs: number[] = []
        const visit = (position: number, logits: Float32Array) =>
          logprobs.push(logits[tokens[position]!]! - logSumExp(logits))
        const began_ms = performance.now()
        const remote = await remoteLogprobs(served, tokens, 0, disconnected.signal)
        if (remote) logprobs.push(...targets.map((position) => remote[position]!.logprob ?? Number.NEGATIVE_INFINITY))
        const took_ms = context
          ? await forEachLogits(context, sequence, new Set(targets), vocab.size, visit, disconnected.signal, at_once)
          : performance.now() - began_ms
        least_ms = Math.min(least_ms, took_ms)
        const written = () =>
          tokenizePrompt(tokenizer, vocab, renderChat(served.model, prompt, pictures.length > 0), unbounded)
        scored.push({
          prompt: isTimeless ? withVectors(served, await written(), pictures) : null,
          logprobs,
          bytes: targets.map((position) => Buffer.from(vocab.bytes(tokens[position]!)).toString('base64')),
          ends: vocab.isEndOfGeneration(tokens.at(-1)!),
        })
      }
      sendJson(response, 200, { rows: scored, least_ms, eight_bits: served.model.is_eight_bit_copy })
    } finally {
      context?.free()
    }
  } finally {
    served.active_requests--
  }
}

interface Caller {
  account: string
  signal: AbortSignal
}
/** Tokens to compute, pictures in their place. */
interface TokenSequence {
  tokens: readonly number[]
  spans: readonly PictureSpan[]
}
interface ShownPictures {
  pictures: PictureFeatures[]
  sequence: TokenSequence
}

/**
 * The pictures of a prompt, and `tokens` with their vectors. Throws invalid_request if these have other vectors than
 * the pictures; parameter_not_supported if the model sees none.
 */
async function picturesIn(
  { model, projector }: ServedModel,
  features: Features,
  prompt: readonly ChatMessage[],
  tokens: readonly number[],
  caller: Caller,
): Promise<ShownPictures> {
  const parts = picturesOf(prompt)
  const places = tokens.flatMap((token, index) => (token === vectorToken ? [index] : []))
  // Refuses pictures as a chat does.
  if (parts.length > 0 && !projector) renderChat(model, prompt)
  const pictures: PictureFeatures[] = []
  for (const { url, param } of parts)
    pictures.push(await atPicture(param, features.of(projector!, pictureFile(url, param), caller)))
  const named = [...tokens]
  const spans: PictureSpan[] = []
  let vectors = 0
  for (const picture of pictures)
    for (const span of picture.spans) {
      const start = places[vectors]
      const isThere = start !== undefined && places[vectors + span.n_tokens - 1] === start + span.n_tokens - 1
      if (!isThere) throw otherVectors(pictures, places.length)
      for (let index = 0; index < span.n_tokens; index++) named[start + index] = picture.tokens[span.start + index]!
      spans.push({ ...span, start })
      vectors += span.n_tokens
    }
  if (vectors !== places.length) throw otherVectors(pictures, places.length)
  return { pictures, sequence: { tokens: named, spans } }
}

function otherVectors(pictures: readonly PictureFeatures[], actual: number) {
  const vectors = pictures.flatMap(({ spans }) => spans).reduce((sum, { n_tokens }) => sum + n_tokens, 0)
  return new ApiError(
    'invalid_request',
    `The engine makes ${vectors} vectors of the pictures of a row, which has ${actual} in another order or number.`,
  )
}

/** A prompt's tokens with -1 for each vector of its pictures. */
function withVectors({ model }: ServedModel, tokens: number[], pictures: readonly PictureFeatures[]): number[] {
  if (pictures.length === 0) return tokens
  const marker = readTemplate(model).sight.marker!
  const { prompt } = showPictures(tokens, findMarkers(tokens, marker, pictures.length), marker.length, pictures)
  return prompt.map((token) => (isPictureToken(token) ? vectorToken : token))
}

/**
 * Log-probabilities of each token of a prompt, with the `top` likeliest at each position. Only one prompt at a time has
 * a scoring context.
 */
export function promptLogprobs(
  services: EchoServices,
  served: ServedModel,
  prompt: number[],
  top: number,
  { account, signal }: Caller,
): Promise<TokenLogprobs[]> {
  return services.scoringQueue(account, () => readPromptLogprobs(services, served, prompt, top, signal), signal)
}

async function readPromptLogprobs(
  { createScoringContext, remoteLogprobs, sideWork }: EchoServices,
  served: ServedModel,
  prompt: number[],
  top: number,
  signal: AbortSignal,
): Promise<TokenLogprobs[]> {
  const tokenLogprobs: TokenLogprobs[] = [{ token: prompt[0]!, logprob: null, top: [] }]
  if (prompt.length === 1) return tokenLogprobs
  const reader = createLogprobReader(top)
  if (signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  const remote = await remoteLogprobs(served, prompt, top, signal)
  if (remote) return remote
  const context = await createScoringContext(served, prompt.length, batchTokensMax)
  try {
    const positions = new Set(prompt.keys())
    const visit = (position: number, logits: Float32Array) => tokenLogprobs.push(reader.read(logits)(prompt[position]!))
    const sequence = { tokens: prompt, spans: [] }
    await forEachLogits(context, sequence, positions, served.model.vocab.size, visit, signal, batchTokensMax, sideWork)
  } finally {
    context.free()
  }
  return tokenLogprobs
}

/**
 * Computes `tokens` from an empty cache. Calls `visit` in order with the logits that predict each token at `places`.
 * Returns the time of the fastest batch in milliseconds; slower ones may have shared the machine.
 */
async function forEachLogits(
  context: Context,
  { tokens, spans }: TokenSequence,
  places: ReadonlySet<number>,
  vocabSize: number,
  visit: (position: number, logits: Float32Array) => void,
  signal: AbortSignal,
  batchTokens = batchTokensMax,
  sideWork: SideWork | null = null,
): Promise<number> {
  context.truncate(0, 0)
  let least_ms = Number.POSITIVE_INFINITY
  let last = 0
  for (const place of places) last = Math.max(last, place)
  for (let from = 0, position = 0, to: number; from < last; from = to) {
    const began = performance.now()
    if (isPictureToken(tokens[from]!)) {
      const span = spanAt(spans, from)
      // A part with positions of its own counts them from its start.
      const first_position = span.positions
        ? position - positionsIn(tokens.slice(span.start, from), from - span.start)
        : position
      to = addVectors(context, span, from, first_position)
      if (context.decodeVectors(!span.is_non_causal) !== 0) throw notComputed()
    } else {
      const picture = spans.find(({ start }) => start > from)
      to = Math.min(last, from + batchTokens, picture?.start ?? last)
      for (let at = from; at < to; at++) context.add(tokens[at]!, position + at - from, 0, places.has(at + 1))
      if (context.decode() !== 0) throw notComputed()
      for (let at = from; at < to; at++) if (places.has(at + 1)) visit(at + 1, context.logits(at - from, vocabSize))
    }
    position += positionsIn(tokens.slice(from, to), to - from)
    least_ms = Math.min(least_ms, performance.now() - began)
    // Let streams run in between, and stop if the caller has disconnected.
    await yieldToEventLoop()
    await sideWork?.yieldAfter(performance.now() - began)
    if (signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  }
  return least_ms
}

const notComputed = () => new ApiError('engine_failed', 'The engine could not compute these tokens.')

/** Adds vectors of a picture's part from the token `from` on. Returns the token after them. */
function addVectors(context: Context, span: PictureSpan, from: number, first_position: number): number {
  const { start, vector_length, positions, is_non_causal } = span
  const first = from - start
  const n_tokens = is_non_causal ? span.n_tokens : Math.min(span.n_tokens - first, microBatchTokensMax)
  context.addVectors(
    {
      n_tokens,
      vectors: span.vectors.subarray(first * vector_length, (first + n_tokens) * vector_length),
      positions: positions?.subarray(3 * first, 3 * (first + n_tokens)) ?? null,
      first_position,
    },
    0,
  )
  return from + n_tokens
}
