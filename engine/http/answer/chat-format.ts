// JSON of chat completions: complete body and stream chunks.
import type { ChatDelta, ChatResponse } from '../../../contract/chat.ts'
import type { ReplyPart } from '../../chat/reply.ts'
import type { Vocab } from '../../llama/vocab.ts'
import { type TokenLogprobs, toTokenLogprob } from '../../sampling/logprobs.ts'
import { type AnswerFormat, type AnswerFormatOptions, type CompleteChoice, envelope, newCompletion } from './format.ts'

type Choice = ChatResponse['choices'][number]

export function createChatFormat({ model, nullUsage }: AnswerFormatOptions, vocab: Vocab): AnswerFormat {
  const identity = newCompletion('chatcmpl')
  const { head, tail } = envelope(
    { id: identity.id, object: 'chat.completion.chunk', created: identity.created, model },
    nullUsage,
  )
  const toLogprobs = (tokenLogprobs: TokenLogprobs[] | null) =>
    tokenLogprobs && {
      content: tokenLogprobs.map((tokenLogprob) => toTokenLogprob(vocab, tokenLogprob)),
      refusal: null,
    }
  const chunk = (index: number, delta: string, tokenLogprobs: TokenLogprobs[] | null, finish: string) => {
    const logprobsJson = tokenLogprobs && tokenLogprobs.length > 0 ? JSON.stringify(toLogprobs(tokenLogprobs)) : 'null'
    return `${head}[{"index":${index},"delta":${delta},"logprobs":${logprobsJson},"finish_reason":${finish}}]${tail}`
  }
  return {
    completeBody: (choices, usage): ChatResponse => ({
      id: identity.id,
      object: 'chat.completion',
      created: identity.created,
      model,
      choices: choices.map((choice, index) => ({
        index,
        message: message(choice),
        logprobs: toLogprobs(choice.tokenLogprobs),
        finish_reason: choice.finish_reason,
      })),
      usage,
    }),
    openingChunks: (index) => [chunk(index, '{"role":"assistant","content":""}', null, 'null')],
    partChunk: (index, part, tokenLogprobs) => chunk(index, deltaOf(part), tokenLogprobs, 'null'),
    closingChunk: (index, finish_reason, tokenLogprobs) => chunk(index, '{}', tokenLogprobs, `"${finish_reason}"`),
    usageChunk: (usage) => `${head}[],"usage":${JSON.stringify(usage)}}`,
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

export function message({ parts }: Pick<CompleteChoice, 'parts'>): Choice['message'] {
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
