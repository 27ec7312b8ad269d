// Jinja as Python renders it. Hugging Face's interpreter writes `true` for `True`, nothing for `None` and JSON for
// lists, its lists have no methods, and what is undefined or of another type ends it where Python goes on; models were
// trained on what Python renders. The package exports no way to change that, so its classes are changed where this file
// is loaded.
import { Environment, Interpreter, Template as Parsed } from '@huggingface/jinja'
import { ExactNumber, type JsonForm, jsonOf, textOf, type Value, withDigits } from './python-text.ts'
import { bounded, countStep, countSteps, range } from './render-bounds.ts'

interface Statement {
  type: string
}
interface Filter extends Statement {
  value?: string
  callee?: Filter
  args?: Statement[]
}
interface Member extends Statement {
  computed: boolean
  object: Statement
  property: Statement
}
interface Literal extends Statement {
  value: Map<Statement, Statement>
}
/** A value in the place of what was to be evaluated. */
interface Evaluated extends Statement {
  evaluated: Value
}
interface Binary extends Statement {
  operator: { value: string }
  left: Statement
  right: Statement
}
interface Loop extends Statement {
  iterable: Statement
}
interface Test extends Statement {
  operand: Statement
  negate: boolean
  test: { value: string }
}
/** The interpreter's methods by which values become text. */
interface Internals {
  evaluate(statement: Statement, scope: unknown): Value
  evaluateBlock(statements: Statement[], scope: unknown): Value
  evaluateBinaryExpression(node: Binary, scope: unknown): Value
  evaluateMemberExpression(node: Member, scope: unknown): Value
  evaluateFor(node: Loop, scope: unknown): Value
  evaluateTestExpression(node: Test, scope: unknown): Value
  evaluateArguments(args: Statement[], scope: unknown): [Value[], Map<string, Value>]
  applyFilter(operand: Value, filter: Filter, scope: unknown): Value
}
type Class = new (value: unknown) => Value

const environment = Environment.prototype as unknown as {
  set(name: string, value: unknown): Value
  declareVariable(name: string, value: Value): Value
}
const { set } = environment
const convert = (value: unknown) => set.call(new Environment(), 'value', value)
const classOf = (value: unknown) => convert(value).constructor as Class
const StringValue = classOf('')
const FunctionValue = classOf(() => null)
const NullValue = classOf(null)
const IntegerValue = classOf(0)
const ListValue = classOf([])
const ObjectValue = classOf({})
const FloatValue = classOf(0.5)
/** `instanceof` itself would tell TypeScript that a value is of no other class. */
const isA = (value: Value, kind: Class): boolean => value instanceof kind
const numberTypes = new Set(['IntegerValue', 'FloatValue', 'BooleanValue'])
/** What is undefined can be gone through, too: there is nothing in it. */
const iterableTypes = new Set(['ArrayValue', 'TupleValue', 'StringValue', 'ObjectValue', 'UndefinedValue'])
const dictionaryMethods = new Set(['get', 'items', 'keys', 'values'])

/** Statements that write nothing by themselves; all others are expressions. */
const silent = new Set([
  'Set',
  'Macro',
  'Comment',
  'If',
  'For',
  'CallStatement',
  'FilterStatement',
  'Break',
  'Continue',
])

environment.set = function (name, value) {
  // The package's own does not end.
  return this.declareVariable(name, fromData(name === 'range' ? range : value))
}

function fromData(value: unknown): Value {
  if (value instanceof ExactNumber) {
    const number = Number(value.source)
    return value.isFloat ? new FloatValue(number) : withDigits(new IntegerValue(number), value.source)
  }
  if (typeof value !== 'object' || value === null) return convert(value)
  if (Array.isArray(value)) return new ListValue(value.map(fromData))
  return new ObjectValue(new Map(Object.entries(value).map(([key, item]) => [key, fromData(item)])))
}

const internals = Interpreter.prototype as unknown as Internals
const {
  applyFilter,
  evaluate,
  evaluateBinaryExpression,
  evaluateFor,
  evaluateMemberExpression,
  evaluateTestExpression,
} = internals

/** Dictionaries whose keys are numbers, which the package refuses. */
const numbered = new WeakMap<Value, Map<number, Value>>()

internals.evaluate = function (this: Internals, statement, scope) {
  if (statement?.type === 'Evaluated') return (statement as Evaluated).evaluated
  const value = evaluated.call(this, statement, scope)
  countStep(value.value)
  return value
}

