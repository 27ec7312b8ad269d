// Calls of tools in an answer. All but the arguments is constant, and the grammar holds the model to it; what does not
// fit is content.
import { randomBytes } from 'node:crypto'
import { createJsonScan, type JsonScan } from './json-scan.ts'
import { beginningAtEnd, blankFrom, isSpace } from './partial-marks.ts'
import type { ReplyParser, ReplyPart } from './reply-parser.ts'
import type { CallSyntax } from './tool-formats.ts'

type Match = { name: string; length: number } | 'perhaps' | null

/** Text before the first call is content, less the blanks at its end; nothing after a call is. */
export function createCallParser(syntax: CallSyntax, names: readonly string[], callsMax: number): ReplyParser {
  const first = names.map((name) => ({ name, text: syntax.opening + syntax.head(name) }))
  const later = names.map((name) => ({ name, text: syntax.head(name) }))
  const nextTrigger = syntax.opening === '' ? syntax.trigger : commonBeginning(later.map(({ text }) => text))
  let held = ''
  let calls = 0
  let arguments_: JsonScan | null = null
  /** Whether a call may still begin. */
  let open = true

  const content = (text: string): ReplyPart[] => (text === '' ? [] : [{ kind: 'content', text }])

  const begin = ({ name, length }: { name: string; length: number }): ReplyPart => {
    held = held.slice(length)
    arguments_ = createJsonScan()
    return { kind: 'tool_call', index: calls++, id: `call_${randomBytes(12).toString('hex')}`, name, arguments: '' }
  }

  const inArguments = (scan: JsonScan): ReplyPart[] | null => {
    const { length, ended } = scan.take(held)
    const text = held.slice(0, length)
    held = held.slice(length)
    if (ended) {
      arguments_ = null
      open = calls < callsMax
    }
    if (text === '' && !ended) return null
    return text === '' ? [] : [{ kind: 'tool_call', index: calls - 1, arguments: text }]
  }

  /** A call that is the whole answer: it begins at once, or the rest is text. */
  const atStart = (): ReplyPart[] | null => {
    const start = held.length - held.trimStart().length
    if (start === held.length) return null
    const match = matching(held.slice(start), first)
    if (match === 'perhaps') return null
    if (match) return [begin({ name: match.name, length: start + match.length })]
    open = false
    return []
  }

  const inText = (): ReplyPart[] | null => {
    const place = held.indexOf(syntax.trigger)
    if (place < 0) {
      const sure = blankFrom(held, held.length - beginningAtEnd(held, syntax.trigger), isSpace)
      const text = held.slice(0, sure)
      held = held.slice(sure)
      return text === '' ? null : content(text)
    }
    const match = matching(held.slice(place), first)
    const end = match ? blankFrom(held, place, isSpace) : place + syntax.trigger.length
    const text = held.slice(0, end)
    if (match === 'perhaps') {
      held = held.slice(end)
      return text === '' ? null : content(text)
    }
    if (match) return [...content(text), begin({ name: match.name, length: place + match.length })]
    held = held.slice(end)
    return content(text)
  }

  const betweenCalls = (): ReplyPart[] | null => {
    const place = held.indexOf(nextTrigger)
    held = held.slice(place < 0 ? held.length - beginningAtEnd(held, nextTrigger) : place)
    if (place < 0) return null
    const match = matching(held, later)
    if (match === 'perhaps') return null
    if (match) return [begin(match)]
    held = held.slice(nextTrigger.length)
    return []
  }

  const step = (): ReplyPart[] | null => {
    if (arguments_) return inArguments(arguments_)
    if (!open) {
      const text = held
      held = ''
      return text === '' || calls > 0 ? null : content(text)
    }
    if (calls > 0) return betweenCalls()
    return syntax.alone ? atStart() : inText()
  }

  return {
    push(text) {
      held += text
      const parts: ReplyPart[] = []
      for (let more = step(); more !== null; more = step()) parts.push(...more)
      return parts
    },
    finish() {
      const text = held
      held = ''
      // A call that was cut off before its name was whole is not shown as text.
      const cutOff =
        calls > 0 ||
        (syntax.alone ? open && text.trimStart().startsWith(syntax.trigger) : text.includes(syntax.trigger))
      return cutOff ? [] : content(text)
    },
    calledTools: () => calls > 0,
  }
}

function matching(text: string, beginnings: readonly { name: string; text: string }[]): Match {
  let perhaps = false
  for (const { name, text: beginning } of beginnings) {
    if (text.startsWith(beginning)) return { name, length: beginning.length }
    perhaps ||= beginning.startsWith(text)
  }
  return perhaps ? 'perhaps' : null
}

function commonBeginning(texts: readonly string[]): string {
  let common = texts[0] ?? ''
  for (const text of texts) while (!text.startsWith(common)) common = common.slice(0, -1)
  return common
}
