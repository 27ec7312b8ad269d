// Grammar rules of calls in the shape of a model: every call that they allow is one that the model's template could
// have rendered, with arguments that satisfy the tool's schema.
import { casesOf, constantsOf, typeOf, typesOfSchema } from './argument-types.ts'
import {
  type CallShape,
  type Dialect,
  endOfCall,
  endOfValue,
  jsonDialect,
  type NamedArguments,
  slot,
  triggerOf,
  type ValueType,
  valueTypes,
  withName,
} from './call-shape.ts'
import { bareKey, lexisOf } from './dialect-rules.ts'
import { any, chars, type Expr, empty, never, prune, type Rules, repeat, rule, seq, text, until } from './rules.ts'
import { childPath, schemaError } from './schema-check.ts'
import { partRules, schemaRules } from './schema-rules.ts'

export interface CallTools {
  shape: CallShape
  tools: readonly { name: string; schema: Record<string, unknown> }[]
  /** Null: any number. */
  calls_max: number | null
  /** The text that starts a call is already there. */
  is_triggered: boolean
}

/** Throws ApiError `schema_not_enforceable`, as `schemaRules` does. */
export function callRules(calls: CallTools): Rules {
  return new CallCompiler(calls).compile()
}

/** Rules that are the same wherever values are written in one dialect. */
const common = new Set(
  'value object array number literal string chars any_chars escape escaped single double ws'.split(' '),
)
const blanksMax = 4
const digits = repeat(chars([0x30, 0x39]), 1, 3)
const idText = repeat(chars([0x2d, 0x2d], [0x30, 0x39], [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]), 1, 64)

class CallCompiler {
  private readonly calls: CallTools
  private readonly rules: Rules = new Map()
  private ruleCount = 0

  constructor(calls: CallTools) {
    this.calls = calls
  }

  compile(): Rules {
    const { shape, tools, calls_max, is_triggered } = this.calls
    const { arguments: form, next, last, other_heads = [] } = shape
    for (const [index, { name, schema }] of tools.entries()) {
      this.rules.set(`arguments${index}`, this.argumentsOf(schema, name))
      this.rules.set(`call${index}`, seq(slotted(form.kind === 'object' ? form.before : ''), rule(`arguments${index}`)))
    }
    const first = is_triggered ? shape.first.slice(triggerOf(shape).length) : shape.first
    const before = form.kind === 'object' ? '' : form.close
    const consumed = endOfCall(shape).length
    const more =
      next === null || calls_max === 1
        ? empty
        : repeat(this.head((before + next).slice(consumed)), 0, calls_max === null ? null : calls_max - 1)
    const blanks = repeat(chars([0x0a, 0x0a], [0x20, 0x20]), 0, blanksMax)
    const starts = any(
      this.head(first),
      ...other_heads.flatMap(({ first, before }) =>
        tools.map(({ name }, index) => seq(slotted(withName(first + before, name)), rule(`arguments${index}`))),
      ),
    )
    this.rules.set('root', seq(starts, more, slotted((before + last).slice(consumed)), blanks))
    return prune(this.rules)!
  }

  /** The text before a call with its name, and the call. */
  private head(before: string): Expr {
    const names = this.calls.tools.map(({ name }) => name)
    const at = before.indexOf(slot.name)
    if (at === before.length - 1)
      return seq(
        slotted(before.slice(0, -1)),
        any(...names.map((name, index) => seq(text(name), rule(`call${index}`)))),
      )
    return any(...names.map((name, index) => seq(slotted(withName(before, name)), rule(`call${index}`))))
  }

  private argumentsOf(schema: Record<string, unknown>, name: string): Expr {
    const { shape } = this.calls
    const form = shape.arguments
    if (form.kind === 'object') {
      const { dialect } = form
      const rules = dialect.name === 'json' ? schemaRules(schema) : partRules(schema, schema, '', lexisOf(dialect))
      return seq(this.added(rules, dialect), slotted(withName(endOfCall(shape), name)))
    }
    return this.namedArguments(schema, form)
  }

  /** Adds the rules of a value. Returns the rule that they start with. */
  private added(rules: Rules, { name: dialect }: Dialect): Expr {
    const prefix = `v${++this.ruleCount}_`
    const renamed = (name: string) => (common.has(name) ? `${dialect}_${name}` : prefix + name)
    const rename = (expr: Expr): Expr => {
      if (expr.kind === 'rule') return rule(renamed(expr.name))
      if (expr.kind === 'seq' || expr.kind === 'any') {
        // Identity tells what is empty.
        return { kind: expr.kind, parts: expr.parts.map(rename) }
      }
      return expr.kind === 'repeat' ? { ...expr, part: rename(expr.part) } : expr
    }
    for (const [name, expr] of rules) this.rules.set(renamed(name), rename(expr))
    return rule(renamed('root'))
  }

