// Incremental parser of generated text: splits it into content, reasoning and tool calls, and emits each part as soon
// as it is unambiguous.
import { createStopFilter } from '../sampling/stop-sequences.ts'
import { createCallParser } from './call-parser.ts'
import type { Thoughts } from './learn-thoughts.ts'
import { createThoughtParser, createUnwrapper } from './reasoning-parser.ts'
import type { ReplyParser, ReplyPart } from './reply.ts'
import { createShapedCallParser } from './shaped-call-parser.ts'
import type { ToolFormat } from './tool-formats.ts'

export interface ReplyFormat {
  /** Null if the model does not reason. `startedInPrompt`: the prompt ends in open thoughts. */
  thoughts: (Pick<Thoughts, 'open' | 'close'> & { startedInPrompt: boolean }) | null
  /** Texts around an answer; null if there are none. */
  answer: Thoughts['answer'] | null
  /** Null if it can't call tools. */
  calls: {
    format: Pick<ToolFormat, 'syntax' | 'shape'>
    tools: readonly { name: string; schema: unknown }[]
    calls_max: number
  } | null
}

/** `stop`: sequences that end the answer where they are in its content. Calls and thoughts may contain them. */
export function createReplyParser(format: ReplyFormat, stop: readonly string[] = []): ReplyParser {
  const { thoughts } = format
  const answer = createAnswerParser(format)
  const parser = thoughts ? createThoughtParser(thoughts, answer) : answer
  return stop.length > 0 ? createStoppingParser(parser, stop) : parser
}

function createAnswerParser({ answer, calls }: ReplyFormat): ReplyParser {
  const parser = calls ? createCalls(calls) : plainParser
  return answer ? createUnwrapper(answer, parser) : parser
}

function createCalls({ format, tools, calls_max }: NonNullable<ReplyFormat['calls']>): ReplyParser {
  if (format.shape)
    return createShapedCallParser(format.shape, new Map(tools.map(({ name, schema }) => [name, schema])), calls_max)
  return createCallParser(
    format.syntax,
    tools.map(({ name }) => name),
    calls_max,
  )
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
