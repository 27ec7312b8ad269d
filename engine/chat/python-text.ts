// Values as Python writes them: `str`, `repr` and `json.dumps`. Models were trained on what these write.
import { countSteps } from './render-bounds.ts'

/** A value of the interpreter, which does not export its classes. */
export interface Value {
  type: string
  value: unknown
}

export interface JsonForm {
  indent: number
  ensure_ascii: boolean
  separators: readonly [item: string, key: string] | null
  sort_keys: boolean
}

const plainJson: JsonForm = { indent: 0, ensure_ascii: false, separators: null, sort_keys: false }

/** A number of JSON that Python writes otherwise than JavaScript: a whole float, or an integer that is too large. */
export class ExactNumber {
  readonly source: string
  constructor(source: string) {
    this.source = source
  }

  get isFloat(): boolean {
    return /[.eE]/.test(this.source)
  }
}

/** Like `JSON.parse`, with the numbers that Python reads. */
export function parseJson(text: string): unknown {
  if (!/\d[.eE]|\d{16}/.test(text)) return JSON.parse(text)
  const reviver = (_: string, value: unknown, { source = '' }: { source?: string }) => {
    if (typeof value !== 'number') return value
    const isExact = /[.eE]/.test(source) ? !Number.isInteger(value) : Number.isSafeInteger(value)
    return isExact ? value : new ExactNumber(source)
  }
  return (JSON.parse as (text: string, reader: typeof reviver) => unknown)(text, reviver)
}

/** Digits of whole numbers that a JavaScript number cannot hold. */
const exactDigits = new WeakMap<Value, string>()

/** Has `value` written with these digits. */
export function withDigits(value: Value, digits: string): Value {
  exactDigits.set(value, digits)
  return value
}

/** `str(value)` of Python. */
export function textOf(value: Value): string {
  if (value.type === 'UndefinedValue') return ''
  return value.type === 'StringValue' ? (value.value as string) : literalOf(value)
}

/** `repr(value)` of Python. */
function literalOf(value: Value): string {
  countSteps(1)
  switch (value.type) {
    case 'StringValue':
      return pythonString(value.value as string)
    case 'BooleanValue':
      return value.value ? 'True' : 'False'
    case 'NullValue':
      return 'None'
    case 'IntegerValue':
      return exactDigits.get(value) ?? String(value.value)
    case 'FloatValue':
      return floatText(value.value as number)
    case 'ArrayValue':
      return `[${(value.value as Value[]).map(literalOf).join(', ')}]`
    case 'TupleValue':
      return `(${(value.value as Value[]).map(literalOf).join(', ')})`
    case 'ObjectValue': {
      const entries = [...(value.value as Map<string, Value>)]
      return `{${entries.map(([key, item]) => `${pythonString(key)}: ${literalOf(item)}`).join(', ')}}`
    }
    default:
      return String(value)
  }
}

/** `json.dumps(value)` of Python. What is undefined becomes null. */
export function jsonOf(value: Value, form: JsonForm = plainJson, depth = 0): string {
  countSteps(1)
  const { indent, ensure_ascii, sort_keys } = form
  const [comma, colon] = form.separators ?? (indent ? [',', ': '] : [', ', ': '])
  const quoted = (text: string) => {
    const json = JSON.stringify(text)
    return ensure_ascii
      ? json.replace(/[\x7f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
      : json
  }
  const around = (open: string, items: string[], close: string) => {
    if (!indent || items.length === 0) return open + items.join(comma) + close
    const line = (level: number) => `\n${' '.repeat(indent * level)}`
    return open + line(depth + 1) + items.join(comma + line(depth + 1)) + line(depth) + close
  }
  switch (value.type) {
    case 'NullValue':
    case 'UndefinedValue':
      return 'null'
    case 'BooleanValue':
      return String(value.value)
    case 'IntegerValue':
      return exactDigits.get(value) ?? String(value.value)
    case 'FloatValue':
      return floatText(value.value as number, ['NaN', 'Infinity'])
    case 'StringValue':
      return quoted(value.value as string)
    case 'ArrayValue':
    case 'TupleValue': {
      const items = (value.value as Value[]).map((item) => jsonOf(item, form, depth + 1))
      return around('[', items, ']')
    }
    case 'NamespaceValue':
    case 'ObjectValue': {
      const entries = [...(value.value as Map<string, Value>)]
      if (sort_keys) entries.sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
      const items = entries.map(([key, item]) => quoted(key) + colon + jsonOf(item, form, depth + 1))
      return around('{', items, '}')
    }
    default:
      throw new Error(`a value of type ${value.type} cannot be written as JSON`)
  }
}

/** `repr(value)` of a float in Python. `others`: what is no number, and what is infinite. */
export function floatText(value: number, [nan, infinite] = ['nan', 'inf']): string {
  if (Number.isNaN(value)) return nan!
  if (!Number.isFinite(value)) return value < 0 ? `-${infinite}` : infinite!
  const [digits, exponent] = value.toExponential().split('e') as [string, string]
  const power = Number(exponent)
  if (power < -4 || power >= 16) return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, '0')}`
  const text = Object.is(value, -0) ? '-0' : String(value)
  return text.includes('.') ? text : `${text}.0`
}

/** `repr(text)` of Python. */
export function pythonString(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'"
  const named: Record<string, string> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t', [quote]: `\\${quote}` }
  const written = text.replace(/['"\\]|(?! )[\p{C}\p{Z}]/gu, (char) => {
    if (char in named) return named[char]!
    if (char === "'" || char === '"') return char
    const code = char.codePointAt(0)!
    const [letter, digits] = code > 0xffff ? ['U', 8] : code > 0xff ? ['u', 4] : ['x', 2]
    return `\\${letter}${code.toString(16).padStart(digits as number, '0')}`
  })
  return quote + written + quote
}
