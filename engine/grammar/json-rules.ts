// The grammar of JSON itself: whitespace, strings, any value, given values.
import {
  any,
  chars,
  type Expr,
  intersectRanges,
  invertRanges,
  lastCodePoint,
  maybe,
  nothing,
  type Range,
  type Rules,
  repeat,
  rule,
  seq,
  text,
} from './rules.ts'

// Models were tuned on compact, spaced and indented JSON, so all are allowed; the bound stops a weak model that writes
// blanks for ever.
const whitespaceMax = 20
// The bounds on digits keep every number finite where it is read back, and end a model that repeats a digit.
const integerDigitsMax = 19
const fractionDigitsMax = 16
const exponentDigitsMax = 2

export const ws = rule('ws')
export const value = rule('value')
export const string = rule('string')

/** The characters that a JSON string may hold as they are. */
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
export const fraction = seq(text('.'), digits(1, fractionDigitsMax))
export const integer = any(text('0'), seq(maybe(text('-')), digitFromOne, digits(0, integerDigitsMax - 1)))
export const number = seq(
  maybe(text('-')),
  any(text('0'), seq(digitFromOne, digits(0, integerDigitsMax - 1))),
  maybe(fraction),
  maybe(seq(chars([0x45, 0x45], [0x65, 0x65]), maybe(chars([0x2b, 0x2b], [0x2d, 0x2d])), digits(1, exponentDigitsMax))),
)
export const boolean = any(text('true'), text('false'))

export function addJsonRules(rules: Rules): void {
  rules.set('value', any(rule('object'), rule('array'), string, rule('number'), rule('literal')))
  rules.set('object', listed('{', seq(string, ws, text(':'), ws, value), '}', 0, null))
  rules.set('array', listed('[', value, ']', 0, null))
  rules.set('number', number)
  rules.set('literal', any(boolean, text('null')))
  rules.set('string', seq(text('"'), rule('chars')))
  // A rule that calls itself, not a repetition of alternatives: XGrammar then knows most tokens of a string without
  // looking (0.02 ms a mask, not 27).
  rules.set('chars', any(text('"'), seq(plain, rule('chars')), seq(text('\\'), rule('escape'), rule('chars'))))
  rules.set(
    'any_chars',
    any(nothing, seq(plain, rule('any_chars')), seq(text('\\'), rule('escape'), rule('any_chars'))),
  )
  rules.set(
    'escape',
    any(
      chars(...[...'"\\/bfnrt'].map((char): Range => [char.codePointAt(0)!, char.codePointAt(0)!])),
      seq(text('u'), repeat(hexDigit, 4, 4)),
    ),
  )
  rules.set('ws', repeat(chars([0x20, 0x20], [0x0a, 0x0a], [0x0d, 0x0d], [0x09, 0x09]), 0, whitespaceMax))
}

/** An array's or object's text: `min` to `max` (null: any number of) parts between the brackets, with commas. */
export function listed(open: string, part: Expr, close: string, min: number, max: number | null): Expr {
  if (max === 0) return seq(text(open), ws, text(close))
  const filled = seq(
    part,
    repeat(seq(ws, text(','), ws, part), Math.max(0, min - 1), max === null ? null : max - 1),
    ws,
    text(close),
  )
  return seq(text(open), ws, min === 0 ? any(text(close), filled) : filled)
}

/** Exactly this value, whatever the whitespace in it; an object's properties in their order. */
export function literal(given: unknown): Expr {
  const parts = Array.isArray(given)
    ? given.map(literal)
    : typeof given === 'object' && given !== null
      ? Object.entries(given).map(([key, inner]) => seq(text(JSON.stringify(key)), ws, text(':'), ws, literal(inner)))
      : null
  if (!parts) return text(JSON.stringify(given))
  const [open, close] = Array.isArray(given) ? ['[', ']'] : ['{', '}']
  return seq(
    text(open),
    ws,
    ...parts.flatMap((part, index) => (index === 0 ? [part, ws] : [text(','), ws, part, ws])),
    text(close),
  )
}

/**
 * A property's name, quoted, that is none of `names`: a tree of the names' characters that is left at the first one
 * that differs. An escape could spell a name in other letters, so there is none before that.
 */
export function keyExcept(names: readonly string[], rules: Rules, prefix: string): Expr {
  type Branch = { ends: boolean; next: Map<number, Branch> }
  const top: Branch = { ends: false, next: new Map() }
  for (const name of names) {
    let branch: Branch | null = top
    for (const char of name) {
      const code = char.codePointAt(0)!
      // A character that JSON must escape can't be reached without an escape.
      if (code < 0x20 || char === '"' || char === '\\') {
        branch = null
        break
      }
      if (!branch.next.has(code)) branch.next.set(code, { ends: false, next: new Map() })
      branch = branch.next.get(code)!
    }
    if (branch) branch.ends = true
  }
  let made = 0
  const open: { branch: Branch; name: string }[] = [{ branch: top, name: `${prefix}_0` }]
  for (let step = open.pop(); step; step = open.pop()) {
    const { branch, name } = step
    const taken = [...branch.next.keys()].map((code): Range => [code, code])
    // Ranges with holes beyond ASCII are misread by XGrammar: where a name goes on there, others go on in ASCII.
    const within: Range[] = taken.some(([code]) => code > 0x7f) ? [[0, 0x7f]] : [[0, lastCodePoint]]
    const parts: Expr[] = [
      seq(
        { kind: 'chars', ranges: intersectRanges(intersectRanges(plain.ranges, invertRanges(taken)), within) },
        rule('chars'),
      ),
    ]
    if (!branch.ends) parts.push(text('"'))
    for (const [code, next] of branch.next) {
      const inner = `${prefix}_${++made}`
      parts.push(seq(text(String.fromCodePoint(code)), rule(inner)))
      open.push({ branch: next, name: inner })
    }
    rules.set(name, any(...parts))
  }
  return seq(text('"'), rule(`${prefix}_0`))
}
