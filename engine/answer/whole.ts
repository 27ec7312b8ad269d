// An answer as one JSON body.
import type { ServerResponse } from 'node:http'
import { sendError, sendJson } from '../http-io.ts'
import type { Sink } from './choices.ts'
import type { Dialect, WholeChoice } from './dialect.ts'

export function wholeSink(response: ServerResponse, dialect: Dialect, count: number, logprobs: boolean): Sink {
  const choices = Array.from({ length: count }, (): WholeChoice => ({ parts: [], places: logprobs ? [] : null, finish_reason: 'stop' }))
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
