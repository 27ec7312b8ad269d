// Sampled answers as tokens with their log-probabilities, for training on what was sampled: the tokens are not made of
// the text again.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { z } from 'zod'
import { ChatRequest } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { createReplyParser } from '../../chat/reply-parser.ts'
import { message } from '../answer/chat-format.ts'
import type { AnswerFormat } from '../answer/format.ts'
import { header, readBody } from '../io.ts'
import { chatInput } from './chat.ts'
import { type GenerationInput, type GenerationServices, generate } from './generate.ts'

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
})

/**
 * Answers `{prompt, choices: [{tokens, logprobs, message, finish_reason}], usage}`. `prompt` and `tokens`: ids of the
 * vocabulary; the token that ends an answer is its last one. `logprobs`: the natural logarithm of each token's
 * probability under the model, before any sampling parameter. `message`: as in chat.
 */
export async function sample(
  services: GenerationServices,
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
    return {
      ...input,
      top_logprobs: 0,
      end_logprob: true,
      createFormat: (): AnswerFormat => sampleFormat(input.prompts[0]!),
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
    createFormat: () => sampleFormat(prompt),
  }
}

const notStreamed = (): never => {
  throw new Error('sampled tokens are not streamed')
}

const sampleFormat = (prompt: number[]): AnswerFormat => ({
  completeBody: (choices, usage) => ({
    prompt,
    choices: choices.map(({ parts, tokenLogprobs, finish_reason }) => ({
      tokens: tokenLogprobs!.map(({ token }) => token),
      logprobs: tokenLogprobs!.map(({ logprob }) => logprob),
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
