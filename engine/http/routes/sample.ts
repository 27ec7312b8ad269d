// Sampled answers as tokens with their log-probabilities, for training on what was sampled: the tokens are not made of
// the text again.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { z } from 'zod'
import { ChatRequest } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { createReplyParser } from '../../chat/reply-parser.ts'
import type { TokenLogprobs } from '../../sampling/logprobs.ts'
import { message } from '../answer/chat-format.ts'
import type { AnswerFormat } from '../answer/format.ts'
import { header, readBody } from '../io.ts'
import { chatInput } from './chat.ts'
import { type GenerationInput, type GenerationServices, generate } from './generate.ts'
import { type EchoServices, promptLogprobs } from './score.ts'

/** `messages` (with the fields of chat requests), or a prompt of tokens. */
const SampleRequest = z.looseObject({
  model: z.string().min(1).max(256),
  messages: z.unknown().optional(),
  prompt: z.array(z.int().min(0)).min(1).optional(),
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
 * probability under the model, before any sampling parameter. `message`: as in chat. With `top_logprobs` each choice
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
    const input = chat
      ? await chatInput(services, chat, account, served, use, tokenize)
      : tokenInput(body.prompt!, served.model.vocab.size, stop)
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
      createFormat: (): AnswerFormat => sampleFormat(prompt, body.top_logprobs > 0, of),
    }
  })
}

function chatRequest({ n: _, temperature: __, top_k: ___, ...body }: z.infer<typeof SampleRequest>): ChatRequest {
  const parsed = ChatRequest.safeParse({ ...body, max_tokens: undefined, stream: false })
  if (parsed.success) return parsed.data
  const { path, message } = parsed.error.issues[0]!
  throw new ApiError('invalid_request', `'${path.join('.')}': ${message}`, { param: 'messages' })
}

function tokenInput(prompt: number[], size: number, stop: string | string[] | null | undefined): GenerationInput {
  const unknown = prompt.find((token) => token >= size)
  if (unknown !== undefined)
    throw new ApiError('invalid_request', `The prompt has the token ${unknown}; the vocabulary has ${size}.`)
  return {
    prompts: [prompt],
    param: 'prompt',
    grammar: null,
    control_texts: null,
    top_logprobs: 0,
    stop: stop == null ? [] : [stop].flat(),
    createParser: () => createReplyParser({ thoughts: null, answer: null, calls: null }),
    createFormat: () => sampleFormat(prompt, false, null),
  }
}

const notStreamed = (): never => {
  throw new Error('sampled tokens are not streamed')
}

const topOf = ({ top }: TokenLogprobs) => top.map(({ token, logprob }) => ({ token, logprob }))

/** `of`: the log-probabilities of the prompt. */
const sampleFormat = (prompt: number[], withTop: boolean, of: TokenLogprobs[] | null): AnswerFormat => ({
  completeBody: (choices, usage) => ({
    prompt,
    ...(of && {
      prompt_logprobs: of.map(({ logprob }) => logprob),
      prompt_top: of.map((one) => (one.logprob === null ? null : topOf(one))),
    }),
    choices: choices.map(({ parts, tokenLogprobs, finish_reason }) => ({
      tokens: tokenLogprobs!.map(({ token }) => token),
      logprobs: tokenLogprobs!.map(({ logprob }) => logprob),
      ...(withTop && { top: tokenLogprobs!.map(topOf) }),
      message: message({ parts }),
      finish_reason,
    })),
    usage,
  }),
  openingChunks: () => [],
  partChunk: notStreamed,
  closingChunk: notStreamed,
  usageChunk: notStreamed,
})
