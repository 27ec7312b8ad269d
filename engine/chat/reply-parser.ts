// Incremental parser of generated text: splits it into content, reasoning and tool calls, and emits each part as soon
// as it is unambiguous.
import { createCallParser } from './call-parser.ts'
import { createThoughtParser } from './reasoning-parser.ts'
import type { CallSyntax } from './tool-formats.ts'

/** The first part of a call has `id`, `name` and empty `arguments`. The arguments follow as the model writes them. */
export type ReplyPart =
  | { kind: 'content'; text: string }
  | { kind: 'reasoning'; text: string }
  | { kind: 'tool_call'; index: number; id?: string; name?: string; arguments: string }

export type ReplyParser = {
  /** Parses the next piece of text, of any length. Returns the parts that are now certain. */
  push(text: string): ReplyPart[]
  /** Ends the answer and returns what was held back. */
  finish(): ReplyPart[]
  /** Whether a call has started. */
  calledTools(): boolean
}

export type ReplyFormat = {
  /** Null if the model does not reason. `startedInPrompt`: the prompt ends in an open <think>. */
  thoughts: { startedInPrompt: boolean } | null
  /** Null if it can't call tools. */
  calls: { syntax: CallSyntax; names: string[]; calls_max: number } | null
}

export function createReplyParser({ thoughts, calls }: ReplyFormat): ReplyParser {
  const answer = calls ? createCallParser(calls.syntax, calls.names, calls.calls_max) : plainParser
  return thoughts ? createThoughtParser(thoughts.startedInPrompt, answer) : answer
}

/** Passes text through. Stateless, so one instance serves every answer. */
const plainParser: ReplyParser = {
  push: (text) => (text === '' ? [] : [{ kind: 'content', text }]),
  finish: () => [],
  calledTools: () => false,
}
