// Grammar rules of values in the dialects of call shapes: JSON, Python's literals, and JSON with bare keys.
import type { Dialect } from './call-shape.ts'
import { addJsonRules, boolean, delimitedList, keyExcept, literal, number, string, value, ws } from './json-rules.ts'
import {
  any,
  chars,
  type Expr,
  intersectRanges,
  invertRanges,
  type Range,
  type Rules,
  repeat,
  rule,
  seq,
  text,
  until,
} from './rules.ts'

/** How values are written, for the rules of a schema. */
export interface Lexis {
  quotes: readonly [string, string]
  /** Any string. */
  string: Expr
  /** The content of a string, of that of a JSON string: what would end it here is left out or escaped. */
  content(json: Expr): Expr
  boolean: Expr
  nothing: Expr
  anyKey: Expr
  /** A key other than these; null if the dialect has no rule for it. */
  otherKey: ((names: readonly string[], rules: Rules, prefix: string) => Expr) | null
  /** The rules that the others refer to, `value` and `ws` among them. */
  addRules(rules: Rules): void
  writeKey(key: string): string
  literal(constant: unknown): Expr
  /** The order of an object's keys. */
  inOrder(keys: string[]): string[]
}

export const jsonLexis: Lexis = {
  quotes: ['"', '"'],
  string,
  content: (json) => json,
  boolean,
  nothing: text('null'),
  anyKey: string,
  otherKey: keyExcept,
  addRules: addJsonRules,
  writeKey: JSON.stringify,
  literal,
  inOrder: (keys) => keys,
}

const single = (char: string): Range => [char.codePointAt(0)!, char.codePointAt(0)!]
const controls: Range = [0, 0x1f]
const except = (...ranges: Range[]): Expr => {
  const sorted = ranges.toSorted(([a], [b]) => a - b)
  const kept: Range[] = []
  let from = 0
  for (const [first, last] of sorted) {
    if (first > from) kept.push([from, first - 1])
    from = last + 1
  }
  return chars(...kept, [from, 0x10ffff])
}
const hexDigit = chars([0x30, 0x39], [0x41, 0x46], [0x61, 0x66])
const digit: Range = [0x30, 0x39]
const letters: Range[] = [
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
]
/** The key of an object or the name of an argument that the schema does not name. */
export const bareKey: Expr = seq(chars(...letters), repeat(chars(...letters, digit, single('-'), single('.')), 0, 63))

function quotedBy(quote: string, rules: Rules): Expr {
  const name = quote === "'" ? 'single' : 'double'
  rules.set(
    name,
    any(
      text(quote),
      seq(except(controls, single(quote), single('\\')), rule(name)),
      seq(text('\\'), rule('escaped'), rule(name)),
    ),
  )
  return seq(text(quote), rule(name))
}

function addPythonRules(rules: Rules, literals: Dialect['literals']): void {
  rules.set(
    'escaped',
    any(
      chars(...[...'\'"\\nrtbf'].map(single)),
      seq(text('x'), repeat(hexDigit, 2, 2)),
      seq(text('u'), repeat(hexDigit, 4, 4)),
    ),
  )
  rules.set('string', any(quotedBy("'", rules), quotedBy('"', rules)))
  addValues(rules, rule('string'), literals)
  rules.set('ws', repeat(text(' '), 0, 1))
}

function addValues(rules: Rules, key: Expr, { true: yes, false: no, null: nothing }: Dialect['literals']): void {
  rules.set('value', any(rule('object'), rule('array'), string, rule('number'), rule('literal')))
  rules.set('object', delimitedList('{', seq(key, ws, text(':'), ws, value), '}', 0, null))
  rules.set('array', delimitedList('[', value, ']', 0, null))
  rules.set('number', number)
  rules.set('literal', any(text(yes), text(no), text(nothing)))
}

/** `any_chars`, which patterns of strings refer to, is text without quotes, escapes and the start of `end`. */
function addPlainText(rules: Rules, end: string): void {
  rules.set('any_chars', repeat(except(controls, ...[...`"'\\${end.slice(0, 1)}`].map(single)), 0, null))
}

/** `json` with its texts written by `write`, and without the character that begins `end` where others are possible. */
function contentOf(json: Expr, end: string, write: (text: string) => string): Expr {
  const others = end === '' ? null : invertRanges([single(end)])
  const visit = (expr: Expr): Expr => {
    if (expr.kind === 'text') return text(write(JSON.parse(`"${expr.text}"`)))
    if (expr.kind === 'seq' || expr.kind === 'any') return { kind: expr.kind, parts: expr.parts.map(visit) }
    if (expr.kind === 'repeat') return { ...expr, part: visit(expr.part) }
    if (expr.kind !== 'chars' || others === null) return expr
    const kept = intersectRanges(expr.ranges, others)
    return kept.length > 0 ? chars(...kept) : text(write(end.slice(0, 1)))
  }
  return visit(json)
}

/** `end`: what ends a string of the bare dialect that has no quotes. */
export function lexisOf(dialect: Dialect, end = dialect.quotes[1]): Lexis {
  if (dialect.name === 'json') return jsonLexis
  const { quotes, literals } = dialect
  const isBare = dialect.name === 'bare'
  const write = (scalar: unknown): string => {
    if (scalar === null) return literals.null
    if (typeof scalar === 'boolean') return scalar ? literals.true : literals.false
    if (typeof scalar !== 'string') return String(scalar)
    return isBare ? quotes[0] + scalar + quotes[1] : pythonQuoted(scalar)
  }
  const writeKey = isBare ? (key: string) => key : pythonQuoted
  return {
    quotes: isBare ? quotes : ["'", "'"],
    string,
    content: (json) => contentOf(json, end, (written) => (isBare ? written : pythonQuoted(written).slice(1, -1))),
    boolean: any(text(literals.true), text(literals.false)),
    nothing: text(literals.null),
    anyKey: isBare ? bareKey : string,
    otherKey: null,
    addRules(rules) {
      if (isBare) {
        rules.set('string', seq(text(quotes[0]), until(quotes[1])))
        addValues(rules, bareKey, literals)
        rules.set('ws', text(''))
      } else addPythonRules(rules, literals)
      addPlainText(rules, end)
    },
    writeKey,
    literal: (constant) => literal(constant, write, writeKey),
    // Templates of the bare form sort keys.
    inOrder: (keys) => (isBare ? keys.toSorted((a, b) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1)) : keys),
  }
}

function pythonQuoted(value: string): string {
  const escaped = value.replace(
    /['\\\n\r\t]/g,
    (char) => ({ '\n': '\\n', '\r': '\\r', '\t': '\\t' })[char] ?? `\\${char}`,
  )
  return `'${escaped}'`
}
