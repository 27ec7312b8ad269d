// Grammars as data: rules made of expressions, the alternatives that can never end taken out.
import { ApiError } from '../../contract/errors.ts'
import { writeEbnf } from './ebnf.ts'
import { checkSize } from './schema-check.ts'
import { schemaRules } from './schema-rules.ts'

export type Range = readonly [from: number, to: number]

/**
 * A text as it is, one character of some code points, another rule, parts in order, one of several parts (none: nothing
 * fits), a part some times over.
 */
export type Expr =
  | { kind: 'text'; text: string }
  | { kind: 'chars'; ranges: readonly Range[] }
  | { kind: 'rule'; name: string }
  | { kind: 'seq'; parts: readonly Expr[] }
  | { kind: 'any'; parts: readonly Expr[] }
  | { kind: 'repeat'; part: Expr; min: number; max: number | null }

export type Rules = Map<string, Expr>

export const lastCodePoint = 0x10ffff

export const text = (value: string): Expr => ({ kind: 'text', text: value })
export const chars = (...ranges: Range[]): Expr => ({ kind: 'chars', ranges })
export const rule = (name: string): Expr => ({ kind: 'rule', name })
export const seq = (...parts: Expr[]): Expr => (parts.length === 1 ? parts[0]! : { kind: 'seq', parts })
export const any = (...parts: Expr[]): Expr => (parts.length === 1 ? parts[0]! : { kind: 'any', parts })
export const repeat = (part: Expr, min: number, max: number | null): Expr => ({ kind: 'repeat', part, min, max })
export const maybe = (part: Expr): Expr => repeat(part, 0, 1)
export const never: Expr = { kind: 'any', parts: [] }
export const nothing: Expr = { kind: 'text', text: '' }

/**
 * The rules without what no finite text can fulfil: a model that entered such an alternative could never end. Null when
 * nothing is left of `root`.
 */
export function prune(rules: Rules): Rules | null {
  const ending = new Set<string>()
  const ends = (expr: Expr): boolean => {
    if (expr.kind === 'rule') return ending.has(expr.name)
    if (expr.kind === 'seq') return expr.parts.every(ends)
    if (expr.kind === 'any') return expr.parts.some(ends)
    if (expr.kind === 'repeat') return expr.min === 0 || ends(expr.part)
    return true
  }
  // A rule is looked at again when one that it names turns out to end.
  const namedBy = new Map<string, string[]>()
  for (const [name, expr] of rules)
    for (const named of namesIn(expr)) {
      const others = namedBy.get(named)
      if (others) others.push(name)
      else namedBy.set(named, [name])
    }
  const waiting = [...rules.keys()]
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    if (ending.has(name) || !ends(rules.get(name)!)) continue
    ending.add(name)
    waiting.push(...(namedBy.get(name) ?? []))
  }
  if (!ending.has('root')) return null
  const cut = (expr: Expr): Expr => {
    if (expr.kind === 'seq') return seq(...expr.parts.map(cut))
    if (expr.kind === 'any') return any(...expr.parts.filter(ends).map(cut))
    if (expr.kind === 'repeat') return ends(expr.part) ? repeat(cut(expr.part), expr.min, expr.max) : nothing
    return expr
  }
  const used: Rules = new Map()
  const open = ['root']
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    if (used.has(name)) continue
    const expr = cut(rules.get(name)!)
    used.set(name, expr)
    for (const named of namesIn(expr)) open.push(named)
  }
  return used
}

/** The rules that an expression names, each once. */
function namesIn(expr: Expr): Set<string> {
  const names = new Set<string>()
  const visit = (part: Expr): void => {
    if (part.kind === 'rule') names.add(part.name)
    else if (part.kind === 'seq' || part.kind === 'any') part.parts.forEach(visit)
    else if (part.kind === 'repeat') visit(part.part)
  }
  visit(expr)
  return names
}

/** How many parts an expression is written with. */
export function sizeOfExpr(expr: Expr): number {
  if (expr.kind === 'seq' || expr.kind === 'any') return expr.parts.reduce((sum, part) => sum + sizeOfExpr(part), 1)
  return expr.kind === 'repeat' ? 1 + sizeOfExpr(expr.part) : 1
}

/** A rule that is itself again before a character was read, or null. */
export function findEmptyLoop(rules: Rules): string | null {
  const state = new Map<string, 'open' | 'done'>()
  const straight = (expr: Expr): string[] =>
    expr.kind === 'rule' ? [expr.name] : expr.kind === 'any' ? expr.parts.flatMap(straight) : []
  for (const start of rules.keys()) {
    const stack = [{ name: start, leaving: false }]
    for (let step = stack.pop(); step; step = stack.pop()) {
      if (step.leaving) state.set(step.name, 'done')
      else if (state.get(step.name) === 'open') return step.name
      else if (!state.has(step.name)) {
        state.set(step.name, 'open')
        stack.push({ name: step.name, leaving: true })
        for (const name of straight(rules.get(step.name) ?? nothing)) {
          if (state.get(name) === 'open') return name
          stack.push({ name, leaving: false })
        }
      }
    }
  }
  return null
}

/** The ranges in order, those that touch made one. */
export function joinRanges(ranges: readonly Range[]): Range[] {
  const joined: [number, number][] = []
  for (const [from, to] of [...ranges].sort((a, b) => a[0] - b[0])) {
    const last = joined.at(-1)
    if (last && from <= last[1] + 1) last[1] = Math.max(last[1], to)
    else joined.push([from, to])
  }
  return joined
}

export function invertRanges(ranges: readonly Range[]): Range[] {
  const inverted: Range[] = []
  let next = 0
  for (const [from, to] of joinRanges(ranges)) {
    if (from > next) inverted.push([next, from - 1])
    next = to + 1
  }
  if (next <= lastCodePoint) inverted.push([next, lastCodePoint])
  return inverted
}

export function intersectRanges(a: readonly Range[], b: readonly Range[]): Range[] {
  return invertRanges([...invertRanges(a), ...invertRanges(b)])
}

// Structural tags: free text with marked parts, each of which has a grammar. Made for tool calls.

const formats = new Set([
  'any_text',
  'const_string',
  'json_schema',
  'sequence',
  'or',
  'tag',
  'triggered_tags',
  'tags_with_separator',
  'regex',
])

/**
 * The tag with each JSON Schema in it replaced by the grammar that it stands for. Throws ApiError
 * `schema_not_enforceable`.
 */
export function resolveTag(tag: object): object {
  checkSize(tag)
  const visit = (node: unknown): unknown => {
    if (typeof node !== 'object' || node === null || Array.isArray(node))
      throw unusable('each of its formats has to be an object.')
    const format = node as Record<string, unknown>
    if (!formats.has(format.type as string))
      throw unusable(`${JSON.stringify(format.type)} is not a format that is known here (${[...formats].join(', ')}).`)
    if (format.type === 'json_schema') return { type: 'grammar', grammar: writeEbnf(schemaRules(format.json_schema)) }
    const inner = { ...format }
    if (format.content !== undefined) inner.content = visit(format.content)
    for (const key of ['elements', 'tags'])
      if (format[key] !== undefined) {
        if (!Array.isArray(format[key])) throw unusable(`${key} has to be a list.`)
        inner[key] = format[key].map(visit)
      }
    return inner
  }
  const { type, format } = tag as Record<string, unknown>
  return { type: 'structural_tag', format: visit(type === 'structural_tag' || format !== undefined ? format : tag) }
}

function unusable(why: string): ApiError {
  return new ApiError('schema_not_enforceable', `The structural tag can't be used: ${why}`)
}
