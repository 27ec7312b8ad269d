// Sampled answers as tokens with their log-probabilities, for training on what was sampled: the tokens are not made of
// the text again.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { z } from 'zod'
import { ChatRequest, ToolCall } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { continuationText, continuedRequest } from '../../chat/continuation.ts'
import { createReplyParser } from '../../chat/reply-parser.ts'
import { readTemplate } from '../../chat/template.ts'
import type { Vocab } from '../../llama/vocab.ts'
import type { ServedModel } from '../../models/models.ts'
import { type TokenLogprobs, tokenText } from '../../sampling/logprobs.ts'
import { message } from '../answer/chat-format.ts'
import type { AnswerFormat, CompleteChoice } from '../answer/format.ts'
import { header, readBody } from '../io.ts'
import { chatInput } from './chat.ts'
import { type GenerationInput, type GenerationServices, generate, type Tokenize } from './generate.ts'
import { type EchoServices, promptLogprobs } from './score.ts'
import type { ModelUse } from './use-model.ts'

const Continued = z.object({
  tokens: z.array(z.int().min(0)).min(1),
  tool_calls: z.array(ToolCall).max(128).default([]),
  /** Most tokens in all, with those of the next answer. */
  tokens_max: z.int().min(1).optional(),
})

/** `messages` (with the fields of chat requests), or a prompt of tokens. */
const SampleRequest = z.looseObject({
  model: z.string().min(1).max(256),
  messages: z.unknown().optional(),
  prompt: z.array(z.int().min(0)).min(1).optional(),
  /** The tokens so far, up to the one that ends an answer, and its calls. `messages` are those that follow it. */
  continues: Continued.optional(),
  /** Answers to the prompt, which is computed once. */
  n: z.int().min(1).max(128).default(1),
  max_tokens: z.int().min(1),
  temperature: z.number().min(0).max(2).default(1),
  /** 0: the whole vocabulary. Then the reported probabilities are those that the tokens were sampled with. */
  top_k: z.int().min(0).max(100).default(0),
  top_p: z.number().gt(0).max(1).default(1),
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  seed: z.int().nullish(),
  /** Tokens that end an answer too. */
  stop_tokens: z.array(z.int().min(0)).max(64).default([]),
  /** The token that ends an answer is one like others. */
  ignore_end: z.boolean().default(false),
  /** The likeliest tokens to report at each position. */
  top_logprobs: z.int().min(0).max(20).default(0),
  /** Whether to report the prompt's log-probabilities, with so many likeliest tokens at each position. */
  prompt_logprobs: z.int().min(0).max(20).nullish(),
})

/**
 * Answers `{prompt, choices: [{tokens, logprobs, message, finish_reason}], usage}`. `prompt` and `tokens`: ids of the
 * vocabulary; the token that ends an answer is its last one. `logprobs`: the natural logarithm of each token's
 * probability under the model, before any sampling parameter. `message`: as in chat. `thought_tokens`: how many of the
 * tokens are thoughts, with what closes them. With `top_logprobs` each choice
 * has `top`, with `prompt_logprobs` the answer has `prompt_logprobs` and `prompt_top`: null where nothing precedes the
 * token.
 */
export async function sample(
  services: GenerationServices & EchoServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const body = await readBody(request, SampleRequest)
  const { model, n, max_tokens, temperature, top_k, top_p, stop } = body
  const account = header(request, 'x-tunery-account') ?? ''
  const seed = body.seed ?? null
  const fields = { model, n, max_tokens, temperature, top_k, top_p, seed }
  const chat = body.prompt ? undefined : chatRequest(body)
  await generate(services, request, response, fields, async (served, use, tokenize) => {
    const input = !chat
      ? tokenInput(body.prompt!, served.model.vocab.size, stop)
      : body.continues
        ? await continuedInput(services, chat, body.continues, max_tokens, account, served, use, tokenize)
        : await chatInput(services, chat, account, served, use, tokenize)
    if (input.pictures && input.pictures.length > 0)
      throw new ApiError('parameter_not_supported', 'Answers about pictures cannot be sampled as tokens.')
    const prompt = input.prompts[0]!
    const of =
      body.prompt_logprobs == null
        ? null
        : await promptLogprobs(services, served, prompt, body.prompt_logprobs, { account, signal: use.signal })
    return {
      ...input,
      top_logprobs: body.top_logprobs,
      end_logprob: true,
      ends: { stop_tokens: new Set(body.stop_tokens), ignore_end: body.ignore_end },
      createFormat: (_, vocab): AnswerFormat =>
        sampleFormat(prompt, body.top_logprobs > 0, of, chat && { vocab, close: closeOfThoughts(served) }),
    }
  })
}

