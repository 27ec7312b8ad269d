import type { z } from 'zod'

/** How many places of one name are kept. */
const maxPlaces = 4
const known = new WeakMap<z.ZodType, Map<string, string[]>>()

/** Each field's name in a schema, with the paths of the objects that have it; that of the outermost object is empty. */
export function fieldPlaces(schema: z.ZodType): Map<string, string[]> {
  const before = known.get(schema)
  if (before) return before
  const places = new Map<string, string[]>()
  known.set(schema, places)
  collect(schema, '', [], places)
  return places
}

function collect(
  schema: z.core.$ZodType,
  path: string,
  around: z.core.$ZodType[],
  places: Map<string, string[]>,
): void {
  // One that has itself inside is looked into once.
  if (around.includes(schema)) return
  const { def } = (schema as z.core.$ZodTypes)._zod
  if (def.type === 'object')
    for (const name of Object.keys(def.shape)) {
      const found = places.get(name) ?? []
      if (!found.includes(path) && found.length < maxPlaces) places.set(name, [...found, path])
    }
  for (const [inner, step] of partsOf(def))
    collect(inner, `${path}${step}`.replace(/^\./, ''), [...around, schema], places)
}

/** The schemas inside of one, each with its step of the path. */
function partsOf(def: z.core.$ZodTypes['_zod']['def']): [z.core.$ZodType, string][] {
  switch (def.type) {
    case 'object':
      return Object.entries(def.shape).map(([name, field]) => [field, `.${name}`])
    case 'array':
      return [[def.element, '[]']]
    case 'union':
      return def.options.map((option) => [option, ''])
    case 'optional':
    case 'nullable':
    case 'default':
    case 'prefault':
    case 'nonoptional':
    case 'readonly':
    case 'catch':
      return [[def.innerType, '']]
    case 'pipe':
      return [[def.in, '']]
    default:
      return []
  }
}
