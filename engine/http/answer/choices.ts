// Puts the choices of one answer together: each generation's text becomes parts (content, reasoning, tool calls), and
// the answer ends with its last choice, or with the first that fails.

import type { ServerResponse } from 'node:http'
import type { ApiError } from '../../../contract/errors.ts'
import type { FinishReason, Usage } from '../../../contract/sampling.ts'
import type { GenerationEvents } from '../../batching/generation.ts'
import type { ReplyParser, ReplyPart } from '../../chat/reply-parser.ts'
import type { PlaceLogprobs } from '../../sampling/logprobs.ts'
import { sendError, sendJson } from '../io.ts'
import type { Dialect, WholeChoice } from './format.ts'

/** Where an answer goes: one body, or a stream. */
export type Sink = {
  part(index: number, part: ReplyPart, places: PlaceLogprobs[] | null): void
  ended(index: number, finish_reason: FinishReason, places: PlaceLogprobs[] | null): void
  completed(usage: Usage): void
  failed(error: ApiError): void
}

export type ChoicesOptions = {
  count: number
  /** Of all prompts together; each counts once, however many choices it has. */
  prompt_tokens: number
  choices_per_prompt: number
  logprobs: boolean
  createParser(): ReplyParser
  sink: Sink
  /** The first choice has begun. */
  onStart: GenerationEvents['onStart']
  /** Called once, after the sink has got its last. */
  onDone(): void
}

/** The events of each generation, by the index of its choice. */
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
  let left = count
  let over = false
  let completion_tokens = 0
  let cached_tokens = 0

  return Array.from({ length: count }, (_, index): GenerationEvents => {
    const parser = createParser()
    // Tokens that have made no part yet; they go out with the next one.
    let carried: PlaceLogprobs[] = []
    const takeCarried = () => {
      if (!logprobs) return null
      const taken = carried
      carried = []
      return taken
    }
    const passOn = (parts: ReplyPart[]) => {
      for (const part of parts) sink.part(index, part, takeCarried())
    }
    return {
      onStart: (start) => {
        if (index === 0) onStart(start)
      },
      onText(text, places) {
        if (over) return
        if (logprobs && places.length > 0) carried.push(...places)
        if (text !== '') passOn(parser.push(text))
      },
      onEnd(end) {
        if (over) return
        passOn(parser.finish())
        completion_tokens += end.completion_tokens
        if (index % choices_per_prompt === 0) cached_tokens += end.cached_tokens
        sink.ended(
          index,
          parser.calledTools() && end.finish_reason === 'stop' ? 'tool_calls' : end.finish_reason,
          takeCarried(),
        )
        if (--left > 0) return
        over = true
        const total_tokens = prompt_tokens + completion_tokens
        sink.completed({ prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details: { cached_tokens } })
        onDone()
      },
      onError(error) {
        if (over) return
        over = true
        sink.failed(error)
        onDone()
      },
    }
  })
}

// An answer as one JSON body.

export function wholeSink(response: ServerResponse, dialect: Dialect, count: number, logprobs: boolean): Sink {
  const choices = Array.from(
    { length: count },
    (): WholeChoice => ({ parts: [], places: logprobs ? [] : null, finish_reason: 'stop' }),
  )
  return {
    part(index, part, places) {
      const { parts, places: all } = choices[index]!
      const last = parts.at(-1)
      if (part.kind === 'content' && last?.kind === 'content') last.text += part.text
      else parts.push(part)
      if (places) all?.push(...places)
    },
    ended(index, finish_reason, places) {
      const choice = choices[index]!
      choice.finish_reason = finish_reason
      if (places) choice.places?.push(...places)
    },
    completed: (usage) => sendJson(response, 200, dialect.whole(choices, usage)),
    failed: (error) => sendError(response, error),
  }
}
