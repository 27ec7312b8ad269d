// JSON Schema to grammar rules. Every document that the rules allow satisfies the schema; where a schema allows more
// than a grammar can say in order (properties in any order, escapes in bounded strings), the rules allow a part of it.
import { addJsonRules, boolean, keyExcept, listed, literal, string, value, ws } from './json-rules.ts'
import {
  any,
  type Expr,
  findEmptyLoop,
  never,
  nothing,
  prune,
  type Rules,
  repeat,
  rule,
  seq,
  sizeOfExpr,
  text,
} from './rules.ts'
import { numberRules, stringRules } from './scalar-rules.ts'
import { areApart, resolvePointer } from './schema-cases.ts'
import { checkSize, constraints, refusal, type SchemaNode, sizeOf, tooLarge, typesOf, under } from './schema-check.ts'

const oneOfMax = 100
const keyTextMax = 5_000
// Of the grammar that a schema becomes: what a request may cost before it is tried out in a thread of its own.
const partsMax = 100_000
const partsPerPatternCharacter = 2
/** Pairs of cases of oneOf, which are compared each with each. */
const pairsMax = 20_000

/**
 * The rules of a JSON Schema, from `root` on. Throws ApiError `schema_not_enforceable`, naming the place, for a schema
 * that is too large, uses what can't be enforced, or that no document can satisfy.
 */
