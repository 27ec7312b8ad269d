// The size of a schema, and its keywords: everything that the grammar would not truly enforce is refused by name, never
// ignored.
import { ApiError } from '../../contract/errors.ts'

const depthMax = 64
const nodesMax = 5_000
const textMax = 200_000
const enumMax = 2_000

/** Keywords that say nothing of what a document may be. */
const annotations = new Set(
  'title description default example examples deprecated readOnly writeOnly $comment $schema $id $anchor $defs definitions discriminator contentEncoding contentMediaType'.split(
    ' ',
  ),
)
const enforced = new Set(
  (
    'type enum const $ref anyOf oneOf allOf properties required additionalProperties propertyNames items prefixItems minItems maxItems uniqueItems ' +
    'pattern format minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum'
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

export const tooLarge = (what: string) =>
  new ApiError(
    'schema_not_enforceable',
    `The schema is too large: it has more than ${what}. Make it smaller, or split the task.`,
  )

/** Refuses a schema that is too large to be looked at, before anything walks it by recursion. */
export function checkSize(schema: unknown): void {
  const open: { value: unknown; depth: number; key: string }[] = [{ value: schema, depth: 0, key: '' }]
  let nodes = 0
  let length = 0
  for (let step = open.pop(); step; step = open.pop()) {
    const { value, depth, key } = step
    length += key.length + (typeof value === 'string' ? value.length : 8)
    if (length > textMax) throw tooLarge(`${textMax} characters`)
    if (typeof value !== 'object' || value === null) continue
    if (depth > depthMax) throw tooLarge(`${depthMax} levels of objects and arrays`)
    if (++nodes > nodesMax) throw tooLarge(`${nodesMax} objects and arrays`)
    if (Array.isArray(value)) {
      if (key === 'enum' && value.length > enumMax) throw tooLarge(`${enumMax} values in an enum`)
      if (value.length > textMax) throw tooLarge(`${textMax} values in an array`)
      for (const inner of value) open.push({ value: inner, depth: depth + 1, key: '' })
    } else for (const [name, inner] of Object.entries(value)) open.push({ value: inner, depth: depth + 1, key: name })
  }
}

const heavyKeywords: Record<string, number> = { maxLength: 50, minLength: 50, maxItems: 50, minItems: 50 }
const placesMax = 5

/**
 * The places of a schema (or of a tag with schemas in it) that most likely make its grammar costly, as JSON pointers.
 */
export function heavyPlaces(schema: unknown): string[] {
  const places: string[] = []
  const open: { value: unknown; path: string }[] = [{ value: schema, path: '' }]
  for (let step = open.pop(); step && places.length < placesMax; step = open.pop()) {
    if (typeof step.value !== 'object' || step.value === null) continue
    for (const [key, inner] of Object.entries(step.value)) {
      const path = under(step.path, key)
      if (
        (key === 'pattern' && typeof inner === 'string') ||
        (typeof inner === 'number' && inner > (heavyKeywords[key] ?? Number.POSITIVE_INFINITY))
      )
        places.push(path)
      else if (Array.isArray(inner) && inner.length > 50) places.push(path)
      open.push({ value: inner, path })
    }
  }
  return places
}

export type SchemaNode = Record<string, unknown>

/** Whether a keyword only annotates. */
export function annotates(key: string): boolean {
  return annotations.has(key) || key.startsWith('x-')
}

/** The keywords of one schema that constrain, each known to be one that is enforced. */
export function constraints(node: SchemaNode, path: string): SchemaNode {
  const kept: SchemaNode = {}
  for (const [key, value] of Object.entries(node)) {
    if (key === '$id' && path !== '')
      throw refusal(under(path, key), 'an $id inside of a schema changes what its references mean; leave it out.')
    if (annotates(key)) continue
    if (!enforced.has(key)) {
      const hint = advice.get(key)
      throw refusal(
        under(path, key),
        `${JSON.stringify(key)} is ${hint ? `not supported; ${hint}` : 'not a keyword that is known here; leave it out.'}`,
      )
    }
    if (key === 'uniqueItems') {
      if (value !== false)
        throw refusal(
          under(path, key),
          'the items of an array can not be kept different from each other; leave it out.',
        )
    } else kept[key] = value
  }
  return kept
}

/** A keyword's value that must be a whole number of zero and more; undefined where it is missing. */
export function sizeOf(node: SchemaNode, key: string, path: string): number | undefined {
  const value = node[key]
  if (value === undefined) return undefined
  if (!Number.isSafeInteger(value) || (value as number) < 0)
    throw refusal(under(path, key), 'it has to be a whole number of zero or more.')
  return value as number
}

/** The types that a schema names, or that its keywords are about; null where it allows all. */
export function typesOf(node: SchemaNode, path: string): string[] | null {
  const { type } = node
  if (type !== undefined) {
    const types = Array.isArray(type) ? type : [type]
    if (types.length === 0) throw refusal(under(path, 'type'), 'no type is left.')
    for (const one of types)
      if (!typeNames.includes(one))
        throw refusal(under(path, 'type'), `${JSON.stringify(one)} is not a type; use ${typeNames.join(', ')}.`)
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

// Both quote the schema, which may hold anything of any length.
const pathCharactersMax = 300
const whyCharactersMax = 600

/** The error of a schema that can't be enforced; `path` is a JSON pointer into the schema, '' for its top. */
export function refusal(path: string, why: string): ApiError {
  const place = shortened(path, pathCharactersMax)
  return new ApiError(
    'schema_not_enforceable',
    `The schema ${place === '' ? 'at its top' : `at ${place}`} can't be enforced: ${shortened(why, whyCharactersMax)}`,
    { details: { path: place } },
  )
}

/** A JSON pointer's next part. */
export function under(path: string, key: string | number): string {
  return `${path}/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`
}

const shortened = (text: string, characters: number) =>
  text.length <= characters ? text : `${text.slice(0, characters)}…`
