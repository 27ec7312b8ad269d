// Rules in XGrammar's EBNF, in a form that it reads rightly. XGrammar 0.1.27 joins the states of alternatives that
// begin alike in a way that lets texts through that belong to none of them (["acbb", "bab", "baba"] allows "acbba"). So
// alternatives are written with beginnings that all differ: texts as a tree of their characters, and the others each as
// a rule of its own, with a reference in it, so that XGrammar does not put it back in place.
import {
  any,
  type Expr,
  intersectRanges,
  invertRanges,
  joinRanges,
  lastCodePoint,
  nothing,
  type Range,
  type Rules,
  seq,
  text,
} from './rules.ts'

const lastAscii = 0x7f

export function writeEbnf(rules: Rules): string {
  const lines: string[] = []
  let made = 0

  /** A rule of its own for what is written. */
  const apart = (expr: Expr): string => {
    const name = `a${++made}`
    const body = write(expr)
    if (refersTo(expr)) lines.push(`${name} ::= ${body}\n`)
    else lines.push(`${name} ::= ${name}.in\n`, `${name}.in ::= ${body}\n`)
    return name
  }

  const write = (expr: Expr): string => {
    if (expr.kind === 'text') return quoted(expr.text)
    if (expr.kind === 'rule') return expr.name
    if (expr.kind === 'seq') return expr.parts.length === 0 ? '""' : `(${expr.parts.map(write).join(' ')})`
    if (expr.kind === 'any') return writeAny(expr.parts)
    if (expr.kind === 'chars') return writeChars(expr.ranges)
    const { part, min, max } = expr
    if (max === 0) return '""'
    if (min === 1 && max === 1) return write(part)
    return `(${write(part)})${min === 0 && max === null ? '*' : min === 0 && max === 1 ? '?' : `{${min},${max ?? ''}}`}`
  }

  const writeAny = (parts: readonly Expr[]): string => {
    const flat = flatten(parts)
    const texts = flat.map(plainText).filter((one) => one !== null)
    const all = [...byFirst(texts), ...flat.filter((one) => plainText(one) === null)]
    const firsts = all.map((one) => firstOf(one, rules))
    const clashes = clashesAmong(firsts)
    const written = all.map((one, index) =>
      one === nothing ? '""' : clashes(firsts[index]!) ? apart(one) : write(one),
    )
    return `(${written.join(' | ')})`
  }

  const writeChars = (ranges: readonly Range[]): string => {
    const sorted = joinRanges(ranges)
    // XGrammar reads "every character but these" more cheaply than ranges over all of Unicode.
    if (sorted.some(([from, to]) => from <= lastAscii + 1 && to === lastCodePoint))
      return bracketed(invertRanges(sorted), true)
    // Other ranges beyond ASCII are misread; who makes rules keeps to ASCII, all characters beyond it, and texts.
    if (sorted.at(-1)![1] > lastAscii) throw new Error('A range of characters beyond ASCII can not be written.')
    return bracketed(sorted, false)
  }

  for (const [name, expr] of rules) lines.push(`${name} ::= ${write(expr)}\n`)
  return lines.join('')
}

function flatten(parts: readonly Expr[]): Expr[] {
  return parts.flatMap((part) => (part.kind === 'any' ? flatten(part.parts) : [part]))
}

function plainText(expr: Expr): string | null {
  if (expr.kind === 'text') return expr.text
  if (expr.kind !== 'seq') return null
  const texts = expr.parts.map(plainText)
  return texts.includes(null) ? null : texts.join('')
}

/** The texts as alternatives that each begin with another character. */
function byFirst(texts: readonly string[]): Expr[] {
  const groups = new Map<string, string[]>()
  for (const one of new Set(texts)) {
    const first = one === '' ? '' : String.fromCodePoint(one.codePointAt(0)!)
    const group = groups.get(first)
    if (group) group.push(one)
    else groups.set(first, [one])
  }
  return [...groups].map(([first, group]) => {
    if (first === '') return nothing
    if (group.length === 1) return text(group[0]!)
    const common = group.reduce(commonPrefix)
    return seq(text(common), any(...byFirst(group.map((one) => one.slice(common.length)))))
  })
}

function commonPrefix(a: string, b: string): string {
  let end = 0
  while (end < a.length && a[end] === b[end]) end++
  // Not between the two halves of a character.
  return a.slice(0, end > 0 && end < a.length && (a.codePointAt(end - 1) ?? 0) > 0xffff ? end - 1 : end)
}

/** What a part begins with: ASCII characters, other ones, or a rule that stays a rule; null where that is not plain. */
type First = { ascii: Range[]; others: boolean; rule: string | null }

function firstOf(expr: Expr, rules: Rules): First | null {
  if (expr === nothing) return { ascii: [], others: false, rule: null }
  if (expr.kind === 'text') {
    const code = expr.text.codePointAt(0)
    return code === undefined ? null : ofRanges([[code, code]])
  }
  if (expr.kind === 'chars') return ofRanges(expr.ranges)
  if (expr.kind === 'seq') return expr.parts.length === 0 ? null : firstOf(expr.parts[0]!, rules)
  if (expr.kind !== 'rule') return null
  const named = rules.get(expr.name)
  return named && refersTo(named) ? { ascii: [], others: false, rule: expr.name } : null
}

function ofRanges(ranges: readonly Range[]): First {
  return {
    ascii: intersectRanges(ranges, [[0, lastAscii]]),
    others: ranges.some(([, to]) => to > lastAscii),
    rule: null,
  }
}

/** Whether a beginning may be that of another among `firsts`, which it is one of. */
function clashesAmong(firsts: readonly (First | null)[]): (first: First | null) => boolean {
  let unknown = 0
  let others = 0
  const named = new Map<string, number>()
  const ascii = new Uint32Array(lastAscii + 1)
  for (const first of firsts) {
    if (!first) unknown++
    else {
      if (first.others) others++
      if (first.rule !== null) named.set(first.rule, (named.get(first.rule) ?? 0) + 1)
      for (const [from, to] of first.ascii) for (let code = from; code <= to; code++) ascii[code]!++
    }
  }
  return (first) =>
    !first ||
    unknown > 0 ||
    (first.others && others > 1) ||
    (first.rule !== null && named.get(first.rule)! > 1) ||
    first.ascii.some(([from, to]) => ascii.subarray(from, to + 1).some((count) => count > 1))
}

/** Whether a rule of this body holds a reference in what XGrammar makes of it. */
function refersTo(expr: Expr): boolean {
  if (expr.kind === 'rule') return true
  if (expr.kind === 'seq' || expr.kind === 'any') return expr.parts.some(refersTo)
  return expr.kind === 'repeat' && refersTo(expr.part)
}

function quoted(value: string): string {
  if (/^[\w .,:;{}[\]-]*$/.test(value)) return `"${value}"`
  return `"${[...value].map((char) => (/[\w .,:;{}[\]-]/.test(char) ? char : escaped(char.codePointAt(0)!))).join('')}"`
}

function bracketed(ranges: readonly Range[], negated: boolean): string {
  const written = ranges.map(([from, to]) => (from === to ? escaped(from) : `${escaped(from)}-${escaped(to)}`))
  return `[${negated ? '^' : ''}${written.join('')}]`
}

function escaped(code: number): string {
  const char = String.fromCodePoint(code)
  if (/[A-Za-z0-9]/.test(char)) return char
  return code > 0xffff ? `\\U${code.toString(16).padStart(8, '0')}` : `\\u${code.toString(16).padStart(4, '0')}`
}
