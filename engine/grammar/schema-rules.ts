// Converts JSON Schema to grammar rules. Every document that the rules allow satisfies the schema. Where a grammar
// can't express all of a schema (properties in any order, escapes in bounded strings), the rules allow a subset.
import { jsonLexis, type Lexis } from './dialect-rules.ts'
import { delimitedList, value, ws } from './json-rules.ts'
import {
  any,
  type Expr,
  empty,
  findEmptyLoop,
  never,
  prune,
  type Rules,
  repeat,
  rule,
  seq,
  sizeOfExpr,
  text,
} from './rules.ts'
import { numberRules, stringRules } from './scalar-rules.ts'
import { areExclusive, resolvePointer } from './schema-cases.ts'
import {
  checkSize,
  childPath,
  constrainingKeywords,
  type SchemaNode,
  schemaError,
  sizeOf,
  tooLargeError,
  typesOf,
} from './schema-check.ts'

const oneOfMax = 100
const keyTextMax = 5_000
// Limit of a grammar's nodes: bounds the cost of a request before its trial in a worker thread.
const partsMax = 100_000
const partsPerPatternCharacter = 2
/** Limit of compared pairs of oneOf cases. */
const pairsMax = 20_000

/**
 * The rules of a JSON Schema, starting at `root`. Throws ApiError `schema_not_enforceable`, with the path, if the
 * schema is too large, uses unsupported keywords, or matches no document.
 */
export function schemaRules(schema: unknown): Rules {
  checkSize(schema)
  return new SchemaCompiler(schema, jsonLexis).compile()
}

/**
 * The rules of a part of a schema in another way of writing values. Throws what `schemaRules` does. `path`: a JSON
 * pointer to the part.
 */
export function partRules(schema: unknown, node: unknown, path: string, lexis: Lexis): Rules {
  checkSize(schema)
  return new SchemaCompiler(schema, lexis).compile(node, path)
}

/** Compiles one schema: visits its parts, and counts what they come to. */
class SchemaCompiler {
  private readonly schema: unknown
  private readonly lexis: Lexis
  private readonly rules: Rules = new Map()
  private readonly paths = new Map<string, string>()
  private readonly pending: { name: string; node: unknown; path: string }[] = []
  private readonly byPointer = new Map<string, string>()
  private ruleCount = 0
  private parts = 0
  private pairs = 0

  constructor(schema: unknown, lexis: Lexis) {
    this.schema = schema
    this.lexis = lexis
  }

  compile(node = this.schema, path = ''): Rules {
    this.lexis.addRules(this.rules)
    // A part may be another than what its path leads to: one of its types.
    if (path === '') this.byPointer.set(path, 'top')
    this.paths.set('top', path)
    this.rules.set('root', rule('top'))
    this.pending.push({ name: 'top', node, path })
    for (let next = this.pending.pop(); next; next = this.pending.pop())
      this.rules.set(next.name, this.visit(next.node, next.path))
    const loop = findEmptyLoop(this.rules)
    if (loop)
      throw schemaError(this.paths.get(loop) ?? '', 'a reference leads back to itself before anything is written.')
    const pruned = prune(this.rules)
    if (!pruned)
      throw schemaError(
        '',
        'no document can satisfy it: it demands what is never allowed, or itself inside of itself without end.',
      )
    return pruned
  }

  private countParts(more: number): void {
    this.parts += more
    if (this.parts > partsMax) throw tooLargeError(`${partsMax} parts once its patterns and ranges are written out`)
  }

  private counted(expr: Expr): Expr {
    this.countParts(sizeOfExpr(expr))
    return expr
  }

  private addRule(expr: Expr): Expr {
    const name = `r${++this.ruleCount}`
    this.rules.set(name, expr)
    return rule(name)
  }

  /** A rule for an expression that is used more than once: copies would double with every level. */
  private sharedRule(expr: Expr): Expr {
    return expr.kind === 'rule' ? expr : this.addRule(expr)
  }