export function schemaRules(schema: unknown): Rules {
  checkSize(schema)
  const rules: Rules = new Map()
  const paths = new Map<string, string>()
  const waiting: { name: string; node: unknown; path: string }[] = []
  const byPointer = new Map<string, string>()
  let made = 0
  let parts = 0
  let pairs = 0

  const spend = (more: number): void => {
    parts += more
    if (parts > partsMax) throw tooLarge(`${partsMax} parts once its patterns and ranges are written out`)
  }
  const counted = (expr: Expr): Expr => {
    spend(sizeOfExpr(expr))
    return expr
  }

  const fresh = (expr: Expr): Expr => {
    const name = `r${++made}`
    rules.set(name, expr)
    return rule(name)
  }
  /** What is written in more than one place: written out each time, it would double with every level. */
  const shared = (expr: Expr): Expr => (expr.kind === 'rule' ? expr : fresh(expr))

  const visit = (node: unknown, path: string): Expr => {
    if (node === true) return value
    if (node === false) return never
    if (!isObject(node)) throw refusal(path, 'a schema is an object, true or false.')
    const kept = constraints(node, path)
    const alone = (key: string, ...others: string[]) => {
      const beside = Object.keys(kept).find((name) => name !== key && !others.includes(name))
      if (beside)
        throw refusal(
          under(path, beside),
          `it stands beside ${key}, and both together are not supported; put it into the schema that ${key} names.`,
        )
    }
    if (kept.$ref !== undefined) {
      alone('$ref')
      return reference(kept.$ref, under(path, '$ref'))
    }
    if (kept.const !== undefined || kept.enum !== undefined) {
      const key = kept.const !== undefined ? 'const' : 'enum'
      alone(key, 'type')
      return given(kept, key, path)
    }
    for (const key of ['anyOf', 'oneOf', 'allOf'] as const) {
      if (kept[key] === undefined) continue
      alone(key)
      return cases(kept[key], key, under(path, key))
    }
    const types = typesOf(kept, path)
    return types === null ? value : any(...types.map((type) => ofType(type, kept, path)))
  }

  const reference = (ref: unknown, path: string): Expr => {
    const found = resolvePointer(schema, ref)
    if (!found)
      throw refusal(
        path,
        'it does not lead to a schema inside of this one; only references such as "#/$defs/name" are followed.',
      )
    let name = byPointer.get(found.pointer)
    if (!name) {
      name = `ref${byPointer.size}`
      byPointer.set(found.pointer, name)
      paths.set(name, found.pointer)
      // Not visited here: a chain of references may be longer than the stack.
      waiting.push({ name, node: found.node, path: found.pointer })
    }
    return rule(name)
  }

  const given = (node: SchemaNode, key: 'const' | 'enum', path: string): Expr => {
    const values = key === 'const' ? [node.const] : node.enum
    if (!Array.isArray(values)) throw refusal(under(path, key), 'it has to be a list of values.')
    const types = node.type === undefined ? null : typesOf(node, path)
    const fitting = values.filter((one) => !types || types.some((type) => isOfType(one, type)))
    if (fitting.length === 0)
      throw refusal(
        under(path, key),
        values.length === 0 ? 'the list is empty.' : 'none of the values has the type that the schema asks for.',
      )
    return any(...fitting.map(literal))
  }

  const cases = (branches: unknown, key: 'anyOf' | 'oneOf' | 'allOf', path: string): Expr => {
    if (!Array.isArray(branches) || branches.length === 0)
      throw refusal(path, 'it has to be a list with one schema or more.')
    if (key === 'allOf' && branches.length > 1)
      throw refusal(path, 'several schemas at once are not supported; write them as one.')
    if (key === 'oneOf') {
      if (branches.length > oneOfMax) throw refusal(path, `it has more than ${oneOfMax} cases.`)
      pairs += (branches.length * (branches.length - 1)) / 2
      if (pairs > pairsMax) throw tooLarge(`${pairsMax} pairs of cases that oneOf must tell apart`)
      branches.forEach((branch, index) => {
        const other = branches.findIndex((one, before) => before < index && !areApart(schema, one, branch))
        if (other >= 0)
          throw refusal(
            under(path, index),
            `a document may fit this case and case ${other}; give them different types or a required property with its own const, or use anyOf.`,
          )
      })
    }
    return any(...branches.map((branch, index) => visit(branch, under(path, index))))
  }

  const ofType = (type: string, node: SchemaNode, path: string): Expr => {
    if (type === 'object') return objectOf(node, path)
    if (type === 'array') return arrayOf(node, path)
    if (type === 'string') {
      spend(typeof node.pattern === 'string' ? partsPerPatternCharacter * node.pattern.length : 0)
      return counted(stringRules(node, path))
    }
    if (type === 'boolean') return boolean
    return type === 'null' ? text('null') : counted(numberRules(node, path, type === 'integer'))
  }

  const arrayOf = (node: SchemaNode, path: string): Expr => {
    const { items, prefixItems = [] } = node
    if (Array.isArray(items)) throw refusal(under(path, 'items'), 'a list of schemas is written as prefixItems.')
    if (!Array.isArray(prefixItems)) throw refusal(under(path, 'prefixItems'), 'it has to be a list of schemas.')
    const min = sizeOf(node, 'minItems', path) ?? 0
    const max = sizeOf(node, 'maxItems', path) ?? null
    if (max !== null && min > max) throw refusal(under(path, 'minItems'), 'it is greater than maxItems.')
    const first = prefixItems
      .slice(0, max ?? undefined)
      .map((one, index) => visit(one, under(under(path, 'prefixItems'), index)))
    if (first.length === 0)
      return listed(
        '[',
        items === undefined ? value : shared(visit(items, under(path, 'items'))),
        ']',
        min,
        items === false ? 0 : max,
      )
    // Without `items` a tuple ends with its last item, as far as minItems lets it.
    const rest = items === undefined ? (min > first.length ? value : never) : visit(items, under(path, 'items'))
    const comma = seq(ws, text(','), ws)
    const more = repeat(seq(comma, rest), Math.max(0, min - first.length), max === null ? null : max - first.length)
    return seq(
      text('['),
      ws,
      ...first.flatMap((one, index) => (index === 0 ? [one] : [comma, one])),
      more,
      ws,
      text(']'),
    )
  }

  const objectOf = (node: SchemaNode, path: string): Expr => {
    const { properties = {}, required = [], additionalProperties, propertyNames } = node
    if (!isObject(properties)) throw refusal(under(path, 'properties'), 'it has to be an object.')
    if (!Array.isArray(required) || !required.every((name) => typeof name === 'string'))
      throw refusal(under(path, 'required'), 'it has to be a list of names.')
    assertAnyName(propertyNames, under(path, 'propertyNames'))
    const otherPath = under(path, 'additionalProperties')
    let madeOther: Expr | null = null
    const otherValue = (): Expr =>
      (madeOther ??= additionalProperties === undefined ? value : shared(visit(additionalProperties, otherPath)))
    const values = new Map(
      Object.entries(properties).map(([name, inner]) => [
        name,
        () => visit(inner, under(under(path, 'properties'), name)),
      ]),
    )
    for (const name of required as string[]) {
      if (values.has(name)) continue
      if (additionalProperties === false)
        throw refusal(
          under(path, 'required'),
          `the property ${JSON.stringify(name)} is required, but it is not among the properties and no others are allowed.`,
        )
      values.set(name, otherValue)
    }
    // Nothing said about properties: any object. Else properties that are not named are only allowed where the schema
    // says so.
    const other = additionalProperties ?? (values.size === 0 && node.properties === undefined)
    const comma = seq(ws, text(','), ws)
    const member = (key: Expr, of: Expr) => seq(key, ws, text(':'), ws, of)
    const names = [...values.keys()]
    const members = names.map((name) => fresh(member(text(JSON.stringify(name)), values.get(name)!())))
    let tail: Expr = nothing
    // From the last on.
    const firsts: Expr[] = []
    if (other !== false) {
      if (names.join('').length > keyTextMax)
        throw refusal(otherPath, 'the names of the properties are too long to tell others from them; set it to false.')
      const key = names.length === 0 ? string : keyExcept(names, rules, `k${++made}`)
      const one = fresh(member(key, otherValue()))
      tail = fresh(repeat(seq(comma, one), 0, null))
      firsts.push(seq(one, tail))
    }
    const needs = new Set(required as string[])
    for (let index = names.length - 1; index >= 0; index--) {
      const isNeeded = needs.has(names[index]!)
      if (isNeeded) firsts.length = 0
      firsts.push(seq(members[index]!, tail))
      const here = seq(comma, members[index]!, tail)
      tail = fresh(isNeeded ? here : any(here, tail))
    }
    const filled = seq(any(...firsts.reverse()), ws, text('}'))
    return seq(text('{'), ws, needs.size > 0 ? filled : any(text('}'), filled))
  }

  const assertAnyName = (names: unknown, path: string): void => {
    const kept = isObject(names) ? constraints(names, path) : {}
    const allowsAll =
      names === undefined ||
      names === true ||
      (isObject(names) && Object.entries(kept).every(([key, one]) => key === 'type' && one === 'string'))
    if (!allowsAll) throw refusal(path, 'rules for names are not supported; name the properties.')
  }

  addJsonRules(rules)
  byPointer.set('', 'top')
  paths.set('top', '')
  rules.set('root', rule('top'))
  waiting.push({ name: 'top', node: schema, path: '' })
  for (let next = waiting.pop(); next; next = waiting.pop()) rules.set(next.name, visit(next.node, next.path))
  const loop = findEmptyLoop(rules)
  if (loop) throw refusal(paths.get(loop) ?? '', 'a reference leads back to itself before anything is written.')
  const pruned = prune(rules)
  if (!pruned)
    throw refusal(
      '',
      'no document can satisfy it: it demands what is never allowed, or itself inside of itself without end.',
    )
  return pruned
}

function isObject(node: unknown): node is SchemaNode {
  return typeof node === 'object' && node !== null && !Array.isArray(node)
}

function isOfType(one: unknown, type: string): boolean {
  if (type === 'integer') return Number.isInteger(one)
  if (type === 'null') return one === null
  if (type === 'array') return Array.isArray(one)
  return type === 'object' ? isObject(one) : typeof one === type
}
