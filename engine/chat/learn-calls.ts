// Learns how a model writes calls of tools from its chat template: renders probes, and finds the texts around what it
// put into them. The idea is that of llama.cpp's differential parser. What is learned is checked: calls that the
// template renders must be parsed to what they were.
import {
  type CallShape,
  commonPrefix,
  commonSuffix,
  type Dialect,
  endOfCall,
  endOfValue,
  type Head,
  jsonDialect,
  type NamedArguments,
  slot,
  triggerOf,
  type ValueType,
  valueTypes,
} from '../grammar/call-shape.ts'
import { unescaped, writeValue } from './call-values.ts'
import { readCalls } from './shaped-call-parser.ts'

/** Renders messages and variables of a template. Null if it refuses them. */
export type Probe = (messages: readonly object[], variables?: Record<string, unknown>) => string | null

export interface LearnedCalls {
  shape: CallShape
  /** What the template reads as a call's arguments: the object, or its JSON. */
  arguments: 'object' | 'text'
  /** Whether the template refuses ids that are not of nine letters and digits. */
  short_ids: boolean
  /** Whether a message may have one call: the template refuses others, or leaves them out. */
  takes_one: boolean
}

type Arguments = Record<string, unknown>
interface ProbedCall {
  name: string
  arguments: Arguments
}

const names = ['zz_probe_one', 'zz_probe_two', 'zz_probe_six']
const keys = ['key_a', 'key_b', 'key_c']
const [said, answered] = ['Zq asks.', 'Zq answers.']
const values = ['Zqvalueone', 'Zqvaluetwo', 'Zqvaluesix']
const samples: Record<ValueType, unknown> = {
  string: values[1],
  number: 40_961,
  boolean: true,
  null: null,
  object: { inner: 40_963, text: 'Zqinner' },
  array: [40_962, 'Zqitem'],
}
/** Nine letters and digits, as Mistral's templates demand. */
const idOf = (index: number) => `zqcall00${index}`
const user = { role: 'user', content: said }

export const probeTools = names.map((name) => ({
  type: 'function',
  function: {
    name,
    description: 'A probe.',
    parameters: {
      type: 'object',
      properties: Object.fromEntries(keys.map((key) => [key, { type: 'string', description: 'A key.' }])),
      required: [],
    },
  },
}))

/** `end_texts`: what ends an answer, such as <|im_end|>. Null if the template writes no calls that can be read. */
export function learnCalls(probe: Probe, end_texts: readonly string[]): LearnedCalls | null {
  for (const form of ['object', 'text'] as const) {
    const shape = learnShape(probe, end_texts, form)
    if (!shape) continue
    const given = form === 'object' ? {} : '{}'
    const tool_calls = [{ id: 'call_zqzqzq-1', type: 'function', function: { name: names[0]!, arguments: given } }]
    const short_ids = probe([user, { role: 'assistant', content: '', tool_calls }], { tools: probeTools }) === null
    return { shape, arguments: form, short_ids, takes_one: takesOneCall(probe, form) }
  }
  return null
}

function takesOneCall(probe: Probe, form: LearnedCalls['arguments']): boolean {
  const tool_calls = values.map((value, index) => ({
    id: idOf(index),
    type: 'function',
    function: {
      name: names[index]!,
      arguments: form === 'object' ? { key_a: value } : JSON.stringify({ key_a: value }),
    },
  }))
  const text = probe([user, { role: 'assistant', content: '', tool_calls }], { tools: probeTools })
  return values.some((value) => !text?.includes(value))
}

