// What a chat template writes between a sampled answer and the next one: the end of the answer's turn, the messages
// that follow, and the start of the next answer. The tokens before it stay as they were sampled; nothing is tokenized
// again.
import type { ChatMessage, ChatRequest, ToolCall } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import type { PromptText } from '../tokenizer/tokenizer.ts'
import { prepareConversation } from './conversation.ts'
import type { ChatModel } from './template.ts'

/** Only its place in the rendered text matters. */
const answered = 'Zq answers.'

/** A short conversation with an answer in the place of the sampled one, and the messages that follow it. */
function standIn(calls: readonly ToolCall[], following: readonly ChatMessage[]): ChatMessage[] {
  const last = calls.length - 1
  return [
    { role: 'user', content: 'Zq asks.' },
    {
      role: 'assistant',
      content: calls.length > 0 ? null : answered,
      ...(calls.length > 0 && {
        tool_calls: calls.map(({ id, function: { name } }, index) => ({
          id,
          type: 'function' as const,
          function: { name, arguments: JSON.stringify(index === last ? { zq: answered } : {}) },
        })),
      }),
    },
    ...following,
  ]
}

/**
 * The request that has the grammar and the parser of the answer to `request.messages`, which follow an answer with
 * `calls`.
 */
export const continuedRequest = (request: ChatRequest, calls: readonly ToolCall[]): ChatRequest => ({
  ...request,
  messages: standIn(calls, request.messages),
})

/**
 * The text behind an answer with `calls`, from the token that ends it on, which is the first one. Throws ApiError:
 * parameter_not_supported for a template in which no such token ends an answer, and what `prepareConversation` throws.
 */
export function continuationText(model: ChatModel, request: ChatRequest, calls: readonly ToolCall[]): PromptText {
  // The tools are in the prompt already; some templates write them before the last question.
  const { tools: _, tool_choice: __, response_format: ___, ...rest } = request
  const { text, controls } = prepareConversation(model, continuedRequest(rest, calls)).prompt
  const at = text.indexOf(answered)
  const from = at < 0 ? -1 : endAfter(model, text, at)
  if (from < 0)
    throw new ApiError(
      'parameter_not_supported',
      "This model's chat template ends no answer with a token of its own, so a conversation cannot be continued " +
        'after the tokens of an answer.',
      { param: 'continues' },
    )
  return { text: text.slice(from), controls }
}

/** Where the first text of a token that ends answers begins, from `from` on; -1 if there is none. */
function endAfter({ vocab }: ChatModel, text: string, from: number): number {
  const places = vocab.special_tokens
    .filter(({ token, text: written }) => written !== '' && vocab.isEndOfGeneration(token))
    .map(({ text: written }) => text.indexOf(written, from))
    .filter((place) => place >= 0)
  return places.length === 0 ? -1 : Math.min(...places)
}
