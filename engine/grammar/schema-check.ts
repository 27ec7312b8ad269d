// Checks the size and the keywords of a schema. Keywords that the grammar can't enforce are rejected by name, never
// ignored.
import { ApiError } from '../../contract/errors.ts'

const depthMax = 64
const nodesMax = 5_000
const textMax = 200_000
const enumMax = 2_000

/** Keywords that do not constrain documents. */
const annotations = new Set(
  (
    'title description default example examples deprecated readOnly writeOnly $comment $schema $id $anchor ' +
    '$defs definitions discriminator contentEncoding contentMediaType'
  ).split(' '),
)
const enforced = new Set(
  (
    'type enum const $ref anyOf oneOf allOf properties required additionalProperties propertyNames items ' +
    'prefixItems minItems maxItems uniqueItems pattern format minLength maxLength minimum maximum ' +
    'exclusiveMinimum exclusiveMaximum'
  ).split(' '),
)
const advice = new Map([
  ['not', 'list what is allowed instead, with enum or anyOf.'],
  ['if', 'write the cases as anyOf.'],
  ['then', 'write the cases as anyOf.'],
  ['else', 'write the cases as anyOf.'],
  ['patternProperties', 'name the properties, or give all of them one schema with additionalProperties.'],
  ['dependentRequired', 'write the cases as anyOf.'],
  ['dependentSchemas', 'write the cases as anyOf.'],
  ['dependencies', 'write the cases as anyOf.'],
  ['contains', 'describe the items with items or prefixItems.'],
  ['multipleOf', 'use the type integer, or list the values with enum.'],
  ['minProperties', 'name the properties that must be there in required.'],
  ['maxProperties', 'leave it out, and set additionalProperties to false.'],
  ['unevaluatedProperties', 'use additionalProperties.'],
  ['unevaluatedItems', 'use items.'],
  ['additionalItems', 'use prefixItems with items.'],
  ['nullable', 'use a type of ["…", "null"].'],
])

export const tooLargeError = (what: string) =>
  new ApiError(
    'schema_not_enforceable',
    `The schema is too large: it has more than ${what}. Make it smaller, or split the task.`,
  )

/** Rejects a schema that is too large, before recursive code walks it. Throws ApiError `schema_not_enforceable`. */
export function checkSize(schema: unknown): void {
  const pending: { value: unknown; depth: number; key: string }[] = [{ value: schema, depth: 0, key: '' }]
  let nodes = 0
  let length = 0
  for (let step = pending.pop(); step; step = pending.pop()) {
    const { value, depth, key } = step
    length += key.length + (typeof value === 'string' ? value.length : 8)
    if (length > textMax) throw tooLargeError(`${textMax} characters`)
    if (typeof value !== 'object' || value === null) continue
    if (depth > depthMax) throw tooLargeError(`${depthMax} levels of objects and arrays`)
    if (++nodes > nodesMax) throw tooLargeError(`${nodesMax} objects and arrays`)
    if (Array.isArray(value)) {
      if (key === 'enum' && value.length > enumMax) throw tooLargeError(`${enumMax} values in an enum`)
      if (value.length > textMax) throw tooLargeError(`${textMax} values in an array`)
      for (const inner of value) pending.push({ value: inner, depth: depth + 1, key: '' })
    } else
      for (const [name, inner] of Object.entries(value)) pending.push({ value: inner, depth: depth + 1, key: name })
  }
}

const costlyAbove: Record<string, number> = { maxLength: 50, minLength: 50, maxItems: 50, minItems: 50 }
const pathsMax = 5

