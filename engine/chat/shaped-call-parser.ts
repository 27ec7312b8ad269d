// Incremental parser of calls in a shape that was learned from a template. The grammar enforces the same texts; text
// that does not match is content before the first call, and dropped after it.
import { randomBytes } from 'node:crypto'
import { isExactInteger } from '../../lib/json.ts'
import { mayFit, schemaOfArgument, typeOf, typesOfArgument } from '../grammar/argument-types.ts'
import {
  type CallShape,
  type Dialect,
  endOfCall,
  endOfValue,
  isOnlyAtStart,
  type NamedArguments,
  triggerOf,
  type ValueType,
  valueTypes,
  withName,
} from '../grammar/call-shape.ts'
import { createValueScan, readValue, unescaped, type ValueScan } from './call-values.ts'
import { isSpace, partialSuffixLength, trailingBlankStart } from './partial-marks.ts'
import type { ReplyParser, ReplyPart } from './reply.ts'

type Schemas = ReadonlyMap<string, unknown>

/** `schemas`: those of the arguments, by the names that may be called. */
export function createShapedCallParser(shape: CallShape, schemas: Schemas, callsMax: number): ReplyParser {
  return new ShapedCallParser(shape, schemas, callsMax)
}

/** The calls of a whole text. */
export function readCalls(shape: CallShape, schemas: Schemas, text: string): { name: string; arguments: string }[] {
  const parser = createShapedCallParser(shape, schemas, Infinity)
  const calls: { name: string; arguments: string }[] = []
  for (const part of [...parser.push(text), ...parser.finish(false)]) {
    if (part.kind !== 'tool_call') continue
    if (part.name !== undefined) calls.push({ name: part.name, arguments: '' })
    calls[part.index]!.arguments += part.arguments
  }
  return calls
}

/** How far a text matches at its start: the length of all of it, `partial` if more text may complete it, or null. */
type Matched = number | 'partial' | null

type State =
  | { in: 'text' | 'next' | 'over' }
  | { in: 'object'; scan: ValueScan; held: string }
  | { in: 'key' }
  | {
      in: 'value'
      types: readonly ValueType[]
      text: string
      mode: 'quoted' | 'string' | 'whole'
      scan: ValueScan | null
    }
  | { in: 'end of value' }

class ShapedCallParser implements ReplyParser {
  private readonly shape: CallShape
  private readonly schemas: Schemas
  private readonly names: string[]
  private readonly callsMax: number
  private readonly trigger: string
  private readonly onlyAtStart: boolean
  private buffer = ''
  private state: State = { in: 'text' }
  private calls = 0
  private name = ''
  private key = ''
  private argumentCount = 0
  /** Whether the text is whole: nothing more comes. */
  private isWhole = false

  constructor(shape: CallShape, schemas: Schemas, callsMax: number) {
    this.shape = shape
    this.schemas = schemas
    // The longest first: a name may begin with another.
    this.names = [...schemas.keys()].sort((a, b) => b.length - a.length)
    this.callsMax = callsMax
    this.trigger = triggerOf(shape)
    this.onlyAtStart = isOnlyAtStart(shape)
  }

  push(text: string): ReplyPart[] {
    this.buffer += text
    const parts: ReplyPart[] = []
    for (let more = this.step(); more !== null; more = this.step()) parts.push(...more)
    return parts
  }

  finish(cut: boolean): ReplyPart[] {
    this.isWhole = !cut
    const parts = this.push('')
    const text = this.buffer
    this.buffer = ''
    if (this.state.in !== 'text') return parts
    // The beginning of a call is no text.
    if (this.onlyAtStart ? cut && this.startsCall(text.trimStart()) : text.includes(this.trigger)) return parts
    const partial = cut && !this.onlyAtStart ? partialSuffixLength(text, this.trigger) : 0
    const kept = partial === 0 ? text : text.slice(0, trailingBlankStart(text, text.length - partial, isSpace))
    return [...parts, ...content(kept)]
  }

  private startsCall(text: string): boolean {
    const heads = (this.shape.other_heads ?? []).map(({ first }) => withName(first, ''))
    return [this.trigger, ...heads].some((head) => text.startsWith(head))
  }

  calledTools(): boolean {
    return this.calls > 0
  }

  stopped(): boolean {
    return false
  }

  /** Advances as far as the buffered text allows. Null if it needs more. */
  private step(): ReplyPart[] | null {
    switch (this.state.in) {
      case 'text':
        return this.onlyAtStart ? this.atStart() : this.inText()
      case 'next':
        return this.betweenCalls()
      case 'object':
        return this.inObject(this.state)
      case 'key':
        return this.inKey()
      case 'value':
        return this.inValue(this.state)
      case 'end of value':
        return this.afterValue()
      case 'over': {
        const text = this.buffer
        this.buffer = ''
        return text === '' || this.calls > 0 ? null : content(text)
      }
    }
  }

