// Incremental parser of the reasoning (<think>…</think>) at the start of an answer.
import { isNewline, partialSuffixLength, trailingBlankStart } from './partial-marks.ts'
import type { ReplyParser, ReplyPart } from './reply.ts'

const openingTag = '<think>'
const closingTag = '</think>'

/** Passes the text after the reasoning to `answer`. Drops newlines around and after the reasoning. */
export function createThoughtParser(startedInPrompt: boolean, answer: ReplyParser): ReplyParser {
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

function withoutNewlines(text: string): string {
  return text.replace(/^[\r\n]+/, '')
}
