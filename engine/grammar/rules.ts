// Grammars as data: named rules made of expressions. Also prunes alternatives that can never end.
export type Range = readonly [from: number, to: number]

/**
 * A literal text, one character of some code points, a reference to a rule, a sequence, alternatives (none: matches
 * nothing), a repetition, or any text up to and with the first place where a certain text ends it.
 */
export type Expr =
  | { kind: 'text'; text: string }
  | { kind: 'chars'; ranges: readonly Range[] }
  | { kind: 'rule'; name: string }
  | { kind: 'seq'; parts: readonly Expr[] }
  | { kind: 'any'; parts: readonly Expr[] }
  | { kind: 'repeat'; part: Expr; min: number; max: number | null }
  | { kind: 'until'; text: string }

export type Rules = Map<string, Expr>

export const lastCodePoint = 0x10ffff

export const text = (value: string): Expr => ({ kind: 'text', text: value })
export const chars = (...ranges: Range[]): Expr => ({ kind: 'chars', ranges })
export const rule = (name: string): Expr => ({ kind: 'rule', name })
export const seq = (...parts: Expr[]): Expr => (parts.length === 1 ? parts[0]! : { kind: 'seq', parts })
export const any = (...parts: Expr[]): Expr => (parts.length === 1 ? parts[0]! : { kind: 'any', parts })
export const repeat = (part: Expr, min: number, max: number | null): Expr => ({ kind: 'repeat', part, min, max })
export const until = (end: string): Expr => ({ kind: 'until', text: end })
export const optional = (part: Expr): Expr => repeat(part, 0, 1)
export const never: Expr = { kind: 'any', parts: [] }
export const empty: Expr = { kind: 'text', text: '' }

/**
 * Removes alternatives that no finite text can match: a model that entered one could never finish. Returns null if
 * nothing is left of `root`.
 */
export function prune(rules: Rules): Rules | null {
  const endingRules = new Set<string>()
  const canEnd = (expr: Expr): boolean => {
    if (expr.kind === 'rule') return endingRules.has(expr.name)
    if (expr.kind === 'seq') return expr.parts.every(canEnd)
    if (expr.kind === 'any') return expr.parts.some(canEnd)
    if (expr.kind === 'repeat') return expr.min === 0 || canEnd(expr.part)
    return true
  }
  // Revisit a rule when one that it references turns out to end.
  const namedBy = new Map<string, string[]>()
  for (const [name, expr] of rules)
    for (const named of namesIn(expr)) {
      const others = namedBy.get(named)
      if (others) others.push(name)
      else namedBy.set(named, [name])
    }
  const pending = [...rules.keys()]
  for (let name = pending.pop(); name !== undefined; name = pending.pop()) {
    if (endingRules.has(name) || !canEnd(rules.get(name)!)) continue
    endingRules.add(name)
    pending.push(...(namedBy.get(name) ?? []))
  }
  if (!endingRules.has('root')) return null
  const pruneExpr = (expr: Expr): Expr => {
    if (expr.kind === 'seq') return seq(...expr.parts.map(pruneExpr))
    if (expr.kind === 'any') return any(...expr.parts.filter(canEnd).map(pruneExpr))
    if (expr.kind === 'repeat') return canEnd(expr.part) ? repeat(pruneExpr(expr.part), expr.min, expr.max) : empty
    return expr
  }
  const used: Rules = new Map()
  const open = ['root']
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    if (used.has(name)) continue
    const expr = pruneExpr(rules.get(name)!)
    used.set(name, expr)
    for (const named of namesIn(expr)) open.push(named)
  }
  return used
}

/** Names of the rules that an expression references. */
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

/** Number of nodes of an expression. */
export function sizeOfExpr(expr: Expr): number {
  if (expr.kind === 'seq' || expr.kind === 'any') return expr.parts.reduce((sum, part) => sum + sizeOfExpr(part), 1)
  return expr.kind === 'repeat' ? 1 + sizeOfExpr(expr.part) : 1
}

/** A rule that can reach itself without consuming a character (left recursion), or null. */
export function findEmptyLoop(rules: Rules): string | null {
  const state = new Map<string, 'open' | 'done'>()
  const leftmostRules = (expr: Expr): string[] =>
    expr.kind === 'rule' ? [expr.name] : expr.kind === 'any' ? expr.parts.flatMap(leftmostRules) : []
  for (const start of rules.keys()) {
    const stack = [{ name: start, leaving: false }]
    for (let step = stack.pop(); step; step = stack.pop()) {
      if (step.leaving) state.set(step.name, 'done')
      else if (state.get(step.name) === 'open') return step.name
      else if (!state.has(step.name)) {
        state.set(step.name, 'open')
        stack.push({ name: step.name, leaving: true })
        for (const name of leftmostRules(rules.get(step.name) ?? empty)) {
          if (state.get(name) === 'open') return name
          stack.push({ name, leaving: false })
        }
      }
    }
  }
  return null
}

/** Sorts ranges and merges adjacent and overlapping ones. */
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
