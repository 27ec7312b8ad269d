// The thoughts at the beginning of an answer, apart from what comes after them.
import { beginningAtEnd, blankFrom, isNewline } from './partial-marks.ts'
import type { ReplyParser, ReplyPart } from './reply-parser.ts'

const opening = '<think>'
const closing = '</think>'

/**
 * Passes what follows the thoughts to `answer`. Newlines at both ends of the thoughts, and after them, are left out.
 */
export function createThoughtParser(begun: boolean, answer: ReplyParser): ReplyParser {
  let held = ''
  let state: 'start' | 'first thought' | 'thoughts' | 'gap' | 'answer' = 'start'

  const reasoning = (text: string): ReplyPart[] => (text === '' ? [] : [{ kind: 'reasoning', text }])

  /** Goes on as far as the held text tells; returns null where it needs more. */
  const step = (): ReplyPart[] | null => {
    if (state === 'start') {
      const text = held.trimStart()
      if (opening.startsWith(text) && text !== opening) return null
      const opens = text.startsWith(opening)
      if (opens) held = text.slice(opening.length)
      state = opens || begun ? 'first thought' : 'answer'
      return []
    }
    if (state === 'first thought') {
      held = withoutNewlines(held)
      if (held === '') return null
      state = 'thoughts'
      return []
    }
    if (state === 'thoughts') {
      const end = held.indexOf(closing)
      const sure = blankFrom(held, end < 0 ? held.length - beginningAtEnd(held, closing) : end, isNewline)
      const text = held.slice(0, sure)
      if (end >= 0) {
        held = held.slice(end + closing.length)
        state = 'gap'
        return reasoning(text)
      }
      held = held.slice(sure)
      return text === '' ? null : reasoning(text)
    }
    if (state === 'gap') {
      held = withoutNewlines(held)
      if (held === '') return null
      state = 'answer'
      return []
    }
    const text = held
    held = ''
    return text === '' ? null : answer.push(text)
  }

  const steps = (): ReplyPart[] => {
    const parts: ReplyPart[] = []
    for (let more = step(); more !== null; more = step()) parts.push(...more)
    return parts
  }

  return {
    push(text) {
      if (state === 'answer' && held === '') return answer.push(text)
      held += text
      return steps()
    },
    finish() {
      if (state === 'start') state = begun ? 'first thought' : 'answer'
      const parts = steps()
      // A beginning of the closing tag that nothing followed was a thought.
      if (state === 'thoughts') parts.push(...reasoning(held.slice(0, blankFrom(held, held.length, isNewline))))
      held = ''
      return [...parts, ...answer.finish()]
    },
    calledTools: () => answer.calledTools(),
  }
}

function withoutNewlines(text: string): string {
  return text.replace(/^[\r\n]+/, '')
}
