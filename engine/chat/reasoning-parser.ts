// Incremental parser of the thoughts at the start of an answer (<think>…</think>), and of texts around the answer.
import { isNewline, partialSuffixLength, trailingBlankStart } from './partial-marks.ts'
import type { ReplyParser, ReplyPart } from './reply.ts'

/** Passes the text after the thoughts to `answer`. Drops newlines around and after the thoughts. */
export function createThoughtParser(
  { startedInPrompt, open: openingTag, close: closingTag }: { startedInPrompt: boolean; open: string; close: string },
  answer: ReplyParser,
): ReplyParser {
  let buffer = ''
  let state: 'start' | 'first thought' | 'thoughts' | 'gap' | 'answer' = 'start'

  const reasoning = (text: string): ReplyPart[] => (text === '' ? [] : [{ kind: 'reasoning', text }])

  /** Advances as far as the buffered text allows. Returns null if it needs more. */
  const step = (): ReplyPart[] | null => {
    if (state === 'start') {
      const text = buffer.trimStart()
      if (openingTag.startsWith(text) && text !== openingTag) return null
      const opens = text.startsWith(openingTag)
      if (opens) buffer = text.slice(openingTag.length)
      state = opens || startedInPrompt ? 'first thought' : 'answer'
      return []
    }
    if (state === 'first thought') {
      buffer = withoutNewlines(buffer)
      if (buffer === '') return null
      state = 'thoughts'
      return []
    }
    if (state === 'thoughts') {
      const end = buffer.indexOf(closingTag)
      const safeEnd = trailingBlankStart(
        buffer,
        end < 0 ? buffer.length - partialSuffixLength(buffer, closingTag) : end,
        isNewline,
      )
      const text = buffer.slice(0, safeEnd)
      if (end >= 0) {
        buffer = buffer.slice(end + closingTag.length)
        state = 'gap'
        return reasoning(text)
      }
      buffer = buffer.slice(safeEnd)
      return text === '' ? null : reasoning(text)
    }
    if (state === 'gap') {
      buffer = withoutNewlines(buffer)
      if (buffer === '') return null
      state = 'answer'
      return []
    }
    const text = buffer
    buffer = ''
    return text === '' ? null : answer.push(text)
  }

  const steps = (): ReplyPart[] => {
    const parts: ReplyPart[] = []
    for (let more = step(); more !== null; more = step()) parts.push(...more)
    return parts
  }

  return {
    push(text) {
      if (state === 'answer' && buffer === '') return answer.push(text)
      buffer += text
      return steps()
    },
    finish(cut) {
      if (state === 'start') {
        // What was held back may be the beginning of <think>.
        if (cut) buffer = ''
        state = startedInPrompt ? 'first thought' : 'answer'
      }
      const parts = steps()
      // An answer that ends with a part of the closing tag by itself thinks of that text.
      const end = cut ? buffer.length - partialSuffixLength(buffer, closingTag) : buffer.length
      if (state === 'thoughts') parts.push(...reasoning(buffer.slice(0, trailingBlankStart(buffer, end, isNewline))))
      buffer = ''
      return [...parts, ...answer.finish(cut)]
    },
    calledTools: () => answer.calledTools(),
    stopped: () => answer.stopped(),
  }
}

/** Drops the text before an answer and the one after it, if they are there, and passes the rest to `answer`. */
export function createUnwrapper({ open, close }: { open: string; close: string }, answer: ReplyParser): ReplyParser {
  let buffer = ''
  let state: 'start' | 'inside' | 'outside' = 'start'
  const inside = (text: string, isOver: boolean): ReplyPart[] => {
    buffer += text
    const end = close === '' ? -1 : buffer.indexOf(close)
    const length = end >= 0 ? end : isOver ? buffer.length : buffer.length - partialSuffixLength(buffer, close)
    const part = buffer.slice(0, length)
    buffer = end >= 0 ? buffer.slice(end + close.length) : buffer.slice(length)
    if (end < 0) return answer.push(part)
    state = 'outside'
    const rest = buffer
    buffer = ''
    return [...answer.push(part), ...answer.push(rest)]
  }
  return {
    push(text) {
      if (state === 'outside') return answer.push(text)
      if (state === 'inside') return inside(text, false)
      buffer += text
      const started = buffer.trimStart()
      if (open.startsWith(started) && started !== open) return []
      state = started.startsWith(open) ? 'inside' : 'outside'
      const rest = state === 'inside' ? started.slice(open.length) : buffer
      buffer = ''
      return state === 'inside' ? inside(rest, false) : answer.push(rest)
    },
    finish(cut) {
      const rest = state === 'start' && cut ? '' : buffer
      buffer = ''
      return [...answer.push(rest), ...answer.finish(cut)]
    },
    calledTools: () => answer.calledTools(),
    stopped: () => answer.stopped(),
  }
}

function withoutNewlines(text: string): string {
  return text.replace(/^[\r\n]+/, '')
}
