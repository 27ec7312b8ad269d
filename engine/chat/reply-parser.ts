// From the text that a model generates to what it says, what it thinks and which tools it calls, as far as is certain
// at each piece.
import { createCallParser } from './call-parser.ts'
import { createThoughtParser } from './thought-parser.ts'
import type { CallSyntax } from './tool-formats.ts'

/**
 * Of a call, the first part has `id`, `name` and empty `arguments`; the arguments follow as the text that the model
 * writes.
 */
export type ReplyPart =
  | { kind: 'content'; text: string }
  | { kind: 'reasoning'; text: string }
  | { kind: 'tool_call'; index: number; id?: string; name?: string; arguments: string }

export type ReplyParser = {
  /** Takes the next text, cut anywhere; returns what is certain with it. */
  push(text: string): ReplyPart[]
  /** The end of the answer: what was held back. */
  finish(): ReplyPart[]
  /** Whether a call has begun. */
  calledTools(): boolean
}

export type ReplyForm = {
  /** Null where the model doesn't think; whether the prompt has begun its thoughts already. */
  thoughts: { begun: boolean } | null
  /** Null where it can't call tools. */
  calls: { syntax: CallSyntax; names: string[]; calls_max: number } | null
}

export function createReplyParser({ thoughts, calls }: ReplyForm): ReplyParser {
  const answer = calls ? createCallParser(calls.syntax, calls.names, calls.calls_max) : plainParser
  return thoughts ? createThoughtParser(thoughts.begun, answer) : answer
}

/** Text as it is: keeps nothing, so one serves every answer. */
const plainParser: ReplyParser = {
  push: (text) => (text === '' ? [] : [{ kind: 'content', text }]),
  finish: () => [],
  calledTools: () => false,
}
