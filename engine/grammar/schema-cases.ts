// Whether the cases of a oneOf exclude each other, and resolution of references.
import type { SchemaNode } from './schema-check.ts'

const dereferencesMax = 16

/** Resolves a reference within the schema. Returns the node and the normalized pointer; null if there is none. */
export function resolvePointer(schema: unknown, ref: unknown): { node: unknown; pointer: string } | null {
  if (typeof ref !== 'string' || (ref !== '#' && !ref.startsWith('#/'))) return null
  let decoded: string
  try {
    decoded = decodeURIComponent(ref.slice(1))
  } catch {
    return null
  }
  let node: unknown = schema
  for (const part of decoded.split('/').slice(1)) {
    const key = part.replaceAll('~1', '/').replaceAll('~0', '~')
    if (typeof node !== 'object' || node === null || !Object.hasOwn(node, key)) return null
    node = (node as Record<string, unknown>)[key]
  }
  return { node, pointer: decoded }
}

/** True only if no document can match both schemas. */
export function areExclusive(schema: unknown, a: unknown, b: unknown): boolean {
  const [first, second] = [dereference(schema, a), dereference(schema, b)]
  if (!first || !second) return false
  const [typesA, typesB] = [typesOfNode(first), typesOfNode(second)]
  if (typesA && typesB && areDisjoint(typesA, typesB)) return true
  const [valuesA, valuesB] = [valuesOf(first), valuesOf(second)]
  if (valuesA && valuesB) return areDisjoint(valuesA, valuesB)
  const onlyObjects = (types: Set<string> | null) => types !== null && types.size === 1 && types.has('object')
  if (!onlyObjects(typesA) || !onlyObjects(typesB)) return false
  return [...requiredOf(first)].some((name) => {
    if (!requiredOf(second).has(name)) return false
    const [inA, inB] = [dereference(schema, propertyOf(first, name)), dereference(schema, propertyOf(second, name))]
    const [a, b] = [inA && valuesOf(inA), inB && valuesOf(inB)]
    return Boolean(a && b && areDisjoint(a, b))
  })
}

/** Follows references and an allOf with one schema. */
function dereference(schema: unknown, start: unknown): SchemaNode | null {
  let node = start
  for (let step = 0; step < dereferencesMax; step++) {
    if (typeof node !== 'object' || node === null) return null
    const { $ref, allOf } = node as SchemaNode
    if ($ref !== undefined) node = resolvePointer(schema, $ref)?.node
    else if (Array.isArray(allOf) && allOf.length === 1) node = allOf[0]
    else return node as SchemaNode
  }
  return null
}

function propertyOf(node: SchemaNode, name: string): unknown {
  const properties = node.properties as Record<string, unknown> | undefined
  return properties && Object.hasOwn(properties, name) ? properties[name] : undefined
}

function areDisjoint(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  for (const one of a) if (b.has(one)) return false
  return true
}

/** Memoizes per schema, since each case is compared with every other. */
function memoized<T>(of: (node: SchemaNode) => T): (node: SchemaNode) => T {
  const cached = new WeakMap<SchemaNode, T>()
  return (node) => {
    let memo = cached.get(node)
    if (memo === undefined) {
      memo = of(node)
      cached.set(node, memo)
    }
    return memo
  }
}

const requiredOf = memoized((node) => new Set<string>(Array.isArray(node.required) ? node.required : []))

const valuesOf = memoized((node): Set<string> | null => {
  const values = node.const !== undefined ? [node.const] : node.enum
  // Only scalars are compared: equal objects may list their properties in another order.
  if (!Array.isArray(values) || values.some((value) => typeof value === 'object' && value !== null)) return null
  return new Set(values.map((value) => JSON.stringify(value)))
})

/** The types that a document of this schema may have; null if unrestricted. */
const typesOfNode = memoized((node): Set<string> | null => {
  const values = node.const !== undefined ? [node.const] : Array.isArray(node.enum) ? node.enum : null
  if (values)
    return new Set(values.map((value) => (value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value)))
  const types = typeof node.type === 'string' ? [node.type] : Array.isArray(node.type) ? (node.type as string[]) : null
  return types && new Set(types.map((type) => (type === 'integer' ? 'number' : type)))
})
