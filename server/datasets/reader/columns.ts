import type { Problem } from '../row-message.ts'
import { pictureColumns, placePictures } from './picture-columns.ts'

/** The columns of the supported layouts; others are ignored. */
export const knownColumns = [
  'messages',
  'tools',
  'system',
  'prompt',
  'completion',
  'instruction',
  'input',
  'output',
  'question',
  'answer',
  'chosen',
  'rejected',
  'label',
  ...pictureColumns,
]

export type ToRow = (record: Record<string, unknown>) => Record<string, unknown> | Problem

/**
 * The conversion from a table row with these columns to a conversation; undefined for an unsupported layout. Pictures are
 * placed in its messages, and not yet embedded (`embedPictures`).
 */
export function rowMaker(columns: string[]): ToRow | undefined {
  const toRow = layoutOf(columns)
  if (!toRow || !columns.some((name) => pictureColumns.includes(name))) return toRow
  return (record) => {
    const row = toRow(record)
    return Array.isArray(row) ? row : placePictures(row, record)
  }
}

function layoutOf(columns: string[]): ToRow | undefined {
  const has = (name: string) => columns.includes(name)
  if (has('chosen') && has('rejected')) return pairColumns
  if (has('label') && has('prompt') && has('completion')) return ratedColumns
  if (has('messages')) return messagesColumn
  if (has('prompt') && has('completion')) return promptColumns
  if (has('instruction') && has('output')) return instructionColumns
  if (has('question') && has('answer')) return questionColumns
  return undefined
}

export const columnsNeeded =
  "a column 'messages', or 'prompt' and 'completion' (and 'system'), or 'instruction' and 'output' (and 'input'), " +
  "or 'question' and 'answer', or 'prompt', 'chosen' and 'rejected', or 'prompt', 'completion' and 'label'"

/** Both columns may have values or their JSON. */
function messagesColumn(record: Record<string, unknown>): ReturnType<ToRow> {
  const row = jsonColumns(record)
  return Array.isArray(row) ? row : { messages: undefined, ...row }
}

function jsonColumns(record: Record<string, unknown>): ReturnType<ToRow> {
  const row: Record<string, unknown> = {}
  for (const name of ['messages', 'tools']) {
    const value = parsed(record[name])
    if (value instanceof SyntaxError)
      return ['invalid_json', `: the column '${name}' is not valid JSON: ${value.message.slice(0, 200)}`]
    if (value !== undefined) row[name] = value
  }
  return row
}

const pairColumns: ToRow = (record) => preferenceColumns(record, ['chosen', 'rejected'])

function ratedColumns(record: Record<string, unknown>): ReturnType<ToRow> {
  const row = preferenceColumns(record, ['completion'])
  return Array.isArray(row) ? row : { ...row, label: toBoolean(record.label) }
}

/** A prompt and answers as texts or messages. */
function preferenceColumns(record: Record<string, unknown>, answers: string[]): ReturnType<ToRow> {
  const row = jsonColumns(record)
  if (Array.isArray(row)) return row
  if (record.system) row.system = text(record.system)
  for (const name of ['prompt', ...answers]) {
    const value = record[name]
    if (value !== null && value !== undefined) row[name] = textOrMessages(value)
  }
  return row
}

/** A cell with a JSON list of objects is messages; any other text is a text. */
function textOrMessages(value: unknown): unknown {
  if (typeof value !== 'string') return withoutNulls(value)
  if (!value.startsWith('[{')) return value
  const read = parsed(value)
  return Array.isArray(read) ? read : value
}

/** Tables have true and false as values, as text, or as 1 and 0. Others are left, to be reported. */
function toBoolean(value: unknown): unknown {
  const name = String(value).toLowerCase()
  if (['true', '1'].includes(name)) return true
  return ['false', '0'].includes(name) ? false : value
}

function parsed(value: unknown): unknown {
  if (value === null || value === undefined || value === '') return undefined
  if (typeof value !== 'string') return withoutNulls(value)
  try {
    return JSON.parse(value)
  } catch (error) {
    return error
  }
}

// In a list of structs each one has all fields; missing ones are null.
function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return toNumber(value)
  return Object.fromEntries(
    Object.entries(value).flatMap(([name, part]) =>
      part === null || part === undefined ? [] : [[name, withoutNulls(part)]],
    ),
  )
}

// Table readers return integers as bigint.
const toNumber = (value: unknown) => (typeof value === 'bigint' ? Number(value) : value)

function promptColumns({ system, prompt, completion }: Record<string, unknown>) {
  return conversation(text(system), text(prompt), text(completion), 'completion')
}

function questionColumns({ system, question, answer }: Record<string, unknown>) {
  return conversation(text(system), text(question), text(answer), 'answer')
}

function instructionColumns({ system, instruction, input, output }: Record<string, unknown>) {
  const context = text(input)
  return conversation(
    text(system),
    context.trim() ? `${text(instruction)}\n\n${context}` : text(instruction),
    text(output),
    'output',
  )
}

const text = (value: unknown) => (value === null || value === undefined ? '' : String(value))

/** `column` is the column of the answer, for the message. */
function conversation(system: string, question: string, answer: string, column: string): ReturnType<ToRow> {
  if (answer.trim() === '') return ['answer_empty', `: the column '${column}' is empty; an answer to learn needs text.`]
  const messages = [
    { role: 'user', content: question },
    { role: 'assistant', content: answer },
  ]
  return { messages: system.trim() ? [{ role: 'system', content: system }, ...messages] : messages }
}

/** A row of a table with its line: a conversation, or the problem with it. */
export type ReadRow = { line: number; row: ReturnType<ToRow> } | { line: number; problem: Problem }

/** The message of a library error, to end a sentence with. Empty for errors of its code, such as a TypeError. */
export function errorDetail(error: unknown): string {
  const internal =
    !(error instanceof Error) || error.name !== 'Error' || /\b(undefined|null|not a function)\b/.test(error.message)
  return internal ? '' : `: ${error.message.slice(0, 200).replace(/\.$/, '')}`
}

/** The file does not match its format or exceeds a limit. The whole file is rejected. */
export class Unreadable extends Error {
  readonly code: 'file_not_readable' | 'file_too_large' | 'file_not_utf8' | 'file_empty'
  constructor(code: Unreadable['code'], message: string) {
    super(message)
    this.code = code
  }
}
