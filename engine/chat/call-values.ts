// Values of arguments in the dialects of call shapes: written, found in text, and read.
import { exactInteger } from '../../lib/json.ts'
import { type Dialect, jsonDialect } from '../grammar/call-shape.ts'
import { floatText, pythonString } from './python-text.ts'

/** `json.dumps` of Python, `repr`, or the bare form. */
export function writeValue(value: unknown, dialect: Dialect): string {
  const { name, quotes, literals } = dialect
  if (typeof value === 'string')
    return name === 'bare'
      ? quotes[0] + value + quotes[1]
      : name === 'python'
        ? pythonString(value)
        : JSON.stringify(value)
  if (value === null) return literals.null
  if (typeof value === 'boolean') return value ? literals.true : literals.false
  if (typeof value === 'number') return Number.isInteger(value) ? String(value) : floatText(value)
  if (typeof value !== 'object') return String(value)
  const separator = name === 'bare' ? ',' : ', '
  if (Array.isArray(value)) return `[${value.map((item) => writeValue(item, dialect)).join(separator)}]`
  const entries = Object.entries(value)
  // Templates of the bare form sort keys, so that equal calls are equal text.
  if (name === 'bare') entries.sort(([a], [b]) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1))
  const written = entries.map(([key, item]) =>
    name === 'bare'
      ? `${key}:${writeValue(item, dialect)}`
      : `${writeValue(key, dialect)}: ${writeValue(item, dialect)}`,
  )
  return `{${written.join(separator)}}`
}

/** Reads a whole value. Returns undefined if it is none. What JavaScript cannot hold is an `exactInteger`. */
export function readValue(text: string, dialect: Dialect): unknown {
  if (dialect.name === 'json') {
    try {
      return JSON.parse(text)
    } catch {
      return undefined
    }
  }
  const reader = new Reader(text, dialect)
  const value = reader.value()
  return reader.isOver() ? value : undefined
}

const depthMax = 64
/** Characters that show whether a value begins. */
const valueStartMax = 32

class Reader {
  private at = 0
  private readonly text: string
  private readonly dialect: Dialect

  constructor(text: string, dialect: Dialect) {
    this.text = text
    this.dialect = dialect
  }

  isOver(): boolean {
    this.blanks()
    return this.at === this.text.length
  }