  private atStart(): ReplyPart[] | null {
    const start = this.buffer.length - this.buffer.trimStart().length
    if (start === this.buffer.length) return null
    const started = this.startCall(this.shape.first, start)
    if (started === 'partial') return null
    if (started) return started
    this.state = { in: 'over' }
    return []
  }

  private inText(): ReplyPart[] | null {
    const at = this.buffer.indexOf(this.trigger)
    if (at < 0) {
      const held = partialSuffixLength(this.buffer, this.trigger)
      return this.takeText(trailingBlankStart(this.buffer, this.buffer.length - held, isSpace))
    }
    const end = trailingBlankStart(this.buffer, at, isSpace)
    const text = this.buffer.slice(0, end)
    const started = this.startCall(this.shape.first, at)
    if (started === 'partial') return this.takeText(end)
    if (started) return [...content(text), ...started]
    return this.takeText(at + this.trigger.length)
  }

  private takeText(length: number): ReplyPart[] | null {
    const text = this.buffer.slice(0, length)
    this.buffer = this.buffer.slice(length)
    return text === '' ? null : content(text)
  }

  private betweenCalls(): ReplyPart[] | null {
    const { next } = this.shape
    if (next === null || this.calls >= this.callsMax) {
      this.state = { in: 'over' }
      return []
    }
    const pattern = this.afterEnd(next)
    const blanks = pattern === pattern.trimStart() ? this.buffer.length - this.buffer.trimStart().length : 0
    const started = this.startCall(pattern, blanks)
    if (started === 'partial') return null
    if (started) return started
    this.state = { in: 'over' }
    return []
  }

  /** What is left of `next` after what was read of the call before it. */
  private afterEnd(next: string): string {
    const { arguments: form } = this.shape
    if (form.kind === 'object') return next
    const before = this.argumentCount > 0 ? form.close : form.none
    return (before + next).slice(endOfCall(this.shape, this.argumentCount > 0).length)
  }

  /** A call whose head is `pattern` from there, or one of the shape's other heads. */
  private startCall(pattern: string, from: number): ReplyPart[] | 'partial' | null {
    const { arguments: form, other_heads = [] } = this.shape
    const tails = form.kind === 'object' ? [form.before] : [form.first_key, form.none + endOfNone(this.shape)]
    const heads = [...tails.map((tail) => pattern + tail), ...other_heads.map(({ first, before }) => first + before)]
    let isPartial = false
    for (const name of this.names) {
      const matched = heads.map((head) => match(this.buffer, from, withName(head, name), this.isWhole))
      // A longer text may still follow what another one matches already.
      if (matched.includes('partial')) {
        isPartial = true
        break
      }
      const length = Math.max(...matched.map((one) => (typeof one === 'number' ? one : -1)))
      if (length < 0) continue
      this.buffer = this.buffer.slice(from + length)
      this.name = name
      this.argumentCount = 0
      const id = `call_${randomBytes(12).toString('hex')}`
      const part: ReplyPart = { kind: 'tool_call', index: this.calls++, id, name, arguments: '' }
      if (form.kind === 'object') this.state = { in: 'object', scan: createValueScan(form.dialect), held: '' }
      else if (matched[0] === length) this.state = { in: 'key' }
      else {
        this.state = { in: 'next' }
        return [part, this.piece('{}')]
      }
      return [part]
    }
    return isPartial ? 'partial' : null
  }

  private piece(text: string): ReplyPart {
    return { kind: 'tool_call', index: this.calls - 1, arguments: text }
  }

  private inObject(state: State & { in: 'object' }): ReplyPart[] | null {
    const form = this.shape.arguments as CallShape['arguments'] & { kind: 'object' }
    const { length, ended } = state.scan.scan(this.buffer)
    const text = this.buffer.slice(0, length)
    if (!ended && text === '') return null
    this.buffer = this.buffer.slice(length)
    const isJson = form.dialect.name === 'json'
    state.held += isJson ? '' : text
    if (!ended) return isJson ? [this.piece(text)] : []
    const written = isJson ? text : JSON.stringify(readValue(state.held, form.dialect) ?? {})
    this.state = { in: 'next' }
    return written === '' ? [] : [this.piece(written)]
  }