function evaluated(this: Internals, statement: Statement, scope: unknown): Value {
  if (statement?.type !== 'ObjectLiteral') return evaluate.call(this, statement, scope)
  const entries = [...(statement as Literal).value]
  if (entries.length === 0 || entries.some(([key]) => key.type !== 'IntegerLiteral'))
    return evaluate.call(this, statement, scope)
  const items = entries.map(([key, item]) => [this.evaluate(key, scope), this.evaluate(item, scope)] as const)
  const pairs = () => new ListValue(items.map((pair) => new ListValue([...pair])))
  const sorted = () =>
    new ListValue(
      items.toSorted(([a], [b]) => (a.value as number) - (b.value as number)).map((pair) => new ListValue([...pair])),
    )
  const value = convert({})
  numbered.set(value, new Map(items.map(([key, item]) => [key.value as number, item])))
  const builtins = new Map([
    ['items', new FunctionValue(pairs)],
    ['dictsort', new FunctionValue(sorted)],
  ])
  Object.defineProperty(value, 'builtins', { value: builtins })
  return value
}

internals.evaluateMemberExpression = function (this: Internals, node, scope) {
  if (node.property.type === 'SliceExpression') return evaluateMemberExpression.call(this, node, scope)
  const evaluated = this.evaluate(node.object, scope)
  if (evaluated.type === 'UndefinedValue') throw new Error('what is undefined has no members')
  if (!node.computed) {
    // After a dot, a dictionary's method comes before a key of its name.
    const name = (node.property as Statement & { value?: unknown }).value
    const isMethod = evaluated instanceof ObjectValue && typeof name === 'string' && dictionaryMethods.has(name)
    if (isMethod) return (evaluated as Value & { builtins: Map<string, Value> }).builtins.get(name)!
  }
  const object: Evaluated = { type: 'Evaluated', evaluated }
  if (!node.computed) return evaluateMemberExpression.call(this, { ...node, object }, scope)
  const key = this.evaluate(node.property, scope)
  const byNumber = numbered.get(evaluated)
  if (byNumber) return byNumber.get(key.value as number) ?? convert(undefined)
  // What a value cannot have is undefined.
  const isIndex = isA(key, IntegerValue) && (isA(evaluated, ListValue) || isA(evaluated, StringValue))
  if (!isIndex && !isA(key, StringValue)) return convert(undefined)
  const property: Evaluated = { type: 'Evaluated', evaluated: key }
  return evaluateMemberExpression.call(this, { ...node, object, property }, scope)
}

internals.evaluateFor = function (this: Internals, node, scope) {
  if (node.iterable.type === 'SelectExpression') return evaluateFor.call(this, node, scope)
  const items = this.evaluate(node.iterable, scope)
  const iterated = items.type === 'UndefinedValue' ? convert([]) : items
  if (isA(iterated, ListValue)) countSteps((iterated.value as Value[]).length)
  const iterable: Evaluated = { type: 'Evaluated', evaluated: iterated }
  return evaluateFor.call(this, { ...node, iterable }, scope)
}

internals.evaluateTestExpression = function (this: Internals, node, scope) {
  if (node.test.value !== 'iterable' && node.test.value !== 'sequence')
    return evaluateTestExpression.call(this, node, scope)
  return convert(iterableTypes.has(this.evaluate(node.operand, scope).type) !== node.negate)
}

internals.evaluateBlock = function (this: Internals, statements, scope) {
  let text = ''
  for (const statement of statements) {
    const value = this.evaluate(statement, scope)
    if (!silent.has(statement.type) || value.type === 'StringValue') text += textOf(value)
  }
  return new StringValue(text)
}

internals.evaluateBinaryExpression = function (this: Internals, node, scope) {
  const operation = operations[node.operator.value]
  if (!operation) return evaluateBinaryExpression.call(this, node, scope)
  return convert(operation(this.evaluate(node.left, scope), this.evaluate(node.right, scope)))
}

const operations: Record<string, (left: Value, right: Value) => string | boolean> = {
  '~': (left, right) => textOf(left) + textOf(right),
  '==': isEqual,
  '!=': (left, right) => !isEqual(left, right),
  in: isIn,
  'not in': (left, right) => !isIn(left, right),
}

/** `left == right` of Python. */
function isEqual(left: Value, right: Value): boolean {
  countSteps(1)
  if (numberTypes.has(left.type) && numberTypes.has(right.type)) return Number(left.value) === Number(right.value)
  if (left.type !== right.type) return false
  if (isA(left, ListValue)) {
    const [items, others] = [left.value as Value[], right.value as Value[]]
    return items.length === others.length && items.every((item, at) => isEqual(item, others[at]!))
  }
  if (isA(left, ObjectValue)) {
    const [entries, others] = [left.value as Map<string, Value>, right.value as Map<string, Value>]
    return (
      entries.size === others.size &&
      [...entries].every(([key, item]) => others.has(key) && isEqual(item, others.get(key)!))
    )
  }
  return left.value === right.value
}