  private visit(node: unknown, path: string): Expr {
    if (node === true) return value
    if (node === false) return never
    if (!isObject(node)) throw schemaError(path, 'a schema is an object, true or false.')
    const keywords = constrainingKeywords(node, path)
    const requireAlone = (key: string, ...others: string[]) => {
      const conflicting = Object.keys(keywords).find((name) => name !== key && !others.includes(name))
      if (conflicting)
        throw schemaError(
          childPath(path, conflicting),
          `it is used together with ${key}, which is not supported; put it into the schema that ${key} names.`,
        )
    }
    if (keywords.$ref !== undefined) {
      requireAlone('$ref')
      return this.referenceRule(keywords.$ref, childPath(path, '$ref'))
    }
    if (keywords.const !== undefined || keywords.enum !== undefined) {
      const key = keywords.const !== undefined ? 'const' : 'enum'
      requireAlone(key, 'type')
      return this.enumRules(keywords, key, path)
    }
    for (const key of ['anyOf', 'oneOf', 'allOf'] as const) {
      if (keywords[key] === undefined) continue
      requireAlone(key)
      return this.combinatorRules(keywords[key], key, childPath(path, key))
    }
    const types = typesOf(keywords, path)
    return types === null ? value : any(...types.map((type) => this.ofType(type, keywords, path)))
  }

  private referenceRule(ref: unknown, path: string): Expr {
    const target = resolvePointer(this.schema, ref)
    if (!target)
      throw schemaError(
        path,
        'it does not lead to a schema inside of this one; only references such as "#/$defs/name" are followed.',
      )
    let name = this.byPointer.get(target.pointer)
    if (!name) {
      name = `ref${this.byPointer.size}`
      this.byPointer.set(target.pointer, name)
      this.paths.set(name, target.pointer)
      // Visit it later: a chain of references could overflow the stack.
      this.pending.push({ name, node: target.node, path: target.pointer })
    }
    return rule(name)
  }

  private enumRules(node: SchemaNode, key: 'const' | 'enum', path: string): Expr {
    const values = key === 'const' ? [node.const] : node.enum
    if (!Array.isArray(values)) throw schemaError(childPath(path, key), 'it has to be a list of values.')
    const types = node.type === undefined ? null : typesOf(node, path)
    const fitting = values.filter((one) => !types || types.some((type) => isOfType(one, type)))
    if (fitting.length === 0)
      throw schemaError(
        childPath(path, key),
        values.length === 0 ? 'the list is empty.' : 'none of the values has the type that the schema asks for.',
      )
    return any(...fitting.map((one) => this.lexis.literal(one)))
  }

  private combinatorRules(branches: unknown, key: 'anyOf' | 'oneOf' | 'allOf', path: string): Expr {
    if (!Array.isArray(branches) || branches.length === 0)
      throw schemaError(path, 'it has to be a list with one schema or more.')
    if (key === 'allOf' && branches.length > 1)
      throw schemaError(path, 'several schemas at once are not supported; write them as one.')
    if (key === 'oneOf') {
      if (branches.length > oneOfMax) throw schemaError(path, `it has more than ${oneOfMax} cases.`)
      this.pairs += (branches.length * (branches.length - 1)) / 2
      if (this.pairs > pairsMax) throw tooLargeError(`${pairsMax} pairs of cases that oneOf must tell apart`)
      branches.forEach((branch, index) => {
        const other = branches.findIndex((one, before) => before < index && !areExclusive(this.schema, one, branch))
        if (other >= 0)
          throw schemaError(
            childPath(path, index),
            `a document may fit this case and case ${other}; give them different types ` +
              'or a required property with its own const, or use anyOf.',
          )
      })
    }
    return any(...branches.map((branch, index) => this.visit(branch, childPath(path, index))))
  }

  private ofType(type: string, node: SchemaNode, path: string): Expr {
    if (type === 'object') return this.objectOf(node, path)
    if (type === 'array') return this.arrayOf(node, path)
    if (type === 'string') {
      this.countParts(typeof node.pattern === 'string' ? partsPerPatternCharacter * node.pattern.length : 0)
      return this.counted(stringRules(node, path, this.lexis))
    }
    if (type === 'boolean') return this.lexis.boolean
    return type === 'null' ? this.lexis.nothing : this.counted(numberRules(node, path, type === 'integer'))
  }