  private inKey(): ReplyPart[] | null {
    const form = this.named()
    const texts = valueTypes.map((type) => form.value[type])
    const common = texts.reduce((a, b) => sharedStart(a, b))
    const at = this.buffer.indexOf(common)
    if (at < 0) return null
    const matching = valueTypes.map((type) => match(this.buffer, at, form.value[type], this.isWhole))
    if (matching.includes('partial') && new Set(texts).size > 1 && !matching.some((one) => typeof one === 'number'))
      return null
    const longest = Math.max(...matching.map((one) => (typeof one === 'number' ? one : -1)))
    if (longest < 0) return this.giveUp()
    const types = valueTypes.filter((_, index) => matching[index] === longest)
    this.key = this.buffer.slice(0, at)
    this.buffer = this.buffer.slice(at + longest)
    this.state = { in: 'value', types, text: '', mode: 'whole', scan: null }
    return this.startValue(this.state)
  }

  private startValue(state: State & { in: 'value' }): ReplyPart[] {
    const lead = `${this.argumentCount++ === 0 ? '{' : ', '}${JSON.stringify(this.key)}: `
    const { strings } = this.named()
    if (strings.open === '') {
      const accepted = typesOfArgument(this.schemas.get(this.name), this.key)
      const isString = (types: readonly ValueType[] | null) => types?.length === 1 && types[0] === 'string'
      if (isString(state.types) || isString(accepted)) state.mode = 'string'
      return [this.piece(state.mode === 'string' ? `${lead}"` : lead)]
    }
    state.mode = 'quoted'
    return [this.piece(lead)]
  }

  private inValue(state: State & { in: 'value' }): ReplyPart[] | null {
    if (state.mode === 'quoted') return this.inQuotedValue(state)
    const end = this.endOfRawValue('')
    if (end === null || (end.length === 0 && !end.isOver)) return null
    const text = this.buffer.slice(0, end.length)
    this.buffer = this.buffer.slice(end.length)
    if (end.isOver) this.state = { in: 'end of value' }
    if (state.mode === 'string') {
      const written = escapedPart(text, end.isOver)
      return written === '' ? [] : [this.piece(written)]
    }
    state.text += text
    return end.isOver ? [this.piece(this.wholeValue(state))] : []
  }

  /** JSON of a value that says nothing of its type: of the types that the schema takes. */
  private wholeValue({ text, types }: State & { in: 'value' }): string {
    const form = this.named()
    const accepted = typesOfArgument(this.schemas.get(this.name), this.key)
    const isAmongTypes = types.length < valueTypes.length
    const literal = Object.entries(form.literals).find(([, written]) => written === text.trim())?.[0]
    const value =
      literal === undefined ? readValue(text.trim(), nestedReader(form)) : (JSON.parse(literal) as true | false | null)
    const asText = JSON.stringify(text)
    if (value === undefined || typeof value === 'string') return asText
    const type = isExactInteger(value) ? 'number' : typeOf(value)
    // JSON stays as it was written, with all digits of its numbers.
    const written = literal === undefined && nestedReader(form).name === 'json' ? text.trim() : JSON.stringify(value)
    if (isAmongTypes) return types.includes(type) ? written : asText
    if (accepted !== null && !accepted.includes(type)) return asText
    // A text may look like a number, and the schema have no place for that number.
    const schema = this.schemas.get(this.name)
    const known = isExactInteger(value) ? Number(value.rawJSON) : value
    const isText = accepted?.includes('string') && !mayFit(schema, schemaOfArgument(schema, this.key), known)
    return isText ? asText : written
  }

  /**
   * How much of the buffer is certainly the value's, and whether it ends there: before `quote` and what follows a
   * value. Null if more text is needed to say.
   */
  private endOfRawValue(quote: string): { length: number; isOver: boolean } | null {
    const mark = quote + endOfValue(this.shape)
    for (let at = this.buffer.indexOf(mark); at >= 0; at = this.buffer.indexOf(mark, at + 1)) {
      const matched = this.followers().map((text) => match(this.buffer, at + quote.length, text, this.isWhole))
      if (matched.some((one) => typeof one === 'number')) return { length: at, isOver: true }
      if (matched.includes('partial')) return at === 0 ? null : { length: at, isOver: false }
    }
    return { length: this.buffer.length - partialSuffixLength(this.buffer, mark), isOver: false }
  }

  /** What may follow a value: the next key, the end of the answer's calls, or of this call before another. */
  private followers(): string[] {
    const { next, last } = this.shape
    const { next_key, close } = this.named()
    const texts = [next_key, ...(next === null ? [] : [close + withName(next, '').trimEnd()]), close + last]
    return texts.map((text) => text.trimEnd() || text)
  }

