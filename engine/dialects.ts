// The shapes of OpenAI's protocol, whole and in pieces.
import { randomUUID } from 'node:crypto'
import type { ChatResponse } from '../contract/chat.ts'
import type { Dialect } from './answer.ts'

/** With `nullUsage`, every chunk but the last carries `usage: null`, as the protocol says for `include_usage`. */
export type DialectOptions = { model: string; nullUsage: boolean }

export function chatDialect({ model, nullUsage }: DialectOptions): Dialect {
  const id = `chatcmpl-${randomUUID().replaceAll('-', '')}`
  const created = Math.floor(Date.now() / 1000)
  const { head, tail } = envelope({ id, object: 'chat.completion.chunk', created, model }, nullUsage)
  const chunk = (delta: string, finish: string) => `${head}[{"index":0,"delta":${delta},"logprobs":null,"finish_reason":${finish}}]${tail}`
  return {
    whole: (content, { finish_reason, usage }): ChatResponse => ({
      id,
      object: 'chat.completion',
      created,
      model,
      choices: [{ index: 0, message: { role: 'assistant', content, refusal: null }, logprobs: null, finish_reason }],
      usage,
    }),
    opening: () => [chunk('{"role":"assistant","content":""}', 'null')],
    piece: (text) => chunk(`{"content":${JSON.stringify(text)}}`, 'null'),
    closing: (finish_reason) => chunk('{}', `"${finish_reason}"`),
    usage: (usage) => `${head}[],"usage":${JSON.stringify(usage)}}`,
  }
}

export function completionDialect({ model, nullUsage }: DialectOptions): Dialect {
  const id = `cmpl-${randomUUID().replaceAll('-', '')}`
  const created = Math.floor(Date.now() / 1000)
  const { head, tail } = envelope({ id, object: 'text_completion', created, model }, nullUsage)
  const chunk = (text: string, finish: string) => `${head}[{"index":0,"text":${JSON.stringify(text)},"logprobs":null,"finish_reason":${finish}}]${tail}`
  return {
    whole: (text, { finish_reason, usage }) => ({
      id,
      object: 'text_completion',
      created,
      model,
      choices: [{ index: 0, text, logprobs: null, finish_reason }],
      usage,
    }),
    opening: () => [],
    piece: (text) => chunk(text, 'null'),
    closing: (finish_reason) => chunk('', `"${finish_reason}"`),
    usage: (usage) => `${head}[],"usage":${JSON.stringify(usage)}}`,
  }
}

function envelope(fields: object, nullUsage: boolean): { head: string; tail: string } {
  return { head: `${JSON.stringify(fields).slice(0, -1)},"choices":`, tail: nullUsage ? ',"usage":null}' : '}' }
}