  private arrayOf(node: SchemaNode, path: string): Expr {
    const { items, prefixItems = [] } = node
    if (Array.isArray(items))
      throw schemaError(childPath(path, 'items'), 'a list of schemas is written as prefixItems.')
    if (!Array.isArray(prefixItems))
      throw schemaError(childPath(path, 'prefixItems'), 'it has to be a list of schemas.')
    const min = sizeOf(node, 'minItems', path) ?? 0
    const max = sizeOf(node, 'maxItems', path) ?? null
    if (max !== null && min > max) throw schemaError(childPath(path, 'minItems'), 'it is greater than maxItems.')
    const first = prefixItems
      .slice(0, max ?? undefined)
      .map((one, index) => this.visit(one, childPath(childPath(path, 'prefixItems'), index)))
    if (first.length === 0)
      return delimitedList(
        '[',
        items === undefined ? value : this.sharedRule(this.visit(items, childPath(path, 'items'))),
        ']',
        min,
        items === false ? 0 : max,
      )
    // Without `items` a tuple ends with its last item, unless minItems asks for more.
    const rest =
      items === undefined ? (min > first.length ? value : never) : this.visit(items, childPath(path, 'items'))
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

  private objectOf(node: SchemaNode, path: string): Expr {
    const { properties = {}, required = [], additionalProperties, propertyNames } = node
    if (!isObject(properties)) throw schemaError(childPath(path, 'properties'), 'it has to be an object.')
    if (!Array.isArray(required) || !required.every((name) => typeof name === 'string'))
      throw schemaError(childPath(path, 'required'), 'it has to be a list of names.')
    assertAnyName(propertyNames, childPath(path, 'propertyNames'))
    const otherPath = childPath(path, 'additionalProperties')
    let madeOther: Expr | null = null
    const otherValue = (): Expr =>
      (madeOther ??=
        additionalProperties === undefined ? value : this.sharedRule(this.visit(additionalProperties, otherPath)))
    const values = new Map(
      Object.entries(properties).map(([name, inner]) => [
        name,
        () => this.visit(inner, childPath(childPath(path, 'properties'), name)),
      ]),
    )
    for (const name of required as string[]) {
      if (values.has(name)) continue
      if (additionalProperties === false)
        throw schemaError(
          childPath(path, 'required'),
          `the property ${JSON.stringify(name)} is required, ` +
            'but it is not among the properties and no others are allowed.',
        )
      values.set(name, otherValue)
    }
    // Without `properties` any object matches. Otherwise unnamed properties need `additionalProperties`.
    const other = additionalProperties ?? (values.size === 0 && node.properties === undefined)
    const comma = seq(ws, text(','), ws)
    const member = (key: Expr, of: Expr) => seq(key, ws, text(':'), ws, of)
    const names = this.lexis.inOrder([...values.keys()])
    const members = names.map((name) => this.addRule(member(text(this.lexis.writeKey(name)), values.get(name)!())))
    let tail: Expr = empty
    // Built from the last property to the first.
    const firsts: Expr[] = []
    if (other !== false && (names.length === 0 || this.lexis.otherKey !== null)) {
      if (names.join('').length > keyTextMax)
        throw schemaError(
          otherPath,
          'the names of the properties are too long to tell others from them; set it to false.',
        )
      const key =
        names.length === 0 ? this.lexis.anyKey : this.lexis.otherKey!(names, this.rules, `k${++this.ruleCount}`)
      const one = this.addRule(member(key, otherValue()))
      tail = this.addRule(repeat(seq(comma, one), 0, null))
      firsts.push(seq(one, tail))
    }
    const requiredNames = new Set(required as string[])
    for (let index = names.length - 1; index >= 0; index--) {
      const isNeeded = requiredNames.has(names[index]!)
      if (isNeeded) firsts.length = 0
      firsts.push(seq(members[index]!, tail))
      const here = seq(comma, members[index]!, tail)
      tail = this.addRule(isNeeded ? here : any(here, tail))
    }
    const filled = seq(any(...firsts.reverse()), ws, text('}'))
    return seq(text('{'), ws, requiredNames.size > 0 ? filled : any(text('}'), filled))
  }
}

function assertAnyName(names: unknown, path: string): void {
  const keywords = isObject(names) ? constrainingKeywords(names, path) : {}
  const allowsAll =
    names === undefined ||
    names === true ||
    (isObject(names) && Object.entries(keywords).every(([key, one]) => key === 'type' && one === 'string'))
  if (!allowsAll) throw schemaError(path, 'rules for names are not supported; name the properties.')
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
