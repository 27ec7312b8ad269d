// Assembles the choices of one response. Parses each generation's text into parts (content, reasoning, tool calls). The
// response ends with its last choice, or with the first error.

import type { ServerResponse } from 'node:http'
import type { ApiError } from '../../../contract/errors.ts'
import type { FinishReason, Usage } from '../../../contract/sampling.ts'
import type { GenerationEvents } from '../../batching/generation.ts'
import type { ReplyParser, ReplyPart } from '../../chat/reply.ts'
import type { TokenLogprobs } from '../../sampling/logprobs.ts'
import { sendError, sendJson } from '../io.ts'
import type { AnswerFormat, CompleteChoice } from './format.ts'

/** Destination of a response: one JSON body, or a stream. */
export interface AnswerSink {
  part(index: number, part: ReplyPart, tokenLogprobs: TokenLogprobs[] | null): void
  ended(index: number, finish_reason: FinishReason, tokenLogprobs: TokenLogprobs[] | null): void
  completed(usage: Usage): void
  failed(error: ApiError): void
}

interface ChoicesOptions {
  count: number
  /** Sum over all prompts; each prompt counts once, however many choices it has. */
  prompt_tokens: number
  choices_per_prompt: number
  logprobs: boolean
  createParser(): ReplyParser
  sink: AnswerSink
  /** Called when the first choice has a slot. */
  onStart: GenerationEvents['onStart']
  /** Called once, after the last call of the sink. */
  onDone(): void
}

/** Event handlers of the generations, one for each choice. */
export function createChoices({
  count,
  prompt_tokens,
  choices_per_prompt,
  logprobs,
  createParser,
  sink,
  onStart,
  onDone,
}: ChoicesOptions): GenerationEvents[] {
  let choicesLeft = count
  let finished = false
  let completion_tokens = 0
  let cached_tokens = 0

  return Array.from({ length: count }, (_, index): GenerationEvents => {
    const parser = createParser()
    // Tokens that no part covers yet; they are sent with the next part.
    let pendingLogprobs: TokenLogprobs[] = []
    const takePendingLogprobs = () => {
      if (!logprobs) return null
      const pending = pendingLogprobs
      pendingLogprobs = []
      return pending
    }
    const emit = (parts: ReplyPart[]) => {
      for (const part of parts) sink.part(index, part, takePendingLogprobs())
    }
    return {
      onStart: (start) => {
        if (index === 0) onStart(start)
      },
      onText(text, tokenLogprobs) {
        if (finished) return false
        if (logprobs && tokenLogprobs.length > 0) pendingLogprobs.push(...tokenLogprobs)
        if (text !== '') emit(parser.push(text))
        return parser.stopped()
      },
      onEnd(end) {
        if (finished) return
        emit(parser.finish(end.finish_reason === 'length'))
        const finish_reason = parser.stopped() ? 'stop' : end.finish_reason
        completion_tokens += end.completion_tokens
        if (index % choices_per_prompt === 0) cached_tokens += end.cached_tokens
        sink.ended(
          index,
          parser.calledTools() && finish_reason === 'stop' ? 'tool_calls' : finish_reason,
          takePendingLogprobs(),
        )
        if (--choicesLeft > 0) return
        finished = true
        const total_tokens = prompt_tokens + completion_tokens
        sink.completed({ prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details: { cached_tokens } })
        onDone()
      },
      onError(error) {
        if (finished) return
        finished = true
        sink.failed(error)
        onDone()
      },
    }
  })
}

// Response as one JSON body.

export function jsonSink(response: ServerResponse, format: AnswerFormat, count: number, logprobs: boolean): AnswerSink {
  const choices = Array.from(
    { length: count },
    (): CompleteChoice => ({ parts: [], tokenLogprobs: logprobs ? [] : null, finish_reason: 'stop' }),
  )
  return {
    part(index, part, tokenLogprobs) {
      const { parts, tokenLogprobs: all } = choices[index]!
      const last = parts.at(-1)
      if (part.kind === 'content' && last?.kind === 'content') last.text += part.text
      else parts.push(part)
      if (tokenLogprobs) all?.push(...tokenLogprobs)
    },
    ended(index, finish_reason, tokenLogprobs) {
      const choice = choices[index]!
      choice.finish_reason = finish_reason
      if (tokenLogprobs) choice.tokenLogprobs?.push(...tokenLogprobs)
    },
    completed: (usage) => sendJson(response, 200, format.completeBody(choices, usage)),
    failed: (error) => sendError(response, error),
  }
}
