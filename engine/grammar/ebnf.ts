// Writes rules in XGrammar's EBNF, in a form that avoids a bug: XGrammar 0.1.27 merges alternatives with a common
// prefix so that texts of neither are accepted (["acbb", "bab", "baba"] allows "acbba"). So all alternatives get
// disjoint FIRST sets: texts become a tree of their characters, and each other alternative becomes its own rule,
// with a reference in it so that XGrammar does not inline it.
import {
  any,
  type Expr,
  empty,
  intersectRanges,
  invertRanges,
  joinRanges,
  lastCodePoint,
  type Range,
  type Rules,
  seq,
  text,
} from './rules.ts'

const lastAscii = 0x7f

export function writeEbnf(rules: Rules): string {
  const lines: string[] = []
  let ruleCount = 0

  const ends = new Map<string, string>()
  /** A rule for any text up to this one, which XGrammar looks for by itself. Returns its name. */
  const untilRule = (end: string): string => {
    let name = ends.get(end)
    if (name === undefined) {
      name = `a${++ruleCount}`
      ends.set(end, name)
      lines.push(`${name} ::= TagDispatch(stop_eos=false, stop_str=(${quoted(end)}), loop_after_dispatch=false)\n`)
    }
    return name
  }

  /** Writes an expression as a separate rule. Returns its name. */
  const separateRule = (expr: Expr): string => {
    const name = `a${++ruleCount}`
    const body = write(expr)
    if (hasReference(expr)) lines.push(`${name} ::= ${body}\n`)
    else lines.push(`${name} ::= ${name}.in\n`, `${name}.in ::= ${body}\n`)
    return name
  }

  const write = (expr: Expr): string => {
    if (expr.kind === 'text') return quoted(expr.text)
    if (expr.kind === 'rule') return expr.name
    if (expr.kind === 'until') return untilRule(expr.text)
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
    const texts = flat.map(literalText).filter((one) => one !== null)
    const all = [...groupByFirstCharacter(texts), ...flat.filter((one) => literalText(one) === null)]
    const firstSets = all.map((one) => firstSetOf(one, rules))
    const clashes = clashFinder(firstSets)
    const written = all.map((one, index) =>
      one === empty ? '""' : clashes(firstSets[index]!) ? separateRule(one) : write(one),
    )
    return `(${written.join(' | ')})`
  }

  const writeChars = (ranges: readonly Range[]): string => {
    const sorted = joinRanges(ranges)
    // XGrammar handles negated classes faster than ranges over all of Unicode.
    if (sorted.some(([from, to]) => from <= lastAscii + 1 && to === lastCodePoint))
      return bracketed(invertRanges(sorted), true)
    // XGrammar misreads other ranges beyond ASCII. Rules use only ASCII, all characters beyond it, and texts.
    if (sorted.at(-1)![1] > lastAscii) throw new Error('A range of characters beyond ASCII can not be written.')
    return bracketed(sorted, false)
  }

  for (const [name, expr] of rules) lines.push(`${name} ::= ${write(expr)}\n`)
  return lines.join('')
}

function flatten(parts: readonly Expr[]): Expr[] {
  return parts.flatMap((part) => (part.kind === 'any' ? flatten(part.parts) : [part]))
}

function literalText(expr: Expr): string | null {
  if (expr.kind === 'text') return expr.text
  if (expr.kind !== 'seq') return null
  const texts = expr.parts.map(literalText)
  return texts.includes(null) ? null : texts.join('')
}

/** Groups texts into alternatives with distinct first characters. */
function groupByFirstCharacter(texts: readonly string[]): Expr[] {
  const groups = new Map<string, string[]>()
  for (const one of new Set(texts)) {
    const first = one === '' ? '' : String.fromCodePoint(one.codePointAt(0)!)
    const group = groups.get(first)
    if (group) group.push(one)
    else groups.set(first, [one])
  }
  return [...groups].map(([first, group]) => {
    if (first === '') return empty
    if (group.length === 1) return text(group[0]!)
    const common = group.reduce(commonPrefix)
    return seq(text(common), any(...groupByFirstCharacter(group.map((one) => one.slice(common.length)))))
  })
}

function commonPrefix(a: string, b: string): string {
  let end = 0
  while (end < a.length && a[end] === b[end]) end++
  // Do not split a surrogate pair.
  return a.slice(0, end > 0 && end < a.length && (a.codePointAt(end - 1) ?? 0) > 0xffff ? end - 1 : end)
}

/**
 * FIRST set of an expression: ASCII characters, any others, or a rule that XGrammar does not inline. Null if unknown.
 */
interface FirstSet {
  ascii: Range[]
  others: boolean
  rule: string | null
}

function firstSetOf(expr: Expr, rules: Rules): FirstSet | null {
  if (expr === empty) return { ascii: [], others: false, rule: null }
  if (expr.kind === 'text') {
    const code = expr.text.codePointAt(0)
    return code === undefined ? null : firstSetOfRanges([[code, code]])
  }
  if (expr.kind === 'chars') return firstSetOfRanges(expr.ranges)
  if (expr.kind === 'seq') return expr.parts.length === 0 ? null : firstSetOf(expr.parts[0]!, rules)
  if (expr.kind !== 'rule') return null
  const named = rules.get(expr.name)
  return named && hasReference(named) ? { ascii: [], others: false, rule: expr.name } : null
}

function firstSetOfRanges(ranges: readonly Range[]): FirstSet {
  return {
    ascii: intersectRanges(ranges, [[0, lastAscii]]),
    others: ranges.some(([, to]) => to > lastAscii),
    rule: null,
  }
}

/** Returns a test whether a FIRST set overlaps another one in `firstSets`. */
function clashFinder(firstSets: readonly (FirstSet | null)[]): (first: FirstSet | null) => boolean {
  let unknown = 0
  let others = 0
  const named = new Map<string, number>()
  const ascii = new Uint32Array(lastAscii + 1)
  for (const first of firstSets) {
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

/** Whether XGrammar keeps a reference in a rule with this body. */
function hasReference(expr: Expr): boolean {
  if (expr.kind === 'rule' || expr.kind === 'until') return true
  if (expr.kind === 'seq' || expr.kind === 'any') return expr.parts.some(hasReference)
  return expr.kind === 'repeat' && hasReference(expr.part)
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
