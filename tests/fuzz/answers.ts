// Checks answers of the inference routes against the contract's schema for their status.
import { z } from 'zod'
import { BatchResponse, ChatChunk, ChatResponse } from '../../contract/chat.ts'
import { CompletionResponse } from '../../contract/completions.ts'
import { EmbeddingsResponse } from '../../contract/embeddings.ts'
import { ErrorBody, errorCodes } from '../../contract/errors.ts'
import type { Path } from './bodies.ts'

export interface Answer {
  status: number
  type: string
  text: string
  headers: Record<string, string | string[] | undefined>
}

const schemas: Record<Path, z.ZodType> = {
  '/chat/completions': ChatResponse,
  '/chat/completions/batch': BatchResponse,
  '/completions': CompletionResponse,
  '/embeddings': EmbeddingsResponse,
}
/** Error codes for faults of the service; no request body may cause one. */
const serviceFaults = new Set([
  'internal_error',
  'engine_failed',
  'engine_unavailable',
  'upstream_failed',
  'upstream_timeout',
])

function parsed(schema: z.ZodType, text: string, what: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new Error(`${what} is not JSON: ${text.slice(0, 300)}`)
  }
  const result = schema.safeParse(value)
  if (!result.success)
    throw new Error(`${what} violates the contract: ${z.prettifyError(result.error)}\n${text.slice(0, 500)}`)
  return value
}

function checkError(error: ErrorBody, status?: number): void {
  const { code, message } = error.error
  if (serviceFaults.has(code)) throw new Error(`${code}: ${message}`)
  if (status !== undefined && errorCodes[code] !== status) throw new Error(`${code} came with the status ${status}`)
  if (message.length > 5000) throw new Error(`an error of ${message.length} characters`)
}

function checkStream(path: Path, text: string): void {
  const frames = text.split('\n\n')
  if (frames.pop() !== '') throw new Error(`the stream ends in the middle of an event: ${text.slice(-200)}`)
  const events = frames.filter((frame) => !frame.startsWith(':'))
  if (events.pop() !== 'data: [DONE]') throw new Error(`the stream does not end with [DONE]: ${text.slice(-300)}`)
  const chunk = path === '/completions' ? CompletionResponse : ChatChunk
  for (const event of events) {
    if (!event.startsWith('data: ') || event.includes('\n'))
      throw new Error(`not one line of data: ${event.slice(0, 300)}`)
    const data = event.slice('data: '.length)
    if (data.startsWith('{"error"')) throw new Error(`the stream broke: ${data.slice(0, 500)}`)
    parsed(chunk, data, 'a chunk')
  }
}

/** Throws an Error that describes a fault of the answer. */
export function checkAnswer(path: Path, { status, type, text, headers }: Answer): void {
  if (!headers['x-request-id']) throw new Error('there is no x-request-id')
  if (status === 200 && type.startsWith('text/event-stream')) {
    checkStream(path, text)
    return
  }
  if (!type.startsWith('application/json')) throw new Error(`${status} of the type '${type}': ${text.slice(0, 300)}`)
  if (status === 200) {
    const value = parsed(schemas[path], text, 'the answer')
    if (path === '/chat/completions/batch')
      for (const response of (value as BatchResponse).responses) if ('error' in response) checkError(response)
    return
  }
  checkError(parsed(ErrorBody, text, `the answer with ${status}`) as ErrorBody, status)
  if (status === 503 && !headers['retry-after']) throw new Error('503 without Retry-After')
}