  private named(name: string, expr: Expr): Expr {
    const full = `${name}${++this.ruleCount}`
    this.rules.set(full, expr)
    return rule(full)
  }

  private namedArguments(schema: Record<string, unknown>, form: NamedArguments): Expr {
    const { shape } = this.calls
    const mark = endOfValue(shape)
    const withNone = text(form.none + endOfCall(shape, false).slice(form.none.length))
    const end = text(endOfCall(shape).slice(mark.length))
    const properties = isObject(schema.properties) ? schema.properties : {}
    const required = new Set(Array.isArray(schema.required) ? schema.required : [])
    const names = Object.keys(properties)
    for (const name of required as Set<string>)
      if (!names.includes(name)) {
        if (schema.additionalProperties === false)
          throw schemaError(
            '/required',
            `the property ${JSON.stringify(name)} is required, but not among the properties.`,
          )
        names.push(name)
      }
    const members = names.map((name) => {
      const node = Object.hasOwn(properties, name) ? properties[name] : (schema.additionalProperties ?? true)
      const path = childPath('/properties', name)
      return this.named('m', this.member(text(name), schema, node, path, form))
    })
    const next = text(form.next_key.slice(mark.length))
    const others = schema.additionalProperties ?? (names.length === 0 && schema.properties === undefined)
    let tail: Expr = end
    const firsts: Expr[] = []
    if (others !== false && names.length === 0) {
      const other = this.named('m', this.member(bareKey, schema, others, '/additionalProperties', form))
      tail = this.named('t', seq(repeat(seq(next, other), 0, null), end))
      firsts.push(seq(other, tail))
    }
    // Built from the last argument to the first.
    for (let index = names.length - 1; index >= 0; index--) {
      const isNeeded = required.has(names[index]!)
      if (isNeeded) firsts.length = 0
      firsts.push(seq(members[index]!, tail))
      const here = seq(next, members[index]!, tail)
      tail = this.named('t', isNeeded ? here : any(here, tail))
    }
    const filled = firsts.length === 0 ? never : seq(slotted(form.first_key), any(...firsts.reverse()))
    return required.size > 0 ? filled : any(withNone, filled)
  }

  /** A key, its value, and what follows every value. */
  private member(key: Expr, schema: unknown, node: unknown, path: string, form: NamedArguments): Expr {
    const byText = new Map<string, Expr[]>()
    for (const [type, value] of this.valuesOf(schema, node, path, form)) {
      const before = form.value[type]
      byText.set(before, [...(byText.get(before) ?? []), value])
    }
    return seq(key, any(...[...byText].map(([before, values]) => seq(text(before), any(...values)))))
  }

  /** The values that a part of the schema allows, by their types; each with what follows a value. */
  private valuesOf(schema: unknown, node: unknown, path: string, form: NamedArguments): [ValueType, Expr][] {
    // A schema that takes anything beside other cases takes anything.
    if (typesOfSchema(schema, node) === null) return this.valuesOfCase(schema, {}, path, form)
    const values = casesOf(schema, node, path).flatMap((one) => this.valuesOfCase(schema, one.node, one.path, form))
    if (values.length === 0) throw schemaError(path, 'none of its values has a type that it allows.')
    return values
  }

  private valuesOfCase(schema: unknown, node: unknown, path: string, form: NamedArguments): [ValueType, Expr][] {
    const mark = endOfValue(this.calls.shape)
    const ended = (value: Expr) => seq(value, text(mark))
    const allowed = typesOfSchema(schema, node)
    const constants = constantsOf(node)
    if (constants)
      return constants
        .filter((constant) => allowed!.includes(typeOf(constant)))
        .map((constant) => [typeOf(constant), ended(this.constant(constant, form))])
    const { strings, literals, nested } = form
    // A text without quotes may be anything: where any type is allowed, it stands for all that have its texts around
    // them.
    const isAny = allowed === null
    const types = (allowed ?? valueTypes).filter(
      (type) => !isAny || strings.open !== '' || type === 'string' || form.value[type] !== form.value.string,
    )
    return types.flatMap((type): [ValueType, Expr][] => {
      if (type === 'string') return [[type, this.stringOf(schema, isAny ? {} : node, path, form)]]
      if (type === 'boolean') return [[type, ended(any(text(literals.true), text(literals.false)))]]
      if (type === 'null') return [[type, ended(text(literals.null))]]
      const dialect = type === 'number' ? jsonDialect : nested[type]
      const part = isAny || !isObject(node) ? { type } : onlyOf(schema, node, type)
      return [[type, ended(this.added(partRules(schema, part, path, lexisOf(dialect)), dialect))]]
    })
  }

  private constant(constant: unknown, { strings, literals, nested }: NamedArguments): Expr {
    if (typeof constant === 'string') return text(strings.open + escapedText(constant, strings.escapes) + strings.close)
    if (constant === null) return text(literals.null)
    if (typeof constant === 'boolean') return text(constant ? literals.true : literals.false)
    if (typeof constant === 'number') return text(String(constant))
    const dialect = Array.isArray(constant) ? nested.array : nested.object
    return this.added(
      new Map([
        ['root', lexisOf(dialect).literal(constant)],
        ['ws', repeat(text(' '), 0, 1)],
      ]),
      dialect,
    )
  }