function learnShape(probe: Probe, endTexts: readonly string[], form: LearnedCalls['arguments']): CallShape | null {
  const plain = probe([user, { role: 'assistant', content: answered }], { tools: probeTools })
  if (plain === null || !plain.includes(answered)) return null
  const prompt = probe([user], { tools: probeTools, add_generation_prompt: true }) ?? ''
  const turnEnd = plain.slice(plain.lastIndexOf(answered) + answered.length)

  /** The answer's text with these calls, from where it differs from an answer without calls. */
  const render = (...calls: ProbedCall[]): string | null => {
    const tool_calls = calls.map(({ name, arguments: given }, index) => ({
      id: idOf(index),
      type: 'function',
      function: { name, arguments: form === 'object' ? given : JSON.stringify(given) },
    }))
    const text = probe([user, { role: 'assistant', content: '', tool_calls }], { tools: probeTools })
    if (text === null) return null
    const start = startOfAnswer(commonPrefix(plain, text), prompt)
    return withoutTurnEnd(text.slice(start).trimStart(), turnEnd, endTexts)
  }

  const shape = learnObject(render) ?? learnNamed(render)
  if (!shape || !isTrue(shape, render)) return null
  const other_heads = otherHeads(shape)
  return other_heads.length > 0 ? { ...shape, other_heads } : shape
}

/**
 * In harmony's format the recipient of a call is part of the message's role or of its channel. Templates write the
 * first, and the model that OpenAI trained mostly the second, with a token before the type of the arguments.
 */
function otherHeads({ first, next, arguments: form }: CallShape): Head[] {
  if (form.kind !== 'object' || next !== null || !first.startsWith('to=')) return []
  const [, channel, message] = /^(<\|channel\|>\w+)(?: \w*)?(<\|message\|>)$/.exec(form.before) ?? []
  if (channel === undefined || message === undefined) return []
  const types = [' <|constrain|>json', '<|constrain|>json', ' json', '']
  return types.flatMap((type) => [
    { first: `${channel} ${first}`, before: type + message },
    // Behind the role of an assistant.
    ...['', ' '].map((space) => ({ first: space + first, before: channel + type + message })),
  ])
}

/**
 * Where the answer begins: what answers with and without calls have in common, up to the end of the prompt and of the
 * markers behind it (such as empty thoughts).
 */
function startOfAnswer(common: string, prompt: string): number {
  const whole = withoutOpenMarker(commonPrefix(common, prompt))
  return whole.length + (/^[\s\S]*[>\]]\s*/.exec(common.slice(whole.length))?.[0].length ?? 0)
}

