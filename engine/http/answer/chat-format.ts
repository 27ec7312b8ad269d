// The shapes of chat completions, whole and in pieces.
import type { ChatDelta, ChatResponse } from '../../../contract/chat.ts'
import type { ReplyPart } from '../../chat/reply-parser.ts'
import type { Vocab } from '../../llama/vocab.ts'
import { type PlaceLogprobs, toWire } from '../../sampling/logprobs.ts'
import { type Dialect, type DialectOptions, envelope, newAnswer, type WholeChoice } from './format.ts'

type Choice = ChatResponse['choices'][number]

export function chatDialect({ model, nullUsage }: DialectOptions, vocab: Vocab): Dialect {
  const answer = newAnswer('chatcmpl')
  const { head, tail } = envelope(
    { id: answer.id, object: 'chat.completion.chunk', created: answer.created, model },
    nullUsage,
  )
  const logprobs = (places: PlaceLogprobs[] | null) =>
    places && { content: places.map((place) => toWire(vocab, place)), refusal: null }
  const chunk = (index: number, delta: string, places: PlaceLogprobs[] | null, finish: string) => {
    const told = places && places.length > 0 ? JSON.stringify(logprobs(places)) : 'null'
    return `${head}[{"index":${index},"delta":${delta},"logprobs":${told},"finish_reason":${finish}}]${tail}`
  }
  return {
    whole: (choices, usage): ChatResponse => ({
      id: answer.id,
      object: 'chat.completion',
      created: answer.created,
      model,
      choices: choices.map((choice, index) => ({
        index,
        message: message(choice),
        logprobs: logprobs(choice.places),
        finish_reason: choice.finish_reason,
      })),
      usage,
    }),
    opening: (index) => [chunk(index, '{"role":"assistant","content":""}', null, 'null')],
    part: (index, part, places) => chunk(index, deltaOf(part), places, 'null'),
    closing: (index, finish_reason, places) => chunk(index, '{}', places, `"${finish_reason}"`),
    usage: (usage) => `${head}[],"usage":${JSON.stringify(usage)}}`,
  }
}

function deltaOf(part: ReplyPart): string {
  if (part.kind === 'content') return `{"content":${JSON.stringify(part.text)}}`
  if (part.kind === 'reasoning') return `{"reasoning_content":${JSON.stringify(part.text)}}`
  const { index, id, name } = part
  const first = id === undefined ? {} : { id, type: 'function' as const }
  const delta: ChatDelta = {
    tool_calls: [{ index, ...first, function: { ...(name !== undefined && { name }), arguments: part.arguments } }],
  }
  return JSON.stringify(delta)
}

function message({ parts }: WholeChoice): Choice['message'] {
  let content = ''
  let reasoning = ''
  const calls: NonNullable<Choice['message']['tool_calls']> = []
  for (const part of parts) {
    if (part.kind === 'content') content += part.text
    else if (part.kind === 'reasoning') reasoning += part.text
    else {
      calls[part.index] ??= { id: part.id ?? '', type: 'function', function: { name: part.name ?? '', arguments: '' } }
      calls[part.index]!.function.arguments += part.arguments
    }
  }
  return {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    refusal: null,
    ...(reasoning !== '' && { reasoning_content: reasoning }),
    ...(calls.length > 0 && { tool_calls: calls }),
  }
}
