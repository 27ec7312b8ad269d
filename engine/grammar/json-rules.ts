// Grammar rules of JSON: whitespace, strings, any value, constants.
import {
  any,
  chars,
  type Expr,
  empty,
  intersectRanges,
  invertRanges,
  lastCodePoint,
  optional,
  type Range,
  type Rules,
  repeat,
  rule,
  seq,
  text,
} from './rules.ts'

// Models write compact, spaced or indented JSON, so all are allowed. The bound stops a weak model that repeats blanks.
const whitespaceMax = 20
// These bounds keep every number finite when parsed, and stop a model that repeats a digit.
const integerDigitsMax = 19
const fractionDigitsMax = 16
const exponentDigitsMax = 2

export const ws = rule('ws')
export const value = rule('value')
export const string = rule('string')

/** The characters that a JSON string may contain unescaped. */
export const plainRanges: Range[] = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0xd7ff],
  [0xe000, lastCodePoint],
]
export const plain = {
  kind: 'chars',
  ranges: invertRanges([
    [0, 0x1f],
    [0x22, 0x22],
    [0x5c, 0x5c],
  ]),
} satisfies Expr

const digit = chars([0x30, 0x39])
const digitFromOne = chars([0x31, 0x39])
const hexDigit = chars([0x30, 0x39], [0x41, 0x46], [0x61, 0x66])

export const digits = (min: number, max: number): Expr => repeat(digit, min, max)
const fraction = seq(text('.'), digits(1, fractionDigitsMax))
export const integer = any(text('0'), seq(optional(text('-')), digitFromOne, digits(0, integerDigitsMax - 1)))
export const number = seq(
  optional(text('-')),
  any(text('0'), seq(digitFromOne, digits(0, integerDigitsMax - 1))),
  optional(fraction),
  optional(
    seq(chars([0x45, 0x45], [0x65, 0x65]), optional(chars([0x2b, 0x2b], [0x2d, 0x2d])), digits(1, exponentDigitsMax)),
  ),
)
export const boolean = any(text('true'), text('false'))

export function addJsonRules(rules: Rules): void {
  rules.set('value', any(rule('object'), rule('array'), string, rule('number'), rule('literal')))
  rules.set('object', delimitedList('{', seq(string, ws, text(':'), ws, value), '}', 0, null))
  rules.set('array', delimitedList('[', value, ']', 0, null))
  rules.set('number', number)
  rules.set('literal', any(boolean, text('null')))
  rules.set('string', seq(text('"'), rule('chars')))
  // Recursion instead of a repetition of alternatives: XGrammar can then precompute most tokens of a string (0.02 ms a
  // mask instead of 27).
  rules.set('chars', any(text('"'), seq(plain, rule('chars')), seq(text('\\'), rule('escape'), rule('chars'))))
  rules.set('any_chars', any(empty, seq(plain, rule('any_chars')), seq(text('\\'), rule('escape'), rule('any_chars'))))
  rules.set(
    'escape',
    any(
      chars(...[...'"\\/bfnrt'].map((char): Range => [char.codePointAt(0)!, char.codePointAt(0)!])),
      seq(text('u'), repeat(hexDigit, 4, 4)),
    ),
  )
  rules.set('ws', repeat(chars([0x20, 0x20], [0x0a, 0x0a], [0x0d, 0x0d], [0x09, 0x09]), 0, whitespaceMax))
}

/** An array or object: `min` to `max` (null: unbounded) comma-separated parts between brackets. */
export function delimitedList(open: string, part: Expr, close: string, min: number, max: number | null): Expr {
  if (max === 0) return seq(text(open), ws, text(close))
  const filled = seq(
    part,
    repeat(seq(ws, text(','), ws, part), Math.max(0, min - 1), max === null ? null : max - 1),
    ws,
    text(close),
  )
  return seq(text(open), ws, min === 0 ? any(text(close), filled) : filled)
}

/**
 * Exactly this value with any whitespace; the properties of objects in their order. `write` and `writeKey` write what
 * has no parts.
 */
export function literal(
  constant: unknown,
  write: (scalar: unknown) => string = JSON.stringify,
  writeKey: (key: string) => string = JSON.stringify,
): Expr {
  const parts = Array.isArray(constant)
    ? constant.map((inner) => literal(inner, write, writeKey))
    : typeof constant === 'object' && constant !== null
      ? Object.entries(constant).map(([key, inner]) =>
          seq(text(writeKey(key)), ws, text(':'), ws, literal(inner, write, writeKey)),
        )
      : null
  if (!parts) return text(write(constant))
  const [open, close] = Array.isArray(constant) ? ['[', ']'] : ['{', '}']
  return seq(
    text(open),
    ws,
    ...parts.flatMap((part, index) => (index === 0 ? [part, ws] : [text(','), ws, part, ws])),
    text(close),
  )
}

/**
 * A quoted property name other than `names`. A trie of the names, left at the first differing character. No escape may
 * come before that: it could spell one of the names.
 */
export function keyExcept(names: readonly string[], rules: Rules, prefix: string): Expr {
  interface Branch {
    ends: boolean
    next: Map<number, Branch>
  }
  const root: Branch = { ends: false, next: new Map() }
  for (const name of names) {
    let branch: Branch | null = root
    for (const char of name) {
      const code = char.codePointAt(0)!
      // Stop here: a character that JSON must escape is unreachable without an escape.
      if (code < 0x20 || char === '"' || char === '\\') {
        branch = null
        break
      }
      if (!branch.next.has(code)) branch.next.set(code, { ends: false, next: new Map() })
      branch = branch.next.get(code)!
    }
    if (branch) branch.ends = true
  }
  let branchCount = 0
  const pending: { branch: Branch; name: string }[] = [{ branch: root, name: `${prefix}_0` }]
  for (let step = pending.pop(); step; step = pending.pop()) {
    const { branch, name } = step
    const branchRanges = [...branch.next.keys()].map((code): Range => [code, code])
    // XGrammar misreads ranges with holes beyond ASCII. Where a name continues there, other names continue in ASCII
    // only.
    const within: Range[] = branchRanges.some(([code]) => code > 0x7f) ? [[0, 0x7f]] : [[0, lastCodePoint]]
    const parts: Expr[] = [
      seq(
        { kind: 'chars', ranges: intersectRanges(intersectRanges(plain.ranges, invertRanges(branchRanges)), within) },
        rule('chars'),
      ),
    ]
    if (!branch.ends) parts.push(text('"'))
    for (const [code, next] of branch.next) {
      const inner = `${prefix}_${++branchCount}`
      parts.push(seq(text(String.fromCodePoint(code)), rule(inner)))
      pending.push({ branch: next, name: inner })
    }
    rules.set(name, any(...parts))
  }
  return seq(text('"'), rule(`${prefix}_0`))
}