/** The text without a marker that is cut at its end. */
export function withoutOpenMarker(text: string): string {
  return text.slice(0, /[<[][^<>[\]\s]*$/.exec(text)?.index ?? text.length)
}

function withoutTurnEnd(text: string, turnEnd: string, endTexts: readonly string[]): string {
  const marks = endTexts.map((end) => (end === '' ? -1 : text.indexOf(end))).filter((at) => at > 0)
  if (marks.length > 0) return text.slice(0, Math.min(...marks)).trimEnd()
  if (turnEnd !== '' && text.endsWith(turnEnd)) return text.slice(0, text.length - turnEnd.length).trimEnd()
  // Another token may end a turn with calls. What both ends share counts from the start of a marker.
  const shared = commonSuffix(text.trimEnd(), turnEnd.trimEnd())
  const marker = shared.search(/[<[]/)
  return (marker < 0 ? text : text.slice(0, text.trimEnd().length - shared.length + marker)).trimEnd()
}

type Render = (...calls: ProbedCall[]) => string | null

const call = (index: number, given: Arguments): ProbedCall => ({ name: names[index]!, arguments: given })

/** The texts between `needles`, which come in this order: before the first, between them, after the last. */
function between(text: string, needles: readonly string[]): string[] | null {
  const parts: string[] = []
  let from = 0
  for (const [index, needle] of needles.entries()) {
    const isName = names.includes(needle)
    const next = needles.slice(index + 1).find((other) => other !== needle)
    const limit = next === undefined ? text.length : text.indexOf(next, from)
    // A name may be written twice before its arguments.
    const at = isName ? text.lastIndexOf(needle, limit < 0 ? text.length : limit) : text.indexOf(needle, from)
    if (at < from) return null
    parts.push(text.slice(from, at).replaceAll(isName ? needle : '\0', slot.name))
    from = at + needle.length
  }
  return [...parts, text.slice(from)]
}

/** One text for the same place of several calls: numbers and ids become slots. Null if the texts differ otherwise. */
function generalized(texts: readonly string[], calls = texts.map((_, index) => index)): string | null {
  const withIds = texts.map((text, index) => text.replaceAll(idOf(calls[index]!), slot.id))
  const numbered = (first: number, mark: string) =>
    withIds.map((text, index) => text.replace(new RegExp(`(?<!\\w)${calls[index]! + first}(?!\\w)`), mark))
  const candidates = [withIds, ...(texts.length > 1 ? [numbered(0, slot.index), numbered(1, slot.count)] : [])]
  return candidates.find((written) => written.every((text) => text === written[0]))?.[0] ?? null
}

function learnObject(render: Render): CallShape | null {
  const given = [{ key_a: values[0]! }, { key_a: values[1]! }, { key_a: values[2]! }]
  const one = render(call(0, given[0]!))
  if (one === null) return null
  const dialect = objectDialect(one)
  if (!dialect) return null
  const written = given.map((each) => writeValue(each, dialect))
  const alone = between(one, [names[0]!, written[0]!])
  if (!alone) return null
  const three = render(...given.map((each, index) => call(index, each)))
  const parts =
    three === null
      ? null
      : between(
          three,
          written.flatMap((text, index) => [names[index]!, text]),
        )
  const literals = objectLiterals(render, dialect)
  if (!literals) return null
  const form = { kind: 'object' as const, dialect: { ...dialect, literals } }
  if (!parts) {
    const [first, before, last] = alone.map((text) => text.replaceAll(idOf(0), slot.id)) as [string, string, string]
    return { first: first + slot.name, next: null, last, arguments: { ...form, before } }
  }
  const first = generalized([parts[0]!], [0])
  const before = generalized([parts[1]!, parts[3]!, parts[5]!])
  const next = generalized([parts[2]!, parts[4]!], [1, 2]) ?? generalized([parts[2]!, parts[4]!], [0, 1])
  const last = generalized([parts[6]!], [2])
  if (first === null || before === null || next === null || last === null) return null
  const slotted = (text: string) => numberedAsNext(text, next)
  return { first: slotted(first) + slot.name, next: next + slot.name, last, arguments: { ...form, before } }
}

/** The text of the first call with the number as a slot that stands for it in the following calls. */
function numberedAsNext(first: string, next: string): string {
  if (next.includes(slot.index)) return first.replace(/(?<!\w)0(?!\w)/, slot.index)
  return next.includes(slot.count) ? first.replace(/(?<!\w)1(?!\w)/, slot.count) : first
}

/** The dialect of an object with one argument, without its literals. */
function objectDialect(text: string): Dialect | null {
  if (text.includes(writeValue({ key_a: values[0] }, jsonDialect))) return jsonDialect
  const found = new RegExp(`\\{key_a:(\\S{1,20}?)${values[0]}(\\S{1,20}?)\\}`).exec(text)
  return found ? { ...jsonDialect, name: 'bare', quotes: [found[1]!, found[2]!] } : null
}

const literalTexts = { true: ['true', 'True'], false: ['false', 'False'], null: ['null', 'None', ''] }

function objectLiterals(render: Render, dialect: Dialect): Dialect['literals'] | null {
  const given = { key_a: [true, false, null, 40_961, { inner: 'Zqinner' }, []] }
  const text = render(call(0, given))
  if (text === null) return null
  for (const yes of literalTexts.true)
    for (const nothing of literalTexts.null) {
      const literals = { true: yes, false: yes === 'true' ? 'false' : 'False', null: nothing }
      if (text.includes(writeValue(given, { ...dialect, literals }))) return literals
    }
  return null
}

function learnNamed(render: Render): CallShape | null {
  const ask = (needles: string[], ...calls: ProbedCall[]) => {
    const text = render(...calls)
    return text === null ? null : between(text, needles)
  }
  const [name, other, third] = names as [string, string, string]
  const [a, b, c] = keys as [string, string, string]
  const [one, two, six] = values as [string, string, string]

  const empty = ask([name], call(0, {}))
  const single = ask([name, a, one], call(0, { [a]: one }))
  const triple = ask([name, a, one, b, two, c, six], call(0, { [a]: one, [b]: two, [c]: six }))
  if (!empty || !single || !triple) return null
  const quoted = argumentTexts(triple, ask)
  if (!quoted) return null
  const { strings, ...form } = quoted
  const withoutQuote = (text: string) => (text.startsWith(strings.close) ? text.slice(strings.close.length) : null)

  const emptyMany = ask([name, other, third], call(0, {}), call(1, {}), call(2, {}))
  const filledMany = ask(
    [name, a, one, other, a, two, third, a, six],
    call(0, { [a]: one }),
    call(1, { [a]: two }),
    call(2, { [a]: six }),
  )
  const endOfSingle = withoutQuote(single[3]!)
  if (endOfSingle === null) return null
  const rest = { kind: 'named' as const, ...form, strings }
  if (!emptyMany || !filledMany) {
    const last = commonSuffix(empty[1]!, endOfSingle)
    const cut = (text: string) => text.slice(0, text.length - last.length)
    const named = { ...rest, first_key: single[1]!, none: cut(empty[1]!), close: cut(endOfSingle) }
    const ids = (text: string) => text.replaceAll(idOf(0), slot.id)
    return {
      first: `${ids(single[0]!)}${slot.name}`,
      next: null,
      last: ids(last),
      arguments: { ...named, first_key: ids(named.first_key), none: ids(named.none), close: ids(named.close) },
    }
  }
  const first_key = generalized([filledMany[1]!, filledMany[4]!, filledMany[7]!])
  const filledNext = [filledMany[3]!, filledMany[6]!].map(withoutQuote)
  const filledLast = withoutQuote(filledMany[9]!)
  if (first_key === null || filledNext.includes(null) || filledLast === null) return null
  const afterFilled = generalized(filledNext as string[], [1, 2]) ?? generalized(filledNext as string[], [0, 1])
  const afterEmpty =
    generalized([emptyMany[1]!, emptyMany[2]!], [1, 2]) ?? generalized([emptyMany[1]!, emptyMany[2]!], [0, 1])
  if (afterFilled === null || afterEmpty === null) return null
  // A call's end differs with and without arguments: what both share belongs to what follows.
  const next = commonSuffix(afterFilled, afterEmpty)
  const close = afterFilled.slice(0, afterFilled.length - next.length)
  const none = afterEmpty.slice(0, afterEmpty.length - next.length)
  const last = filledLast.slice(close.length)
  if (close + last !== filledLast || none + last !== emptyMany[3]) return null
  return {
    first: numberedAsNext(filledMany[0]!, next) + slot.name,
    next: next + slot.name,
    last,
    arguments: { ...rest, first_key, none, close },
  }
}

type Ask = (needles: string[], ...calls: ProbedCall[]) => string[] | null

/** The texts around values of each type, and how strings and others are written. */
function argumentTexts(
  triple: readonly string[],
  ask: Ask,
): Omit<NamedArguments, 'kind' | 'none' | 'first_key' | 'close'> | null {
  const [, , toValue, toNext] = triple as [string, string, string, string]
  if (triple[4] !== toValue || triple[5] !== toNext) return null
  const [a, b, c] = keys as [string, string, string]
  const [one, , six] = values as [string, string, string]
  const [name] = names as [string]

  /** The text from the middle key to the next key, with this value between them. */
  const middle = (value: unknown) => ask([name, a, one, b, c, six], call(0, { [a]: one, [b]: value, [c]: six }))?.[4]
  const shown_number = middle(samples.number)?.split(String(samples.number))
  if (shown_number?.length !== 2 || !toNext.endsWith(shown_number[1]!)) return null
  const number = { before: shown_number[0]! }
  const next_key = shown_number[1]!
  const around = (value: unknown, written: readonly string[]) => {
    const text = middle(value)
    const found = written.find((each) => text?.endsWith(each + next_key))
    if (text === undefined || found === undefined) return null
    return { before: text.slice(0, text.length - found.length - next_key.length), written: found }
  }
  const close = toNext.slice(0, toNext.length - next_key.length)
  const isQuoted = close !== ''
  if (isQuoted && !toValue.startsWith(number.before)) return null
  const open = isQuoted ? toValue.slice(number.before.length) : ''
  const value = { string: isQuoted ? number.before : toValue, number: number.before } as NamedArguments['value']

  const object_dialect = nestedDialect(middle, { inner: [true, false, null, 40_961, 'Zqinner', {}] })
  const array_dialect = nestedDialect(middle, [true, false, null, 40_961, 'Zqinner', {}])
  const yes = around(true, ['true', 'True'])
  const no = around(false, ['false', 'False'])
  const nothing = around(null, ['null', 'None'])
  if (!object_dialect || !array_dialect || !yes || !no || !nothing) return null
  const nested = { object: object_dialect, array: array_dialect }
  const object = around(samples.object, [writeValue(samples.object, nested.object)])
  const array = around(samples.array, [writeValue(samples.array, nested.array)])
  if (!object || !array || no.before !== yes.before) return null
  const found = { boolean: yes, null: nothing, object, array }
  for (const type of ['boolean', 'null', 'object', 'array'] as const) {
    value[type] = found[type].before
  }
  const nasty = 'Zq"a\'b\\c\nd\tZq'
  const text = middle(nasty)
  const start = value.string.length + open.length
  const shown = text?.slice(start, text.length - close.length - next_key.length)
  if (text === undefined || shown === undefined || !text.startsWith(value.string + open)) return null
  const escapes =
    shown === nasty
      ? 'none'
      : shown === JSON.stringify(nasty).slice(1, -1)
        ? 'json'
        : isQuoted && unescaped(shown) === nasty
          ? 'python'
          : null
  if (escapes === null) return null
  const literals = { true: yes.written, false: no.written, null: nothing.written }
  return { value, next_key, strings: { open, close, escapes }, literals, nested }
}

const python: Dialect = { name: 'python', quotes: ["'", "'"], literals: { true: 'True', false: 'False', null: 'None' } }

function nestedDialect(middle: (value: unknown) => string | undefined, given: unknown): Dialect | null {
  const text = middle(given)
  if (text === undefined) return null
  return [jsonDialect, python].find((dialect) => text.includes(writeValue(given, dialect))) ?? null
}

/** Whether calls that the template renders are read as what they are. */
function isTrue(shape: CallShape, render: Render): boolean {
  if (triggerOf(shape) === '') return false
  if (shape.arguments.kind === 'named') {
    const { value, strings } = shape.arguments
    if (valueTypes.some((type) => value[type] === '')) return false
    if (strings.open === '' && (endOfValue(shape) === '' || strings.escapes !== 'none')) return false
  }
  // Without an end, an answer with arguments of its own form would have none.
  if (shape.arguments.kind === 'named' && endOfCall(shape) === '') return false
  const given: Arguments[] = [
    { key_a: 'It’s "so"\nand <b>so</b>', key_b: 'Zq' },
    { key_a: { inner: [1, 2.5, 'Zq', { deep: null }], other: {} }, key_b: [true, false], key_c: 'Zq' },
    {},
    { key_a: -3, key_b: true, key_c: null },
  ]
  const checks = given.map((each) => [call(0, each)])
  if (shape.next !== null) checks.push([call(0, given[0]!), call(1, {}), call(2, given[1]!)])
  return checks.every((calls) => {
    const text = render(...calls)
    const schemas = new Map(names.map((name) => [name, {}]))
    return text !== null && sameCalls(readCalls(shape, schemas, text), calls)
  })
}

function sameCalls(read: readonly { name: string; arguments: string }[], calls: readonly ProbedCall[]): boolean {
  const plain = (value: unknown): unknown =>
    typeof value === 'object' && value !== null && !Array.isArray(value)
      ? Object.fromEntries(
          Object.entries(value)
            .sort(([a], [b]) => (a < b ? -1 : 1))
            .map(([key, item]) => [key, plain(item)]),
        )
      : Array.isArray(value)
        ? value.map(plain)
        : value
  try {
    return (
      read.length === calls.length &&
      read.every(
        ({ name, arguments: text }, index) =>
          name === calls[index]!.name &&
          JSON.stringify(plain(JSON.parse(text))) === JSON.stringify(plain(calls[index]!.arguments)),
      )
    )
  } catch {
    return false
  }
}
