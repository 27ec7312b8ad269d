// What chat and text completions share.
import { randomUUID } from 'node:crypto'
import type { FinishReason, Usage } from '../../../contract/sampling.ts'
import type { ReplyPart } from '../../chat/reply.ts'
import type { TokenLogprobs } from '../../sampling/logprobs.ts'

/** A choice of a complete response. `tokenLogprobs` is null unless the request asks for log-probabilities. */
export interface CompleteChoice {
  parts: ReplyPart[]
  tokenLogprobs: TokenLogprobs[] | null
  finish_reason: FinishReason
}

/** Builds the JSON of one response. Chunks are JSON text, written without building an object for each token. */
export interface AnswerFormat {
  completeBody(choices: CompleteChoice[], usage: Usage): unknown
  /** Chunks before the first text of a choice. */
  openingChunks(index: number): string[]
  partChunk(index: number, part: ReplyPart, tokenLogprobs: TokenLogprobs[] | null): string
  closingChunk(index: number, finish_reason: FinishReason, tokenLogprobs: TokenLogprobs[] | null): string
  usageChunk(usage: Usage): string
}

/** With `nullUsage`, every chunk but the last has `usage: null`, as the protocol requires for `include_usage`. */
export interface AnswerFormatOptions {
  model: string
  nullUsage: boolean
}

export function newCompletion(prefix: string): { id: string; created: number } {
  return { id: `${prefix}-${randomUUID().replaceAll('-', '')}`, created: Math.floor(Date.now() / 1000) }
}

/** JSON before and after the choices of every chunk. */
export function envelope(fields: object, nullUsage: boolean): { head: string; tail: string } {
  return { head: `${JSON.stringify(fields).slice(0, -1)},"choices":`, tail: nullUsage ? ',"usage":null}' : '}' }
}