/** `item in container` of Python. */
function isIn(item: Value, container: Value): boolean {
  if (container.type === 'UndefinedValue') return false
  if (isA(container, ListValue)) return (container.value as Value[]).some((each) => isEqual(item, each))
  if (isA(container, ObjectValue)) {
    const key = item.value as never
    return (numbered.get(container) ?? (container.value as Map<unknown, Value>)).has(key)
  }
  if (isA(container, StringValue) && isA(item, StringValue))
    return (container.value as string).includes(item.value as string)
  throw new Error(`'in' needs a text in a text, or a list or dictionary: got ${item.type} in ${container.type}`)
}

internals.applyFilter = function (this: Internals, given, filter, scope) {
  // Parentheses without arguments change nothing.
  if (filter.callee?.type === 'Identifier' && filter.args?.length === 0)
    return this.applyFilter(given, filter.callee, scope)
  const name = (filter.type === 'Identifier' ? filter.value : filter.callee?.value) ?? ''
  if (name === 'string') return new StringValue(textOf(given))
  if (name === 'tojson') return new StringValue(jsonOf(given, jsonForm(this, filter, scope)))
  const operand = operandOf(given, name)
  if (operand instanceof ListValue) {
    const items = operand.value as Value[]
    if (name === 'join') {
      const texts = new ListValue(items.map((item) => new StringValue(textOf(item))))
      return applyFilter.call(this, texts, filter, scope)
    }
    if ((name === 'min' || name === 'max') && filter.type === 'Identifier' && items.length > 0)
      return items.reduce((best, item) => {
        const less = (item.value as number) < (best.value as number)
        return less === (name === 'min') ? item : best
      })
  }
  return applyFilter.call(this, operand, filter, scope)
}

/** What `tojson` takes of transformers' filter. */
function jsonForm(interpreter: Internals, { args = [] }: Filter, scope: unknown): JsonForm {
  const [, named] = interpreter.evaluateArguments(args, scope)
  const given = (name: string) => named.get(name)?.value
  const separators = given('separators') as [Value, Value] | null | undefined
  return {
    indent: Number(given('indent') ?? 0),
    ensure_ascii: given('ensure_ascii') === true,
    separators: separators ? [textOf(separators[0]), textOf(separators[1])] : null,
    sort_keys: given('sort_keys') === true,
  }
}

/** Filters that take the text of any value. */
const textFilters = new Set(['upper', 'lower', 'title', 'capitalize', 'trim', 'replace'])
/** Filters that go through what they are given: what is undefined has nothing in it. */
const listFilters = new Set(
  'items length list join sort unique reverse first last map select reject selectattr rejectattr'.split(' '),
)

/** What a filter takes a value for. */
function operandOf(value: Value, filter: string): Value {
  if (textFilters.has(filter)) return new StringValue(textOf(value))
  if (value.type === 'UndefinedValue' && listFilters.has(filter)) return filter === 'items' ? convert({}) : convert([])
  return value
}

const listMethods: Record<string, (list: Value[], args: Value[]) => Value | undefined> = {
  append: (list, [item]) => void list.push(item!),
  // The list may be its own, and too long for the arguments of one call.
  extend: (list, [items]) => void (items!.value as Value[]).slice().forEach((item) => void list.push(item)),
  insert: (list, [at, item]) => void list.splice(at!.value as number, 0, item!),
  pop: (list, [at]) => list.splice(at ? (at.value as number) : -1, 1)[0],
}
Object.defineProperty(ListValue.prototype, 'builtins', {
  configurable: true,
  get(this: Value) {
    const list = this.value as Value[]
    const methods = Object.entries(listMethods).map(([name, method]): [string, Value] => [
      name,
      new FunctionValue((args: Value[]) => method(list, args) ?? new NullValue(null)),
    ])
    return new Map<string, Value>([['length', new IntegerValue(list.length)], ...methods])
  },
})

const textMethods = Object.getOwnPropertyDescriptor(StringValue.prototype, 'builtins')!.get!
Object.defineProperty(StringValue.prototype, 'builtins', {
  configurable: true,
  get(this: Value) {
    const methods = textMethods.call(this) as Map<string, Value>
    if (!methods.has('format'))
      methods.set(
        'format',
        new FunctionValue((args: Value[]) => {
          let index = 0
          return new StringValue((this.value as string).replace(/\{(\d*)\}/g, (_, at) => textOf(args[at || index++]!)))
        }),
      )
    return methods
  },
})

/** A parsed chat template. */
export class Template extends Parsed {
  /** What a conversation does not have is None, and not undefined, as transformers passes it. */
  override render(variables: Record<string, unknown>): string {
    return bounded(() => super.render({ tools: null, documents: null, ...variables }))
  }
}
