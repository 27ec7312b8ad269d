// The types and values that a tool's schema allows for one of its arguments.
import type { ValueType } from './call-shape.ts'
import { resolvePointer } from './schema-cases.ts'
import { childPath, typesOf } from './schema-check.ts'

/** Null if any type is allowed, or the schema says nothing of the argument. */
export function typesOfArgument(schema: unknown, key: string): ValueType[] | null {
  return typesOfSchema(schema, schemaOfArgument(schema, key))
}

/** The part of a tool's schema for one of its arguments. */
export function schemaOfArgument(schema: unknown, key: string): unknown {
  const { properties, additionalProperties } = asObject(schema)
  const own = asObject(properties)
  return Object.hasOwn(own, key) ? own[key] : additionalProperties
}

/** Null if any type is allowed. `root` resolves the references of `node`. */
export function typesOfSchema(root: unknown, node: unknown): ValueType[] | null {
  const types = casesOf(root, node, '').map((one) => typesOfCase(one.node))
  return types.includes(null) ? null : [...new Set(types.flatMap((one) => one!))]
}

/**
 * The cases of a schema, through references and combinations, each with a path for errors. What several references
 * lead to is one case, so there are never more than the schema has parts.
 */
export function casesOf(root: unknown, node: unknown, path: string): { node: unknown; path: string }[] {
  const cases: { node: unknown; path: string }[] = []
  const visited = new Set<unknown>()
  const pending = [{ node, path }]
  for (let step = pending.pop(); step; step = pending.pop()) {
    const { $ref, allOf, anyOf, oneOf } = asObject(step.node)
    if ($ref !== undefined) {
      const target = resolvePointer(root, $ref)?.node
      if (visited.has(target)) continue
      visited.add(target)
      pending.push({ node: target, path: step.path })
      continue
    }
    const key = ['allOf', 'anyOf', 'oneOf'].find((name) => asObject(step.node)[name] !== undefined)
    const parts = allOf ?? anyOf ?? oneOf
    if (key === undefined || !Array.isArray(parts) || (key === 'allOf' && parts.length !== 1)) cases.push(step)
    else
      for (const index of parts.keys())
        pending.push({ node: parts[index], path: childPath(childPath(step.path, key), index) })
  }
  return cases
}

function typesOfCase(node: unknown): ValueType[] | null {
  if (node === false) return []
  const types = typesOf(asObject(node), '')?.map((one) => (one === 'integer' ? 'number' : one) as ValueType) ?? null
  const constants = constantsOf(node)
    ?.map(typeOf)
    .filter((one) => types === null || types.includes(one))
  return constants || types ? [...new Set(constants ?? types)] : null
}

export function constantsOf(node: unknown): unknown[] | null {
  const { const: only, enum: values } = asObject(node)
  return only !== undefined ? [only] : Array.isArray(values) ? values : null
}

/**
 * Whether a value may be what the schema asks for: its type, its constants and its bounds. What is within objects and
 * arrays is not looked at.
 */
export function mayFit(root: unknown, node: unknown, value: unknown): boolean {
  return casesOf(root, node, '').some((one) => {
    if (one.node === false) return false
    const constants = constantsOf(one.node)
    if (constants) return constants.some((constant) => JSON.stringify(constant) === JSON.stringify(value))
    const keywords = asObject(one.node)
    const types = typesOf(keywords, '')
    if (types === null) return true
    if (typeof value !== 'number') return types.includes(typeOf(value))
    if (!types.includes('number') && !(types.includes('integer') && Number.isInteger(value))) return false
    const bound = (key: string, otherwise: number) => (keywords[key] as number | undefined) ?? otherwise
    return (
      value >= bound('minimum', -Infinity) &&
      value <= bound('maximum', Infinity) &&
      value > bound('exclusiveMinimum', -Infinity) &&
      value < bound('exclusiveMaximum', Infinity)
    )
  })
}

export function typeOf(value: unknown): ValueType {
  return value === null ? 'null' : Array.isArray(value) ? 'array' : (typeof value as ValueType)
}

function asObject(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}
