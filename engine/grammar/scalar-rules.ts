// Grammar rules of strings and numbers with constraints.

import type { Lexis } from './dialect-rules.ts'
import { integer, number, plain } from './json-rules.ts'
import { type Bound, integersBetween, numbersBetween } from './numbers.ts'
import { formatPattern, knownFormats, type Pattern, readPattern } from './patterns.ts'
import { type Expr, repeat, seq, text } from './rules.ts'
import { childPath, type SchemaNode, schemaError, sizeOf } from './schema-check.ts'

export function stringRules(node: SchemaNode, path: string, { quotes, string, content }: Lexis): Expr {
  const min = sizeOf(node, 'minLength', path) ?? 0
  const max = sizeOf(node, 'maxLength', path) ?? null
  if (max !== null && min > max) throw schemaError(childPath(path, 'minLength'), 'it is greater than maxLength.')
  // In JSON Schema a format is an annotation and a pattern a constraint: with both, the pattern applies.
  const key = node.pattern !== undefined ? 'pattern' : node.format !== undefined ? 'format' : null
  const quoted = (inner: Expr) => seq(text(quotes[0]), content(inner), text(quotes[1]))
  if (key) return quoted(patternRules(node[key], key, min, max, path))
  if (min === 0 && max === null) return string
  // No escapes: with counted alternatives XGrammar has to check every token.
  return quoted(repeat(plain, min, max))
}

const formats = new Map<string, Pattern>()
function readFormat(written: string): Pattern {
  const cached = formats.get(written) ?? readPattern(written)
  formats.set(written, cached)
  return cached
}

function patternRules(source: unknown, key: 'pattern' | 'format', min: number, max: number | null, path: string): Expr {
  if (typeof source !== 'string') throw schemaError(childPath(path, key), 'it has to be a string.')
  const written = key === 'pattern' ? source : formatPattern(source)
  if (written === null)
    throw schemaError(
      childPath(path, key),
      `${JSON.stringify(source)} is not a format that is known here (${knownFormats.join(', ')}); use a pattern.`,
    )
  let pattern: Pattern
  try {
    pattern = key === 'format' ? readFormat(written) : readPattern(written)
  } catch (error) {
    throw schemaError(childPath(path, key), `of this pattern, ${(error as Error).message}`)
  }
  if (pattern.min_length < min)
    throw schemaError(
      childPath(path, 'minLength'),
      `together with a ${key} it is not supported; say the length in the pattern.`,
    )
  if (max !== null && (pattern.max_length === null || pattern.max_length > max))
    throw schemaError(
      childPath(path, 'maxLength'),
      `together with a ${key} it is not supported; say the length in the pattern.`,
    )
  return pattern.expr
}

export function numberRules(node: SchemaNode, path: string, isInteger: boolean): Expr {
  const bound = (key: string, open: boolean): Bound | null => {
    const value = node[key]
    if (value === undefined) return null
    if (typeof value !== 'number' || !Number.isFinite(value))
      throw schemaError(childPath(path, key), 'it has to be a number.')
    return { value, open }
  }
  const min = stricter(bound('minimum', false), bound('exclusiveMinimum', true), 1)
  const max = stricter(bound('maximum', false), bound('exclusiveMaximum', true), -1)
  if (!min && !max) return isInteger ? integer : number
  if (min && max && (min.value > max.value || (min.value === max.value && (min.open || max.open))))
    throw schemaError(path, 'its minimum and its maximum leave no number between them.')
  if (!isInteger) return numbersBetween(min, max)
  const from = min && BigInt(Math.ceil(min.value)) + (min.open && Number.isInteger(min.value) ? 1n : 0n)
  const to = max && BigInt(Math.floor(max.value)) - (max.open && Number.isInteger(max.value) ? 1n : 0n)
  if (from !== null && to !== null && from > to)
    throw schemaError(path, 'its minimum and its maximum leave no whole number between them.')
  return integersBetween(from, to)
}

/** The stricter bound. `sign` is 1 for lower bounds, -1 for upper bounds. */
function stricter(a: Bound | null, b: Bound | null, sign: 1 | -1): Bound | null {
  if (!a || !b) return a ?? b
  if (a.value === b.value) return a.open ? a : b
  return (a.value - b.value) * sign > 0 ? a : b
}