/** JSON pointers to the parts of a schema (or structural tag) that most likely make its grammar costly. */
export function costlyPaths(schema: unknown): string[] {
  const paths: string[] = []
  const pending: { value: unknown; path: string }[] = [{ value: schema, path: '' }]
  for (let step = pending.pop(); step && paths.length < pathsMax; step = pending.pop()) {
    if (typeof step.value !== 'object' || step.value === null) continue
    for (const [key, inner] of Object.entries(step.value)) {
      const path = childPath(step.path, key)
      if (
        (key === 'pattern' && typeof inner === 'string') ||
        (typeof inner === 'number' && inner > (costlyAbove[key] ?? Number.POSITIVE_INFINITY))
      )
        paths.push(path)
      else if (Array.isArray(inner) && inner.length > 50) paths.push(path)
      pending.push({ value: inner, path })
    }
  }
  return paths
}

export type SchemaNode = Record<string, unknown>

/** Whether a keyword is an annotation only. */
function isAnnotation(key: string): boolean {
  return annotations.has(key) || key.startsWith('x-')
}

/** The constraining keywords of one schema. Throws ApiError if one is not supported. */
export function constrainingKeywords(node: SchemaNode, path: string): SchemaNode {
  const constraining: SchemaNode = {}
  for (const [key, value] of Object.entries(node)) {
    if (key === '$id' && path !== '')
      throw schemaError(
        childPath(path, key),
        'an $id inside of a schema changes what its references mean; leave it out.',
      )
    if (isAnnotation(key)) continue
    if (!enforced.has(key)) {
      const hint = advice.get(key)
      throw schemaError(
        childPath(path, key),
        `${JSON.stringify(key)} is ` +
          (hint ? `not supported; ${hint}` : 'not a keyword that is known here; leave it out.'),
      )
    }
    if (key === 'uniqueItems') {
      if (value !== false)
        throw schemaError(childPath(path, key), 'unique items of an array cannot be enforced; leave it out.')
    } else constraining[key] = value
  }
  return constraining
}

/** The value of a keyword that must be a non-negative integer; undefined if missing. */
export function sizeOf(node: SchemaNode, key: string, path: string): number | undefined {
  const value = node[key]
  if (value === undefined) return undefined
  if (!Number.isSafeInteger(value) || (value as number) < 0)
    throw schemaError(childPath(path, key), 'it has to be a whole number of zero or more.')
  return value as number
}

/** The types that a schema names or that its keywords imply; null if unrestricted. */
export function typesOf(node: SchemaNode, path: string): string[] | null {
  const { type } = node
  if (type !== undefined) {
    const types = Array.isArray(type) ? type : [type]
    if (types.length === 0) throw schemaError(childPath(path, 'type'), 'no type is left.')
    for (const one of types)
      if (!typeNames.includes(one))
        throw schemaError(childPath(path, 'type'), `${JSON.stringify(one)} is not a type; use ${typeNames.join(', ')}.`)
    return [...new Set(types as string[])]
  }
  const implied = Object.entries(keywordsOf).filter(([, keywords]) => keywords.some((key) => node[key] !== undefined))
  return implied.length === 0 ? null : implied.map(([name]) => name)
}

const typeNames = ['object', 'array', 'string', 'integer', 'number', 'boolean', 'null']
const keywordsOf: Record<string, string[]> = {
  object: ['properties', 'required', 'additionalProperties', 'propertyNames'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['pattern', 'format', 'minLength', 'maxLength'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
}

// Both quote the schema, whose texts may be very long.
const pathCharactersMax = 300
const whyCharactersMax = 600

/** Error for a schema that can't be enforced. `path` is a JSON pointer into the schema, '' for its top. */
export function schemaError(path: string, reason: string): ApiError {
  const shownPath = truncated(path, pathCharactersMax)
  return new ApiError(
    'schema_not_enforceable',
    `The schema ${shownPath === '' ? 'at its top' : `at ${shownPath}`} can't be enforced: ` +
      truncated(reason, whyCharactersMax),
    { details: { path: shownPath } },
  )
}

/** Appends a key to a JSON pointer. */
export function childPath(path: string, key: string | number): string {
  return `${path}/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`
}

const truncated = (text: string, characters: number) =>
  text.length <= characters ? text : `${text.slice(0, characters)}…`
