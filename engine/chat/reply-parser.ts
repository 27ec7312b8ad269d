// Incremental parser of generated text: splits it into content, reasoning and tool calls, and emits each part as soon
// as it is unambiguous.
import { createStopFilter } from '../sampling/text-output.ts'
import { createCallParser } from './call-parser.ts'
import { createThoughtParser } from './reasoning-parser.ts'
import type { ReplyParser, ReplyPart } from './reply.ts'
import type { CallSyntax } from './tool-formats.ts'

export interface ReplyFormat {
  /** Null if the model does not reason. `startedInPrompt`: the prompt ends in an open <think>. */
  thoughts: { startedInPrompt: boolean } | null
  /** Null if it can't call tools. */
  calls: { syntax: CallSyntax; names: string[]; calls_max: number } | null
}

/** `stop`: sequences that end the answer where they are in its content. Calls and thoughts may contain them. */
export function createReplyParser({ thoughts, calls }: ReplyFormat, stop: readonly string[] = []): ReplyParser {
  const answer = calls ? createCallParser(calls.syntax, calls.names, calls.calls_max) : plainParser
  const parser = thoughts ? createThoughtParser(thoughts.startedInPrompt, answer) : answer
  return stop.length > 0 ? createStoppingParser(parser, stop) : parser
}

function createStoppingParser(parser: ReplyParser, stop: readonly string[]): ReplyParser {
  const filter = createStopFilter(stop)
  let stopped = false
  let called = false
  const content = (text: string): ReplyPart[] => (text === '' ? [] : [{ kind: 'content', text }])
  const stopping = (parts: readonly ReplyPart[]): ReplyPart[] => {
    const kept: ReplyPart[] = []
    for (const part of parts) {
      if (stopped) break
      if (part.kind === 'content') {
        const filtered = filter.push(part.text)
        kept.push(...content(filtered.text))
        stopped = filtered.stopped
      } else {
        called ||= part.kind === 'tool_call'
        kept.push(...content(filter.finish()), part)
      }
    }
    return kept
  }
  return {
    push: (text) => (stopped ? [] : stopping(parser.push(text))),
    finish(cut) {
      if (stopped) return []
      const parts = stopping(parser.finish(cut))
      return stopped ? parts : [...parts, ...content(filter.finish())]
    },
    calledTools: () => called,
    stopped: () => stopped,
  }
}

/** Passes text through. Stateless, so one instance serves every answer. */
const plainParser: ReplyParser = {
  push: (text) => (text === '' ? [] : [{ kind: 'content', text }]),
  finish: () => [],
  calledTools: () => false,
  stopped: () => false,
}
