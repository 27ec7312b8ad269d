// Lists in requests. Length is checked before the items: a list of millions must not cost the time to validate each
// item.
import { z } from 'zod'

interface Bounds {
  min?: number
  max: number
  /** A second limit besides the number of items: a size of the whole list, with its name for the error. */
  besides?: { size(items: unknown[]): number; what: string; max: number }
}

// Limit of collected issues of the items; responses report fewer.
const issuesMax = 100

/** The schema of each list's items, by that of the list. */
export const itemSchemas = new WeakMap<object, z.ZodType>()

/** An array with bounded length. */
export function list<S extends z.ZodType>(item: S, { min, max, besides }: Bounds) {
  const bounded = z.array(item).max(max)
  const items = min === undefined ? bounded : bounded.min(min)
  // Set explicitly: zod describes a transformed schema as any value.
  const { $schema: _, ...shape } = z.toJSONSchema(items, { target: 'openapi-3.0', io: 'input', unrepresentable: 'any' })
  const checked = z
    .custom<z.input<S>[]>(() => true)
    .transform((input: unknown, context): z.output<S>[] => {
      if (Array.isArray(input)) {
        const exceeded =
          input.length > max
            ? `${max} items`
            : besides && besides.size(input) > besides.max
              ? `${besides.max} ${besides.what}`
              : undefined
        if (exceeded) {
          context.issues.push({ code: 'custom', message: `may have ${exceeded} at most`, input: undefined })
          return z.NEVER
        }
      }
      const result = items.safeParse(input)
      if (result.success) return result.data
      for (const issue of result.error.issues.slice(0, issuesMax)) context.issues.push({ ...issue, input: undefined })
      return z.NEVER
    })
    .meta(shape)
  itemSchemas.set(checked, item)
  return checked
}

export const tokensMax = 131_072
const tokens = z.array(z.int().min(0)).min(1).max(tokensMax)
const invalidText = 'must be a string, a list of strings, a list of tokens or a list of such lists, none of them empty'

export type TextOrTokens = string | number[] | string[] | number[][]

/**
 * A text or its tokens, or up to `max` of either. Checked by hand: the first item determines the type of a list, and
 * the first invalid item ends the check.
 */
export function textOrTokens(max: number) {
  const { $schema: _, ...shape } = z.toJSONSchema(
    z.union([z.string().min(1), tokens, z.array(z.string().min(1)).min(1).max(max), z.array(tokens).min(1).max(max)]),
  )
  return z
    .custom<TextOrTokens>(() => true)
    .superRefine((input: unknown, context) => {
      const problem = problemOf(input, max)
      if (problem) context.addIssue({ code: 'custom', path: problem.path, message: problem.message })
    })
    .meta(shape)
}

interface Problem {
  path: number[]
  message: string
}

function problemOf(input: unknown, max: number): Problem | undefined {
  if (typeof input === 'string') return input === '' ? { path: [], message: 'must not be empty' } : undefined
  if (!Array.isArray(input) || input.length === 0) return { path: [], message: invalidText }
  if (typeof input[0] === 'number') return problemOfTokens(input, [])
  if (input.length > max) return { path: [], message: `may have ${max} items at most` }
  for (let index = 0; index < input.length; index++) {
    const item = input[index]
    const same = typeof item === typeof input[0]
    if (!same || (typeof item !== 'string' && !Array.isArray(item)) || item.length === 0)
      return { path: [index], message: invalidText }
    const problem = typeof item === 'string' ? undefined : problemOfTokens(item, [index])
    if (problem) return problem
  }
  return undefined
}

function problemOfTokens(tokens: unknown[], path: number[]): Problem | undefined {
  if (tokens.length > tokensMax) return { path, message: `may have ${tokensMax} tokens at most` }
  const index = tokens.findIndex((token) => !Number.isSafeInteger(token) || (token as number) < 0)
  return index === -1 ? undefined : { path: [...path, index], message: 'must be the number of a token' }
}
