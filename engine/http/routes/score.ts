// How likely given tokens are: what a trainer's result is compared by with what is served of it, and the
// log-probabilities of prompts.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { z } from 'zod'
import { ChatMessage } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { FairMutex } from '../../../lib/mutex.ts'
import type { Beside } from '../../batching/side-work.ts'
import { renderChat } from '../../chat/conversation.ts'
import type { Context } from '../../llama/context.ts'
import type { Models, ServedModel } from '../../models/models.ts'
import { createLogprobs, logSumExp, type PlaceLogprobs } from '../../sampling/logprobs.ts'
import { type Tokenizer, tokenizePrompt } from '../../tokenizer/tokenizer.ts'
import { readBody, sendJson } from '../io.ts'

const tokensMax = 2048
const targetsMax = 128
// A piece of a prompt that is computed in one go.
const tokensAtOnce = 64
const ScoreRequest = z.looseObject({
  model: z.string().min(1).max(256),
  rows: z
    .array(
      z.object({
        /** The conversation before the answer, to be written and tokenized as chat would. */
        prompt: z.array(ChatMessage),
        tokens: z.array(z.int().min(0)).min(2).max(tokensMax),
        /** Which of the tokens to score, in ascending order; the first token has nothing before it. */
        targets: z.array(z.int().min(1)).min(1).max(targetsMax),
      }),
    )
    .min(1)
    .max(16),
  /** Tokens that are computed in one go; 1 computes them as answers are. */
  at_once: z.int().min(1).max(tokensAtOnce).default(tokensAtOnce),
})

/**
 * Of one row: the tokens of its prompt as chat makes them (null where the template writes the time, which moves on),
 * the natural logarithm of each target's probability, its bytes in base64, and whether the last token ends an answer.
 */
export type Scored = { prompt: number[] | null; logprobs: number[]; bytes: string[]; ends: boolean }
/** Makes a context of one sequence of `tokens`, with logits for `outputs` tokens of a batch, which holds as many. */
export type Scoring = (served: ServedModel, tokens: number, outputs: number) => Promise<Context>

export type ScoreServices = { models: Models; scoring: Scoring; tokenizer: Tokenizer }
/** How many requests of an account may wait for the probabilities of their prompts. */
export const scoringWaitingMax = 16
export const tooManyScorings = () =>
  new ApiError(
    'overloaded',
    `${scoringWaitingMax} requests of yours are waiting for the probabilities of their prompts. Try again in a moment.`,
  )

export type EchoServices = { scoring: Scoring; scoringMutex: FairMutex; beside: Beside }

export async function scoreTokens(
  { models, scoring, tokenizer }: ScoreServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { model: name, rows, at_once } = await readBody(request, ScoreRequest)
  const served = models.get(name)
  const { vocab } = served.model
  for (const { tokens, targets } of rows) {
    if (tokens.some((token) => token >= vocab.size))
      throw new ApiError('invalid_request', `The vocabulary of '${name}' has ${vocab.size} tokens.`)
    if (targets.at(-1)! >= tokens.length || targets.some((target, index) => index > 0 && target <= targets[index - 1]!))
      throw new ApiError('invalid_request', 'targets must be places of tokens, in ascending order.')
  }
  const gone = new AbortController()
  response.on('close', () => gone.abort())
  // The service itself asks, about rows that it has.
  const unbounded = {
    account: '',
    signal: gone.signal,
    tokens_max: Number.POSITIVE_INFINITY,
    tooLong: () => new ApiError('context_length_exceeded', ''),
  }
  served.users++
  try {
    const longest = Math.max(...rows.map(({ tokens }) => tokens.length))
    const context = await scoring(served, longest, tokensAtOnce)
    try {
      const scored: Scored[] = []
      let least_ms = Number.POSITIVE_INFINITY
      for (const { prompt, tokens, targets } of rows) {
        const timeless = !/strftime_now/.test(served.model.chat_template ?? '')
        const logprobs: number[] = []
        const visit = (place: number, logits: Float32Array) =>
          logprobs.push(logits[tokens[place]!]! - logSumExp(logits))
        least_ms = Math.min(
          least_ms,
          await eachLogits(context, tokens, new Set(targets), vocab.size, visit, gone.signal, at_once),
        )
        scored.push({
          prompt: timeless ? await tokenizePrompt(tokenizer, vocab, renderChat(served.model, prompt), unbounded) : null,
          logprobs,
          bytes: targets.map((place) => Buffer.from(vocab.bytes(tokens[place]!)).toString('base64')),
          ends: vocab.isEndOfGeneration(tokens.at(-1)!),
        })
      }
      sendJson(response, 200, { rows: scored, least_ms })
    } finally {
      context.free()
    }
  } finally {
    served.users--
  }
}

type Asker = { account: string; signal: AbortSignal }

/**
 * The log-probabilities of each token of a prompt, with the likeliest `top` at its place. One prompt at a time has a
 * context for it.
 */
export function promptPlaces(
  services: EchoServices,
  served: ServedModel,
  prompt: number[],
  top: number,
  { account, signal }: Asker,
): Promise<PlaceLogprobs[]> {
  return services.scoringMutex(account, () => readPlaces(services, served, prompt, top, signal), signal)
}

async function readPlaces(
  { scoring, beside }: EchoServices,
  served: ServedModel,
  prompt: number[],
  top: number,
  signal: AbortSignal,
): Promise<PlaceLogprobs[]> {
  const places: PlaceLogprobs[] = [{ token: prompt[0]!, logprob: null, top: [] }]
  if (prompt.length === 1) return places
  const reader = createLogprobs(top)
  if (signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  const context = await scoring(served, prompt.length, tokensAtOnce)
  try {
    const wanted = new Set(prompt.keys())
    const visit = (place: number, logits: Float32Array) => places.push(reader.read(logits)(prompt[place]!))
    await eachLogits(context, prompt, wanted, served.model.vocab.size, visit, signal, tokensAtOnce, beside)
  } finally {
    context.free()
  }
  return places
}

/**
 * Computes `tokens` from an empty cache and visits the logits from which each token of the `wanted` places would be
 * chosen, in order. Returns how long the fastest piece took, in milliseconds: the others may have had less of the
 * machine.
 */
async function eachLogits(
  context: Context,
  tokens: readonly number[],
  wanted: ReadonlySet<number>,
  vocabSize: number,
  visit: (place: number, logits: Float32Array) => void,
  signal: AbortSignal,
  atOnce = tokensAtOnce,
  beside: Beside | null = null,
): Promise<number> {
  context.truncate(0, 0)
  let least_ms = Number.POSITIVE_INFINITY
  let last = 0
  for (const place of wanted) last = Math.max(last, place)
  for (let from = 0; from < last; from += atOnce) {
    const began = performance.now()
    const to = Math.min(last, from + atOnce)
    for (let place = from; place < to; place++) context.add(tokens[place]!, place, 0, wanted.has(place + 1))
    if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these tokens.')
    for (let place = from; place < to; place++)
      if (wanted.has(place + 1)) visit(place + 1, context.logits(place - from, vocabSize))
    least_ms = Math.min(least_ms, performance.now() - began)
    // Streams go on in between, and a caller who has left wants no more.
    await nextTurn()
    await beside?.rest(performance.now() - began)
    if (signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  }
  return least_ms
}
