// The stream of an answer that is kept: its events pass unchanged, and what they add up to is stored before the last.
import type { Transform } from 'node:stream'
import type { ChatChunk, ChatResponse } from '../../../../contract/chat.ts'
import { rewriteEvents } from './sse-response.ts'

type Choice = ChatResponse['choices'][number]

/**
 * Reads a stream with usage, and drops that unless the client asked for it. `save` is called with the whole answer
 * before `[DONE]` is sent; not for a stream that breaks or whose client left.
 */
export function createStoredStream(save: (answer: unknown) => Promise<void>, keepUsage: boolean): Transform {
  let answer: ChatResponse | undefined
  let isReadable = true
  const choices = new Map<number, Choice>()

  /** Resolves with the text to send. */
  async function read(event: string): Promise<string> {
    if (event === '') return ''
    const data = event.startsWith('data: ') ? event.slice('data: '.length) : ''
    if (data === '[DONE]') {
      if (answer && isReadable)
        await save({ ...answer, choices: [...choices.values()].sort((a, b) => a.index - b.index) })
    } else if (data !== '' && !isShown(data)) return ''
    return `${event}\n\n`
  }

  /** Whether the client gets the event. One that cannot be read passes, and nothing is kept. */
  function isShown(data: string): boolean {
    try {
      return add(JSON.parse(data) as ChatChunk)
    } catch {
      isReadable = false
      return true
    }
  }

  function add(chunk: ChatChunk): boolean {
    // An error ends the stream.
    if (!Array.isArray(chunk.choices)) return true
    const { id, created, model, usage } = chunk
    answer ??= { id, object: 'chat.completion', created, model, choices: [], usage: noUsage }
    if (usage) answer.usage = usage
    for (const { index, delta, logprobs, finish_reason } of chunk.choices) {
      const choice = choices.get(index) ?? newChoice(index)
      choices.set(index, choice)
      addDelta(choice, delta)
      if (logprobs?.content) {
        choice.logprobs ??= { content: [], refusal: null }
        choice.logprobs.content!.push(...logprobs.content)
      }
      if (finish_reason) choice.finish_reason = finish_reason
    }
    return keepUsage || chunk.choices.length > 0
  }

  return rewriteEvents(read)
}

const noUsage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }

const newChoice = (index: number): Choice => ({
  index,
  message: { role: 'assistant', content: null, refusal: null },
  logprobs: null,
  finish_reason: 'stop',
})

function addDelta(
  { message }: Choice,
  { content, reasoning_content, tool_calls }: ChatChunk['choices'][number]['delta'],
) {
  if (content) message.content = (message.content ?? '') + content
  if (reasoning_content) message.reasoning_content = (message.reasoning_content ?? '') + reasoning_content
  for (const { index, id, function: call } of tool_calls ?? []) {
    message.tool_calls ??= []
    message.tool_calls[index] ??= { id: id ?? '', type: 'function', function: { name: '', arguments: '' } }
    const called = message.tool_calls[index].function
    called.name += call?.name ?? ''
    called.arguments += call?.arguments ?? ''
  }
}