  private inQuotedValue(state: State & { in: 'value' }): ReplyPart[] | null {
    const { strings } = this.named()
    const { open, close, escapes } = strings
    if (!state.scan && state.text === '') {
      if (this.buffer === '' || (this.buffer.length < open.length && open.startsWith(this.buffer))) return null
      if (this.buffer.startsWith(open)) {
        this.buffer = this.buffer.slice(open.length)
        state.text = open
        return [this.piece('"')]
      }
      state.scan = createValueScan(nestedReader(this.named()))
    }
    if (state.scan) {
      const { length, ended } = state.scan.scan(this.buffer)
      state.text += this.buffer.slice(0, length)
      this.buffer = this.buffer.slice(length)
      if (!ended && !this.isWhole) return null
      this.state = { in: 'end of value' }
      return [this.piece(this.wholeValue({ ...state, types: valueTypes }))]
    }
    if (escapes === 'none') {
      const end = this.endOfRawValue(close)
      if (end === null || (end.length === 0 && !end.isOver)) return null
      const text = this.buffer.slice(0, end.length)
      this.buffer = this.buffer.slice(end.length + (end.isOver ? close.length : 0))
      if (end.isOver) this.state = { in: 'end of value' }
      return [this.piece(escapedPart(text, end.isOver))]
    }
    let end = 0
    while (end < this.buffer.length && !this.buffer.startsWith(close, end)) end += this.buffer[end] === '\\' ? 2 : 1
    const isOver = end < this.buffer.length
    // An escape may be cut: what is whole ends before it.
    const whole = isOver ? end : wholeEscapes(this.buffer)
    if (whole === 0 && !isOver) return null
    const text = unescaped(this.buffer.slice(0, whole))
    this.buffer = this.buffer.slice(whole + (isOver ? close.length : 0))
    if (isOver) this.state = { in: 'end of value' }
    return [this.piece(escapedPart(text, isOver))]
  }

  private afterValue(): ReplyPart[] | null {
    const { next_key } = this.named()
    const end = endOfCall(this.shape)
    const key = match(this.buffer, 0, next_key, this.isWhole)
    const over = match(this.buffer, 0, end, this.isWhole)
    // The longer one first, as it may begin with the other.
    if (typeof key === 'number' && (typeof over !== 'number' || key > over) && over !== 'partial') {
      this.buffer = this.buffer.slice(key)
      this.state = { in: 'key' }
      return []
    }
    if (key === 'partial' || over === 'partial') return null
    if (over === null) return this.giveUp()
    this.buffer = this.buffer.slice(over)
    this.state = { in: 'next' }
    return [this.piece('}')]
  }

  /** The text leaves the shape: what was read stays. */
  private giveUp(): ReplyPart[] {
    this.state = { in: 'over' }
    return []
  }

  private named(): NamedArguments {
    return this.shape.arguments as NamedArguments
  }
}

const content = (text: string): ReplyPart[] => (text === '' ? [] : [{ kind: 'content', text }])

/** Python's literals are read with JSON's among them. */
const nestedReader = ({ nested }: NamedArguments): Dialect =>
  nested.object.name === 'json' ? nested.array : nested.object

function sharedStart(a: string, b: string): string {
  let end = 0
  while (end < a.length && a[end] === b[end]) end++
  return a.slice(0, end)
}

/** The end of a call without arguments, after what is its own. */
function endOfNone(shape: CallShape): string {
  const form = shape.arguments as NamedArguments
  return endOfCall(shape, false).slice(form.none.length)
}

/**
 * A piece of a JSON string, and its closing quote at the end. A surrogate that was cut is written with its other
 * half.
 */
function escapedPart(text: string, isOver: boolean): string {
  return JSON.stringify(text).slice(1, -1) + (isOver ? '"' : '')
}

/** The length of the text without an escape that is cut at its end. */
function wholeEscapes(text: string): number {
  const cut = /\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?$/i.exec(text)
  if (!cut) return text.length
  const slashes = /(?<!\\)\\*$/.exec(text.slice(0, cut.index))![0].length
  return slashes % 2 === 1 ? text.length : cut.index
}

const digits = /\d{1,4}/y
const id = /[\w-]{1,64}/y

/** Matches a text with slots for numbers and ids. */
function match(buffer: string, from: number, pattern: string, isWhole: boolean): Matched {
  let at = from
  for (let index = 0; index < pattern.length; index++) {
    const char = pattern[index]!
    if (at >= buffer.length) {
      // The end of an answer may lack blanks that templates write after it.
      return isWhole && pattern.slice(index).trim() === '' ? at - from : isWhole ? null : 'partial'
    }
    if (char < '\uFDD0' || char > '\uFDD3') {
      if (buffer[at] !== char) return null
      at++
      continue
    }
    const matcher = char === '\uFDD3' ? id : digits
    matcher.lastIndex = at
    const found = matcher.exec(buffer)?.[0]
    if (found === undefined) return null
    at += found.length
    if (at === buffer.length && !isWhole) return 'partial'
  }
  return at - from
}