  value(depth = 0): unknown {
    this.blanks()
    if (depth > depthMax) return undefined
    if (this.take('[')) return this.items(']', () => this.value(depth + 1))
    if (this.take('{')) {
      const entries = this.items('}', () => {
        const key = this.key()
        this.blanks()
        if (key === undefined || !this.take(':')) return undefined
        const value = this.value(depth + 1)
        return value === undefined ? undefined : ([key, value] as const)
      })
      return entries && Object.fromEntries(entries)
    }
    const text = this.string()
    if (text !== undefined) return text
    const word = /[^\s,\]})]+/y
    word.lastIndex = this.at
    const bare = word.exec(this.text)?.[0]
    if (bare === undefined) return undefined
    this.at += bare.length
    const { literals } = this.dialect
    if (bare === literals.null || bare === 'null') return null
    if (bare === literals.true || bare === 'true') return true
    if (bare === literals.false || bare === 'false') return false
    if (/^-?[1-9]\d*$/.test(bare) && !Number.isSafeInteger(Number(bare))) return exactInteger(bare)
    return /^-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$/.test(bare) ? Number(bare) : undefined
  }

  private items<T>(end: string, item: () => T | undefined): T[] | undefined {
    const items: T[] = []
    for (;;) {
      this.blanks()
      if (this.take(end)) return items
      if (items.length > 0 && !this.take(',')) return undefined
      this.blanks()
      if (this.take(end)) return items
      const next = item()
      if (next === undefined) return undefined
      items.push(next)
    }
  }

  private key(): string | undefined {
    const { name, quotes, literals } = this.dialect
    if (name !== 'bare') return this.string()
    // A key may have colons: the last is before what begins a value.
    for (let end = this.text.indexOf(':', this.at); end >= 0; end = this.text.indexOf(':', end + 1)) {
      const value = this.text.slice(end + 1, end + 1 + valueStartMax).trimStart()
      const begins = [quotes[0], ...Object.values(literals)].some((start) => value.startsWith(start))
      if (!begins && !/^(?:[[{]|-?\.?\d)/.test(value)) continue
      const key = this.text.slice(this.at, end)
      this.at = end
      return key
    }
    return undefined
  }

  private string(): string | undefined {
    const { name, quotes } = this.dialect
    if (name === 'bare') {
      if (!this.take(quotes[0])) return undefined
      const end = this.text.indexOf(quotes[1], this.at)
      if (end < 0) return undefined
      const text = this.text.slice(this.at, end)
      this.at = end + quotes[1].length
      return text
    }
    const quote = this.text[this.at]
    if (quote !== "'" && quote !== '"') return undefined
    for (let end = this.at + 1; end < this.text.length; end++) {
      if (this.text[end] === '\\') end++
      else if (this.text[end] === quote) {
        const text = unescaped(this.text.slice(this.at + 1, end))
        this.at = end + 1
        return text
      }
    }
    return undefined
  }

  private take(text: string): boolean {
    if (!this.text.startsWith(text, this.at)) return false
    this.at += text.length
    return true
  }

  private blanks(): void {
    while (this.at < this.text.length && /\s/.test(this.text[this.at]!)) this.at++
  }
}

const escapes: Record<string, string> = { n: '\n', r: '\r', t: '\t', b: '\b', f: '\f', v: '\v', a: '\x07', 0: '\0' }

/** The text that is written with backslashes, as in Python and JSON. */
export function unescaped(text: string): string {
  return text.replace(/\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([\s\S]))/gi, (_, x, u, U, char) =>
    char === undefined
      ? String.fromCodePoint(Math.min(Number.parseInt(x ?? u ?? U, 16), 0x10ffff))
      : (escapes[char] ?? char),
  )
}

/** Where a value ends: after its last bracket or quote, or before what can't belong to a word. */
export interface ValueScan {
  scan(text: string): { length: number; ended: boolean }
}

/** Matches brackets and quotes alone. `text` is what is new. */
export function createValueScan(dialect: Dialect): ValueScan {
  const isBare = dialect.name === 'bare'
  let depth = 0
  let started = false
  let quote = ''
  let pending = ''
  return {
    scan(added) {
      // A marker that may be cut is scanned with what follows.
      const held = pending.length
      const text = pending + added
      pending = ''
      for (let at = 0; at < text.length; at++) {
        const end = (length: number) => ({ length: length - held, ended: true })
        if (quote !== '') {
          if (!isBare && text[at] === '\\') {
            if (at + 1 === text.length) pending = '\\'
            at++
          } else if (text.startsWith(quote, at)) {
            at += quote.length - 1
            quote = ''
            if (depth === 0) return end(at + 1)
          } else if (quote.startsWith(text.slice(at))) {
            pending = text.slice(at)
            break
          }
          continue
        }
        const opening = isBare
          ? dialect.quotes[0]
          : text[at] === '"' || (text[at] === "'" && dialect !== jsonDialect)
            ? text[at]!
            : ''
        if (opening !== '' && text.startsWith(opening, at)) {
          at += opening.length - 1
          quote = isBare ? dialect.quotes[1] : opening
          started = true
        } else if (opening !== '' && isBare && opening.startsWith(text.slice(at))) {
          pending = text.slice(at)
          break
        } else if (/[[{]/.test(text[at]!)) {
          depth++
          started = true
        } else if (/[\]})]/.test(text[at]!)) {
          if (depth === 0) return end(at)
          depth--
          if (depth === 0) return end(at + 1)
        } else if (depth === 0 && started && /[\s,]/.test(text[at]!)) return end(at)
        else started = true
      }
      return { length: added.length, ended: false }
    },
  }
}
