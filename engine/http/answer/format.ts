// What the two ways of asking for text have in common: the shapes differ, what is told does not.
import { randomUUID } from 'node:crypto'
import type { FinishReason, Usage } from '../../../contract/sampling.ts'
import type { ReplyPart } from '../../chat/reply-parser.ts'
import type { PlaceLogprobs } from '../../sampling/logprobs.ts'

/** A choice of an answer that is told whole. `places` is null where nobody asked for log-probabilities. */
export type WholeChoice = { parts: ReplyPart[]; places: PlaceLogprobs[] | null; finish_reason: FinishReason }

/** The pieces of a stream are JSON text, made without building objects for each token. */
export type Dialect = {
  whole(choices: WholeChoice[], usage: Usage): unknown
  /** Chunks sent before the first text of a choice. */
  opening(index: number): string[]
  part(index: number, part: ReplyPart, places: PlaceLogprobs[] | null): string
  closing(index: number, finish_reason: FinishReason, places: PlaceLogprobs[] | null): string
  usage(usage: Usage): string
}

/** With `nullUsage`, every chunk but the last carries `usage: null`, as the protocol says for `include_usage`. */
export type DialectOptions = { model: string; nullUsage: boolean }

export function newAnswer(prefix: string): { id: string; created: number } {
  return { id: `${prefix}-${randomUUID().replaceAll('-', '')}`, created: Math.floor(Date.now() / 1000) }
}

/** What stands before and after the choices of every chunk. */
export function envelope(fields: object, nullUsage: boolean): { head: string; tail: string } {
  return { head: `${JSON.stringify(fields).slice(0, -1)},"choices":`, tail: nullUsage ? ',"usage":null}' : '}' }
}