/** The input of an answer after the exact tokens of a conversation. */
async function continuedInput(
  services: GenerationServices,
  chat: ChatRequest,
  { tokens, tool_calls, tokens_max = Number.POSITIVE_INFINITY }: z.infer<typeof Continued>,
  max_tokens: number,
  account: string,
  served: ServedModel,
  use: ModelUse,
  tokenize: Tokenize,
): Promise<GenerationInput> {
  const { model } = served
  const { vocab } = model
  requireTokens(tokens, vocab.size)
  if (!vocab.isEndOfGeneration(tokens.at(-1)!))
    throw new ApiError('invalid_request', "The last of 'continues.tokens' must be a token that ends an answer.")
  const input = await chatInput(services, continuedRequest(chat, tool_calls), account, served, use, tokenize)
  const text = continuationText(model, chat, tool_calls)
  const following = await tokenize(text, 'messages')
  // It begins with the end of the answer, which was sampled, after BOS where that was added.
  const added = vocab.wants_bos && !text.text.startsWith(vocab.bos_text) ? 2 : 1
  const prompt = [...tokens, ...following.slice(added)]
  const room = tokens_max - prompt.length
  if (room < 1)
    throw new ApiError(
      'context_length_exceeded',
      `The conversation has ${prompt.length} tokens; this one may have ${tokens_max}, with the next answer.`,
      { param: 'continues.tokens_max' },
    )
  return { ...input, prompts: [prompt], max_tokens: Math.min(max_tokens, room) }
}

function closeOfThoughts({ model }: ServedModel): string | undefined {
  return readTemplate(model).thoughts.thoughts?.close
}

function chatRequest({
  n: _,
  temperature: __,
  top_k: ___,
  continues: ____,
  ...body
}: z.infer<typeof SampleRequest>): ChatRequest {
  const parsed = ChatRequest.safeParse({ ...body, max_tokens: undefined, stream: false })
  if (parsed.success) return parsed.data
  const { path, message } = parsed.error.issues[0]!
  throw new ApiError('invalid_request', `'${path.join('.')}': ${message}`, { param: 'messages' })
}

function tokenInput(prompt: number[], size: number, stop: string | string[] | null | undefined): GenerationInput {
  requireTokens(prompt, size)
  return {
    prompts: [prompt],
    param: 'prompt',
    grammar: null,
    control_texts: null,
    top_logprobs: 0,
    stop: stop == null ? [] : [stop].flat(),
    createParser: () => createReplyParser({ thoughts: null, answer: null, calls: null }),
    createFormat: () => sampleFormat(prompt, false, null, undefined),
  }
}

function requireTokens(tokens: readonly number[], size: number): void {
  const unknown = tokens.find((token) => token >= size)
  if (unknown !== undefined)
    throw new ApiError('invalid_request', `The prompt has the token ${unknown}; the vocabulary has ${size}.`)
}

const notStreamed = (): never => {
  throw new Error('sampled tokens are not streamed')
}

const topOf = ({ top }: TokenLogprobs) => top.map(({ token, logprob }) => ({ token, logprob }))

/** How many tokens of an answer are thoughts: up to what closes them, or all where nothing follows. */
function thoughtTokens({ parts, tokenLogprobs }: CompleteChoice, vocab: Vocab, close: string | undefined): number {
  if (!parts.some(({ kind }) => kind === 'reasoning')) return 0
  if (close === undefined || parts.every(({ kind }) => kind === 'reasoning')) return tokenLogprobs!.length
  let text = ''
  const last = tokenLogprobs!.findIndex(({ token }) => {
    text += tokenText(vocab, token)
    return text.includes(close)
  })
  return last + 1
}

/** `of`: the log-probabilities of the prompt. `thoughts`: how they are told from the rest; undefined: none are. */
const sampleFormat = (
  prompt: number[],
  withTop: boolean,
  of: TokenLogprobs[] | null,
  thoughts: { vocab: Vocab; close: string | undefined } | undefined,
): AnswerFormat => ({
  completeBody: (choices, usage) => ({
    prompt,
    ...(of && {
      prompt_logprobs: of.map(({ logprob }) => logprob),
      prompt_top: of.map((one) => (one.logprob === null ? null : topOf(one))),
    }),
    choices: choices.map((choice) => ({
      tokens: choice.tokenLogprobs!.map(({ token }) => token),
      logprobs: choice.tokenLogprobs!.map(({ logprob }) => logprob),
      ...(withTop && { top: choice.tokenLogprobs!.map(topOf) }),
      message: message(choice),
      ...(thoughts && { thought_tokens: thoughtTokens(choice, thoughts.vocab, thoughts.close) }),
      finish_reason: choice.finish_reason,
    })),
    usage,
  }),
  openingChunks: () => [],
  partChunk: notStreamed,
  closingChunk: notStreamed,
  usageChunk: notStreamed,
})
