// How a model writes calls of tools, as its chat template shows it: one description, from which come the grammar of an
// enforced call, the parser of answers and the text that starts a call.

/** Slots in the texts of a shape, noncharacters: the tool's name, the call's number from 0 or from 1, its id. */
export const slot = { name: '\uFDD0', index: '\uFDD1', count: '\uFDD2', id: '\uFDD3' } as const

export type ValueType = 'string' | 'number' | 'boolean' | 'null' | 'object' | 'array'
export const valueTypes: readonly ValueType[] = ['string', 'number', 'boolean', 'null', 'object', 'array']

/** How values are written: as JSON, as Python's literals, or as JSON with bare keys and its own quotes. */
export interface Dialect {
  name: 'json' | 'python' | 'bare'
  /** Around strings of the bare dialect. */
  quotes: readonly [open: string, close: string]
  literals: { true: string; false: string; null: string }
}

export const jsonDialect: Dialect = {
  name: 'json',
  quotes: ['"', '"'],
  literals: { true: 'true', false: 'false', null: 'null' },
}

/** All arguments as one object. */
interface ObjectArguments {
  kind: 'object'
  /** From the name to the object. */
  before: string
  dialect: Dialect
}

/** Each argument by itself. */
export interface NamedArguments {
  kind: 'named'
  /** From the name to the call's end, where there are no arguments. */
  none: string
  /** From the name to the first key. */
  first_key: string
  /** From a key to its value, without a string's quotes. */
  value: Record<ValueType, string>
  /** From a value to the next key. */
  next_key: string
  /** From the last value to the call's end. */
  close: string
  /** Quotes of strings (empty: none), and what is escaped in them. */
  strings: { open: string; close: string; escapes: 'none' | 'json' | 'python' }
  literals: Dialect['literals']
  nested: { object: Dialect; array: Dialect }
}

/** The text from the start of a call to the end of its name, and from there to the arguments. */
export interface Head {
  first: string
  before: string
}

export interface CallShape {
  /** From the start of the calls to the end of the first name: ends with the slot of the name. */
  first: string
  /** From a call's end to the end of the next name; null if an answer has one call. */
  next: string | null
  /** From the last call's end to the end of the answer, without blanks at its end. */
  last: string
  arguments: ObjectArguments | NamedArguments
  /** Other ways to begin an answer's only call, which models were trained on beside the template's. */
  other_heads?: readonly Head[]
}

/** A text of a shape with the tool's name in its place. */
export const withName = (text: string, name: string): string => text.replaceAll(slot.name, name)

/** The text that tells a call from other text: a marker, or all before the name. */
export function triggerOf({ first }: CallShape): string {
  const head = first.slice(0, first.search(/[\uFDD0-\uFDD3]/))
  const marker = /^(?:<[^<>\n]+>|\[[A-Z][A-Z_]*\]|\][^\n]*?<\w+>)/.exec(head)?.[0]
  return marker ?? head.trimEnd()
}

/** Whether the trigger may be ordinary text, so that only the start of an answer can be a call. */
export function isOnlyAtStart(shape: CallShape): boolean {
  const trigger = triggerOf(shape)
  return trigger.length < 3 || !/[<[]|\W{3}/.test(trigger[0]! + trigger)
}

/** What ends a call, and what of `next` follows it. The texts after it say whether there is another call. */
export function endOfCall({ next, last, arguments: form }: CallShape, hasArguments = true): string {
  const before = form.kind === 'object' ? '' : hasArguments ? form.close : form.none
  const ends = [before + last, ...(next === null ? [] : [before + next])]
  return withoutSlots(ends.reduce(commonPrefix))
}

/** What follows every value of a named argument, whether another key or the call's end comes. */
export function endOfValue(shape: CallShape): string {
  const form = shape.arguments as NamedArguments
  return withoutSlots(commonPrefix(form.next_key, endOfCall(shape)))
}

export function commonPrefix(a: string, b: string): string {
  let end = 0
  while (end < a.length && a[end] === b[end]) end++
  return a.slice(0, end)
}

export function commonSuffix(a: string, b: string): string {
  let length = 0
  while (length < Math.min(a.length, b.length) && a.at(-1 - length) === b.at(-1 - length)) length++
  return length === 0 ? '' : a.slice(-length)
}

function withoutSlots(text: string): string {
  const at = text.search(/[\uFDD0-\uFDD3]/)
  return at < 0 ? text : text.slice(0, at)
}