  /** A string and what follows a value. */
  private stringOf(schema: unknown, node: unknown, path: string, form: NamedArguments): Expr {
    const { shape } = this.calls
    const { open, close, escapes } = form.strings
    const mark = endOfValue(shape)
    const isFree = !isObject(node) || !isConstrained(node)
    if (open === '') {
      if (isFree) return until(mark)
      return seq(this.stringRule(schema, node, path, form.strings), text(mark))
    }
    if (!isFree) return seq(this.stringRule(schema, node, path, form.strings), text(mark))
    if (escapes === 'none')
      return seq(
        text(open),
        // The parser takes these for a value's end without the blanks behind them too.
        this.textWithout([close + form.next_key, close + endOfCall(shape)].map((end) => end.trimEnd())),
        text(close + mark),
      )
    const lexis = escapes === 'json' ? lexisOf(jsonDialect) : lexisOf(pythonDialect)
    const value = this.added(
      partRules({}, { type: 'string' }, '', lexis),
      escapes === 'json' ? jsonDialect : pythonDialect,
    )
    return seq(value, text(mark))
  }

  private stringRule(schema: unknown, node: unknown, path: string, strings: NamedArguments['strings']): Expr {
    const { open, close, escapes } = strings
    const dialect: Dialect =
      escapes === 'json'
        ? jsonDialect
        : escapes === 'python'
          ? pythonDialect
          : { ...pythonDialect, name: 'bare', quotes: [open, close] }
    const lexis = lexisOf(dialect, close === '' ? endOfValue(this.calls.shape) : undefined)
    return this.added(partRules(schema, onlyOf(schema, node, 'string'), path, lexis), dialect)
  }

  /** Any text that has none of these in it: an automaton that follows how much of them was just written. */
  private textWithout(texts: readonly string[]): Expr {
    const states = new Map<string, string>()
    const longestSuffix = (written: string): string => {
      for (let from = 0; from < written.length; from++)
        if (texts.some((one) => one.startsWith(written.slice(from)))) return written.slice(from)
      return ''
    }
    const stateOf = (written: string): Expr => {
      const known = states.get(written)
      if (known !== undefined) return rule(known)
      const name = `w${++this.ruleCount}`
      states.set(written, name)
      const letters = new Set([...texts.flatMap((one) => [...one])])
      const parts: Expr[] = [empty]
      const special: number[] = []
      for (const letter of letters) {
        const now = longestSuffix(written + letter)
        if (now === '') continue
        special.push(letter.codePointAt(0)!)
        if (!texts.includes(now)) parts.push(seq(text(letter), stateOf(now)))
      }
      const others: [number, number][] = []
      let from = 0
      for (const code of special.toSorted((a, b) => a - b)) {
        if (code > from) others.push([from, code - 1])
        from = code + 1
      }
      parts.push(seq(chars(...others, [from, 0x10ffff]), stateOf('')))
      this.rules.set(name, any(...parts))
      return rule(name)
    }
    return stateOf('')
  }
}

const pythonDialect: Dialect = {
  name: 'python',
  quotes: ["'", "'"],
  literals: { true: 'True', false: 'False', null: 'None' },
}

function isObject(node: unknown): node is Record<string, unknown> {
  return typeof node === 'object' && node !== null && !Array.isArray(node)
}

const isConstrained = (node: Record<string, unknown>) =>
  ['pattern', 'format', 'minLength', 'maxLength', '$ref', 'anyOf', 'oneOf', 'allOf'].some(
    (key) => node[key] !== undefined,
  )

/** The part of a schema with one of its types. */
function onlyOf(_schema: unknown, node: unknown, type: ValueType): unknown {
  if (!isObject(node)) return node
  if (type !== 'number' || node.type === undefined) return { ...node, type }
  const types = Array.isArray(node.type) ? node.type : [node.type]
  return { ...node, type: types.includes('number') ? 'number' : 'integer' }
}

function escapedText(value: string, escapes: NamedArguments['strings']['escapes']): string {
  if (escapes === 'none') return value
  if (escapes === 'json') return JSON.stringify(value).slice(1, -1)
  const named: Record<string, string> = { '\n': '\\n', '\r': '\\r' }
  return value.replace(/['\\\n\r]/g, (char) => named[char] ?? `\\${char}`)
}

/** A text with slots: numbers and ids. */
function slotted(pattern: string): Expr {
  const parts = pattern.split(/([\uFDD1-\uFDD3])/)
  return seq(
    ...parts
      .filter((part) => part !== '')
      .map((part) => (part === slot.id ? idText : part === slot.index || part === slot.count ? digits : text(part))),
  )
}
