import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import { fieldPaths } from './field-paths.ts'

/** Most unknown fields that a message names. */
const maxNamed = 10
/** Longest part of a field name, and of a zod message, that is repeated in an error. */
const maxNameLength = 200
const maxMessageLength = 500

/**
 * Turns zod's issues into one error that names the field and what is allowed. If `schema` has an unknown field
 * elsewhere, the message says where it belongs.
 */
export function validationError(issues: readonly z.core.$ZodIssue[], where: string, schema?: z.ZodType): ApiError {
  const paths = schema ? fieldPaths(schema) : new Map<string, string[]>()
  // Report a misplaced field first: it often causes the other issues.
  const misplaced = issues
    .map(deepest)
    .find((issue) => issue.code === 'unrecognized_keys' && issue.keys.some((key) => paths.has(key)))
  const issue = misplaced ?? deepest(issues[0]!)
  const field = issue.path.map(String).join('.')
  const details = {
    field: field || where,
    issues: issues
      .slice(0, 10)
      .map((issue) => ({ field: deepest(issue).path.map(String).join('.'), message: inWords(deepest(issue)) })),
  }
  if (issue.code === 'unrecognized_keys') {
    const named = issue.keys.slice(0, maxNamed)
    const names = named.map((key) => (field ? `${field}.` : '') + key.slice(0, maxNameLength))
    const others = issue.keys.length > maxNamed ? ` and ${issue.keys.length - maxNamed} more` : ''
    const hints = named.flatMap((key) => {
      const hints = nearest(paths.get(key))?.map((place) =>
        place ? `in ${place}` : `at the top level of the ${where}`,
      )
      return hints ? [`'${key}' belongs ${hints.join(' or ')}.`] : []
    })
    return new ApiError(
      'unknown_field',
      `Unknown field${names.length > 1 ? 's' : ''} ${names.map((name) => `'${name}'`).join(', ')}${others}. ` +
        `${hints.join(' ') || 'Remove it or check its spelling.'}`,
      { details: { ...details, field: names[0] }, param: names[0] },
    )
  }
  if (issue.code === 'custom' && issue.params?.unsupported)
    return new ApiError('parameter_not_supported', `'${field}' ${issue.message}.`, { details, param: field })
  return new ApiError('invalid_request', `${field ? `'${field}'` : `The ${where}`}: ${inWords(issue)}.`, {
    details,
    param: field || undefined,
  })
}

/** The least nested of the places; a grader far below may have a field of the same name. */
function nearest(places: readonly string[] | undefined): string[] | undefined {
  const depth = (place: string) => (place ? place.split('.').length : 0)
  const least = Math.min(...(places ?? []).map(depth))
  return places?.filter((place) => depth(place) === least)
}

// A union's own message is only 'invalid input', so report the issue of the branch that matched deepest.
function deepest(issue: z.core.$ZodIssue): z.core.$ZodIssue {
  if (issue.code !== 'invalid_union') return issue
  const branches = issue.errors.filter((branch) => branch.length > 0)
  const best = branches.sort(
    (a, b) =>
      b[0]!.path.length - a[0]!.path.length ||
      Number(a[0]!.code === 'invalid_type') - Number(b[0]!.code === 'invalid_type'),
  )[0]?.[0]
  return best ? deepest({ ...best, path: [...issue.path, ...best.path] }) : issue
}

const types: Record<string, string> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'an object',
  record: 'an object',
}
const formats: Record<string, string> = {
  email: 'an email address',
  url: 'a URL',
  datetime: 'a time, such as 2026-01-31T12:00:00Z',
  date: 'a date, such as 2026-01-31',
  uuid: 'a UUID',
}
/** Values that a message lists. */
const maxListed = 20

/** What is wrong, as a person would say it. A schema's own words stay; zod's speak of types and operators. */
function inWords(issue: z.core.$ZodIssue): string {
  return (wordsOf(issue) ?? issue.message).slice(0, maxMessageLength)
}

function wordsOf(issue: z.core.$ZodIssue): string | undefined {
  if (!/^(Too (big|small)|Invalid)\b/.test(issue.message)) return undefined
  switch (issue.code) {
    case 'too_big':
      return boundWords(issue.origin, issue.maximum, issue.inclusive !== false, 'at most', 'less than')
    case 'too_small':
      if (issue.minimum === 1 && (issue.origin === 'string' || issue.origin === 'array')) return 'must not be empty'
      return boundWords(issue.origin, issue.minimum, issue.inclusive !== false, 'at least', 'more than')
    case 'invalid_type':
      return /received undefined$/.test(issue.message)
        ? 'is missing'
        : `must be ${types[issue.expected] ?? `of the type ${issue.expected}`}`
    case 'invalid_format':
      return formats[issue.format] && `must be ${formats[issue.format]}`
    case 'invalid_value': {
      const listed = issue.values.slice(0, maxListed).map(String)
      const more = issue.values.length > maxListed ? ` or ${issue.values.length - maxListed} others` : ''
      return `must be ${listed.length > 1 ? 'one of ' : ''}${listed.join(', ')}${more}`
    }
    case 'invalid_key':
      return `the key ${inWords(issue.issues[0]!)}`
    default:
      return undefined
  }
}

function boundWords(origin: string, bound: number | bigint, inclusive: boolean, to: string, beyond: string): string {
  const amount = `${inclusive ? to : beyond} ${bound}`
  if (origin === 'string') return `must have ${amount} characters`
  if (origin === 'array' || origin === 'set') return `must have ${amount} entries`
  return `must be ${amount}`
}
