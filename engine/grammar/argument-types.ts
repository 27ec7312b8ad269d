// The types that a tool's schema allows for one of its arguments.
import type { ValueType } from './call-shape.ts'
import { resolvePointer } from './schema-cases.ts'

const stepsMax = 16

/** Null if any type is allowed, or the schema says nothing of the argument. */
export function typesOfArgument(schema: unknown, key: string): ValueType[] | null {
  const { properties, additionalProperties } = asObject(schema)
  const own = asObject(properties)
  return typesOfSchema(schema, Object.hasOwn(own, key) ? own[key] : additionalProperties)
}

/** Null if any type is allowed. `root` resolves the references of `node`. */
export function typesOfSchema(root: unknown, node: unknown, steps = stepsMax): ValueType[] | null {
  if (steps === 0) return null
  const { $ref, allOf, anyOf, oneOf, const: only, enum: values, type, properties } = asObject(node)
  if ($ref !== undefined) return typesOfSchema(root, resolvePointer(root, $ref)?.node, steps - 1)
  if (Array.isArray(allOf) && allOf.length === 1) return typesOfSchema(root, allOf[0], steps - 1)
  const cases = anyOf ?? oneOf
  if (Array.isArray(cases)) {
    const types = cases.map((one) => typesOfSchema(root, one, steps - 1))
    return types.includes(null) ? null : [...new Set(types.flatMap((one) => one!))]
  }
  const constants = only !== undefined ? [only] : Array.isArray(values) ? values : null
  if (constants) return [...new Set(constants.map(typeOf))]
  if (type === undefined) return properties === undefined ? null : ['object']
  return [...new Set((Array.isArray(type) ? type : [type]).map((one) => (one === 'integer' ? 'number' : one)))]
}

export function typeOf(value: unknown): ValueType {
  return value === null ? 'null' : Array.isArray(value) ? 'array' : (typeof value as ValueType)
}

function asObject(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}
