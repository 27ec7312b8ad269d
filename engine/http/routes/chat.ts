import type { IncomingMessage, ServerResponse } from 'node:http'
import { type ChatMessage, ChatRequest } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { MemoryLimits } from '../../batching/slot-sizes.ts'
import { controlsOf } from '../../chat/control-tokens.ts'
import { prepareConversation } from '../../chat/conversation.ts'
import type { Model } from '../../llama/model.ts'
import { createChatFormat } from '../answer/chat-format.ts'
import { readBody } from '../io.ts'
import { promptBounds } from '../prepare.ts'
import { type GenerationServices, generate } from './generate.ts'

export async function chatCompletions(
  services: GenerationServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const body = await readBody(request, ChatRequest)
  if (body.top_logprobs && !body.logprobs)
    throw new ApiError('invalid_request', 'top_logprobs needs logprobs: true.', { param: 'top_logprobs' })
  await generate(services, request, response, body, async (served, _use, tokenize) => {
    const { model } = served
    requirePossibleLength(model, services.limits, body)
    const { prompt, grammar, control_texts, createParser } = prepareConversation(model, body)
    const controls = controlsOf(model)
    return {
      prompts: [await tokenize(prompt, 'messages')],
      param: 'messages',
      grammar: grammar && { spec: grammar, vocab: controls.grammar_vocab },
      control_texts: control_texts.length > 0 ? controls.texts : null,
      top_logprobs: body.logprobs ? (body.top_logprobs ?? 0) : null,
      createParser,
      createFormat: createChatFormat,
    }
  })
}

// Templates write arguments as JSON, each in its own way.
const argumentsMax = 1_000_000
const argumentsLength = (message: ChatMessage): number =>
  message.role === 'assistant'
    ? (message.tool_calls ?? []).reduce((sum, call) => sum + call.function.arguments.length, 0)
    : 0

/**
 * Throws ApiError context_length_exceeded if the messages are too long in any tokenization, before a template copies
 * them. Throws invalid_request if the arguments of tool calls are too long.
 */
function requirePossibleLength(model: Model, limits: MemoryLimits, { messages }: ChatRequest): void {
  const lengthOf = ({ content }: ChatMessage) =>
    typeof content === 'string'
      ? content.length
      : (content ?? []).reduce((sum, part) => sum + (part.type === 'text' ? part.text.length : 0), 0)
  const written = messages.reduce((sum, message) => sum + argumentsLength(message), 0)
  if (written > argumentsMax)
    throw new ApiError(
      'invalid_request',
      `The arguments of all tool_calls may have ${argumentsMax} characters together; these have ${written}.`,
      { param: 'messages' },
    )
  const tokens_min = Math.ceil(
    messages.reduce((sum, message) => sum + lengthOf(message), 0) / model.vocab.longest_token_bytes,
  )
  const { tokens_max, tooLong } = promptBounds(model, limits, 'messages')
  if (tokens_min > tokens_max) throw tooLong(tokens_min)
}
