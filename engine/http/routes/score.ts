// Log-probabilities of given tokens: to compare a served model with its trainer, and of prompts (echo).
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { z } from 'zod'
import { ChatMessage } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { FairMutex } from '../../../lib/mutex.ts'
import type { SideWork } from '../../batching/side-work.ts'
import { renderChat } from '../../chat/conversation.ts'
import type { Context } from '../../llama/context.ts'
import type { Models, ServedModel } from '../../models/models.ts'
import { createLogprobReader, logSumExp, type TokenLogprobs } from '../../sampling/logprobs.ts'
import { type Tokenizer, tokenizePrompt } from '../../tokenizer/tokenizer.ts'
import { readBody, sendJson } from '../io.ts'

const tokensMax = 2048
const targetsMax = 128
// Largest batch of prompt tokens.
const batchTokensMax = 64
const ScoreRequest = z.looseObject({
  model: z.string().min(1).max(256),
  rows: z
    .array(
      z.object({
        /** The conversation before the answer; rendered and tokenized like a chat request. */
        prompt: z.array(ChatMessage),
        tokens: z.array(z.int().min(0)).min(2).max(tokensMax),
        /** Positions of the tokens to score, ascending; the first token has no predecessor to score it by. */
        targets: z.array(z.int().min(1)).min(1).max(targetsMax),
      }),
    )
    .min(1)
    .max(16),
  /** Batch size in tokens; 1 computes them as generation does. */
  at_once: z.int().min(1).max(batchTokensMax).default(batchTokensMax),
})

/**
 * Result of one row: prompt tokens as chat makes them (null if the template writes the current time), the natural
 * log-probability of each target, its bytes in base64, and whether the last token ends an answer.
 */
export type ScoredRow = { prompt: number[] | null; logprobs: number[]; bytes: string[]; ends: boolean }
/** Creates a context for one sequence of `tokens`, with batches of `outputs` tokens that may all have logits. */
export type CreateScoringContext = (served: ServedModel, tokens: number, outputs: number) => Promise<Context>

export type ScoreServices = { models: Models; createScoringContext: CreateScoringContext; tokenizer: Tokenizer }
/** Limit of waiting echo requests per account. */
export const scoringWaitingMax = 16
export const tooManyScorings = () =>
  new ApiError(
    'overloaded',
    `${scoringWaitingMax} requests of yours are waiting for the probabilities of their prompts. ` +
      'Try again in a moment.',
  )

export type EchoServices = { createScoringContext: CreateScoringContext; scoringMutex: FairMutex; sideWork: SideWork }

export async function scoreTokens(
  { models, createScoringContext, tokenizer }: ScoreServices,
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
      throw new ApiError('invalid_request', 'targets must be positions of tokens, in ascending order.')
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
    const longest = Math.max(...rows.map(({ tokens }) => tokens.length))
    const context = await createScoringContext(served, longest, batchTokensMax)
    try {
      const scored: ScoredRow[] = []
      let least_ms = Number.POSITIVE_INFINITY
      for (const { prompt, tokens, targets } of rows) {
        const isTimeless = !/strftime_now/.test(served.model.chat_template ?? '')
        const logprobs: number[] = []
        const visit = (position: number, logits: Float32Array) =>
          logprobs.push(logits[tokens[position]!]! - logSumExp(logits))
        least_ms = Math.min(
          least_ms,
          await forEachLogits(context, tokens, new Set(targets), vocab.size, visit, disconnected.signal, at_once),
        )
        scored.push({
          prompt: isTimeless
            ? await tokenizePrompt(tokenizer, vocab, renderChat(served.model, prompt), unbounded)
            : null,
          logprobs,
          bytes: targets.map((position) => Buffer.from(vocab.bytes(tokens[position]!)).toString('base64')),
          ends: vocab.isEndOfGeneration(tokens.at(-1)!),
        })
      }
      sendJson(response, 200, { rows: scored, least_ms })
    } finally {
      context.free()
    }
  } finally {
    served.active_requests--
  }
}

type Caller = { account: string; signal: AbortSignal }

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
  return services.scoringMutex(account, () => readPromptLogprobs(services, served, prompt, top, signal), signal)
}

async function readPromptLogprobs(
  { createScoringContext, sideWork }: EchoServices,
  served: ServedModel,
  prompt: number[],
  top: number,
  signal: AbortSignal,
): Promise<TokenLogprobs[]> {
  const tokenLogprobs: TokenLogprobs[] = [{ token: prompt[0]!, logprob: null, top: [] }]
  if (prompt.length === 1) return tokenLogprobs
  const reader = createLogprobReader(top)
  if (signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  const context = await createScoringContext(served, prompt.length, batchTokensMax)
  try {
    const positions = new Set(prompt.keys())
    const visit = (position: number, logits: Float32Array) => tokenLogprobs.push(reader.read(logits)(prompt[position]!))
    await forEachLogits(context, prompt, positions, served.model.vocab.size, visit, signal, batchTokensMax, sideWork)
  } finally {
    context.free()
  }
  return tokenLogprobs
}

/**
 * Computes `tokens` from an empty cache. Calls `visit` in order with the logits that predict each token at `positions`.
 * Returns the time of the fastest batch in milliseconds; slower ones may have shared the machine.
 */
async function forEachLogits(
  context: Context,
  tokens: readonly number[],
  positions: ReadonlySet<number>,
  vocabSize: number,
  visit: (position: number, logits: Float32Array) => void,
  signal: AbortSignal,
  batchTokens = batchTokensMax,
  sideWork: SideWork | null = null,
): Promise<number> {
  context.truncate(0, 0)
  let least_ms = Number.POSITIVE_INFINITY
  let last = 0
  for (const position of positions) last = Math.max(last, position)
  for (let from = 0; from < last; from += batchTokens) {
    const began = performance.now()
    const to = Math.min(last, from + batchTokens)
    for (let position = from; position < to; position++)
      context.add(tokens[position]!, position, 0, positions.has(position + 1))
    if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these tokens.')
    for (let position = from; position < to; position++)
      if (positions.has(position + 1)) visit(position + 1, context.logits(position - from, vocabSize))
    least_ms = Math.min(least_ms, performance.now() - began)
    // Let streams run in between, and stop if the caller has disconnected.
    await yieldToEventLoop()
    await sideWork?.yieldAfter(performance.now() - began)
    if (signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  }
  return least_ms
}
