import type { z } from 'zod'

/** Most paths that are stored per field name. */
const maxPaths = 4
const cached = new WeakMap<z.ZodType, Map<string, string[]>>()

/** Maps each field name in a schema to the paths of the objects that have it; the outermost object's path is ''. */
export function fieldPaths(schema: z.ZodType): Map<string, string[]> {
  const before = cached.get(schema)
  if (before) return before
  const paths = new Map<string, string[]>()
  cached.set(schema, paths)
  collect(schema, '', [], paths)
  return paths
}

function collect(
  schema: z.core.$ZodType,
  path: string,
  ancestors: z.core.$ZodType[],
  places: Map<string, string[]>,
): void {
  // Visit a recursive schema once.
  if (ancestors.includes(schema)) return
  const { def } = (schema as z.core.$ZodTypes)._zod
  if (def.type === 'object')
    for (const name of Object.keys(def.shape)) {
      const paths = places.get(name) ?? []
      if (!paths.includes(path) && paths.length < maxPaths) places.set(name, [...paths, path])
    }
  for (const [inner, step] of partsOf(def))
    collect(inner, `${path}${step}`.replace(/^\./, ''), [...ancestors, schema], places)
}

/** The schemas directly inside a schema, each with its path segment. */
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
