// Incremental parser of tool calls. Matches their constant parts exactly, as the grammar enforces them; text that does
// not match is content.
import { randomBytes } from 'node:crypto'
import { createJsonScan, type JsonScan } from './json-scan.ts'
import { isSpace, partialSuffixLength, trailingBlankStart } from './partial-marks.ts'
import type { ReplyParser, ReplyPart } from './reply.ts'
import type { CallSyntax } from './tool-formats.ts'

type Match = { name: string; length: number } | 'partial' | null

/** Text before the first call is content, without trailing whitespace. Text after a call is dropped. */
export function createCallParser(syntax: CallSyntax, names: readonly string[], callsMax: number): ReplyParser {
  const first = names.map((name) => ({ name, text: syntax.opening + syntax.head(name) }))
  const later = names.map((name) => ({ name, text: syntax.head(name) }))
  const nextTrigger = syntax.opening === '' ? syntax.trigger : commonPrefix(later.map(({ text }) => text))
  let buffer = ''
  let calls = 0
  let argumentsScan: JsonScan | null = null
  /** Whether another call may start. */
  let open = true

  const content = (text: string): ReplyPart[] => (text === '' ? [] : [{ kind: 'content', text }])

  const startCall = ({ name, length }: { name: string; length: number }): ReplyPart => {
    buffer = buffer.slice(length)
    argumentsScan = createJsonScan()
    return { kind: 'tool_call', index: calls++, id: `call_${randomBytes(12).toString('hex')}`, name, arguments: '' }
  }

  const inArguments = (scan: JsonScan): ReplyPart[] | null => {
    const { length, ended } = scan.scan(buffer)
    const text = buffer.slice(0, length)
    buffer = buffer.slice(length)
    if (ended) {
      argumentsScan = null
      open = calls < callsMax
    }
    if (text === '' && !ended) return null
    return text === '' ? [] : [{ kind: 'tool_call', index: calls - 1, arguments: text }]
  }

  /** The call must be the whole answer: it starts at once, or the rest is text. */
  const atStart = (): ReplyPart[] | null => {
    const start = buffer.length - buffer.trimStart().length
    if (start === buffer.length) return null
    const match = matching(buffer.slice(start), first)
    if (match === 'partial') return null
    if (match) return [startCall({ name: match.name, length: start + match.length })]
    open = false
    return []
  }

  const inText = (): ReplyPart[] | null => {
    const triggerAt = buffer.indexOf(syntax.trigger)
    if (triggerAt < 0) {
      const safeEnd = trailingBlankStart(buffer, buffer.length - partialSuffixLength(buffer, syntax.trigger), isSpace)
      const text = buffer.slice(0, safeEnd)
      buffer = buffer.slice(safeEnd)
      return text === '' ? null : content(text)
    }
    const match = matching(buffer.slice(triggerAt), first)
    const end = match ? trailingBlankStart(buffer, triggerAt, isSpace) : triggerAt + syntax.trigger.length
    const text = buffer.slice(0, end)
    if (match === 'partial') {
      buffer = buffer.slice(end)
      return text === '' ? null : content(text)
    }
    if (match) return [...content(text), startCall({ name: match.name, length: triggerAt + match.length })]
    buffer = buffer.slice(end)
    return content(text)
  }

  const betweenCalls = (): ReplyPart[] | null => {
    const triggerAt = buffer.indexOf(nextTrigger)
    buffer = buffer.slice(triggerAt < 0 ? buffer.length - partialSuffixLength(buffer, nextTrigger) : triggerAt)
    if (triggerAt < 0) return null
    const match = matching(buffer, later)
    if (match === 'partial') return null
    if (match) return [startCall(match)]
    buffer = buffer.slice(nextTrigger.length)
    return []
  }

  const step = (): ReplyPart[] | null => {
    if (argumentsScan) return inArguments(argumentsScan)
    if (!open) {
      const text = buffer
      buffer = ''
      return text === '' || calls > 0 ? null : content(text)
    }
    if (calls > 0) return betweenCalls()
    return syntax.exclusive ? atStart() : inText()
  }

  return {
    push(text) {
      buffer += text
      const parts: ReplyPart[] = []
      for (let more = step(); more !== null; more = step()) parts.push(...more)
      return parts
    },
    finish(cut) {
      const text = buffer
      buffer = ''
      // The beginning of a call is no text.
      const truncated =
        calls > 0 ||
        (syntax.exclusive ? open && text.trimStart().startsWith(syntax.trigger) : text.includes(syntax.trigger))
      if (truncated) return []
      const partial = cut && !syntax.exclusive ? partialSuffixLength(text, syntax.trigger) : 0
      return content(partial === 0 ? text : text.slice(0, trailingBlankStart(text, text.length - partial, isSpace)))
    },
    calledTools: () => calls > 0,
    stopped: () => false,
  }
}

function matching(text: string, candidates: readonly { name: string; text: string }[]): Match {
  let isPartial = false
  for (const { name, text: prefix } of candidates) {
    if (text.startsWith(prefix)) return { name, length: prefix.length }
    isPartial ||= prefix.startsWith(text)
  }
  return isPartial ? 'partial' : null
}

function commonPrefix(texts: readonly string[]): string {
  let common = texts[0] ?? ''
  for (const text of texts) while (!text.startsWith(common)) common = common.slice(0, -1)
  return common
}
