// How long an upstream may take. A server that is slow on a long prompt is not told from one that hangs by its first
// byte alone, so the limits grow with the work, and others' answers from the same server count as a sign of life.
import type { Allowance } from './usage.ts'

/** Tokens of a prompt, and of a whole answer, for which a server gets `first_byte_seconds` once more. */
const promptTokens = 2400
const answerTokens = 480
/** A request whose server answers others meanwhile waits at most so many times its limit. */
const extensionsMax = 4

/** Milliseconds until the first byte of an answer: with the defaults, 50 for a token to read, 250 for one to write. */
export function firstByteLimit_ms(
  first_byte_seconds: number,
  { prompt_tokens, choice_tokens_max, choices }: Allowance,
  stream: boolean,
): number {
  // The tokens of a whole answer come together.
  const answer = stream || choices === 0 ? 0 : choice_tokens_max
  return first_byte_seconds * 1000 * (1 + prompt_tokens / promptTokens + answer / answerTokens)
}

/** The server sent nothing in time. */
export class Silence extends Error {}

interface TimeLimit {
  /** Aborts with a Silence. */
  signal: AbortSignal
  clear(): void
}

/** `heard_at`: when the server last sent anything, to whomever (performance.now). */
export function startTimeLimit(limit_ms: number, heard_at: () => number): TimeLimit {
  const controller = new AbortController()
  const started_at = performance.now()
  let timer: NodeJS.Timeout
  const wait = (ms: number) => {
    timer = setTimeout(() => {
      const now = performance.now()
      const left = Math.min(heard_at() + limit_ms, started_at + extensionsMax * limit_ms) - now
      if (left > 0 && heard_at() > started_at) wait(left)
      else controller.abort(new Silence('it sent nothing in time'))
    }, ms).unref()
  }
  wait(limit_ms)
  return { signal: controller.signal, clear: () => clearTimeout(timer) }
}
