// The rows of tables: the columns that are read, and the values in their cells.
import type { Columns } from '../../../../contract/datasets.ts'
import { pairedColumns, renamed, type Table, type UploadedRow, uploadedRow } from '../canonical.ts'
import type { Problem } from '../row-problem.ts'
import { pictureColumns, placePictures } from './picture-columns.ts'

/** The columns of the supported layouts; a table's others are ignored. */
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

type Fields = Record<string, unknown>

/** How the rows of a table are read: values may be JSON in text, and columns of other names are ignored. */
const table: Table = { columns: knownColumns, valuesOf }

type ToRow = (record: Fields) => UploadedRow | Problem

/**
 * The conversion of a table's rows; undefined for an unsupported layout. Pictures are placed in its messages, and not
 * yet embedded (`embedPictures`).
 */
export function rowMaker(names: string[], columns?: Columns): ToRow | undefined {
  const has = (name: string) => (columns ? name in columns : names.includes(name))
  const supported =
    (has('chosen') && has('rejected')) || has('messages') || pairedColumns.some((pair) => pair.every(has))
  if (!supported) return undefined
  return (record) => {
    const uploaded = uploadedRow(record, { table, columns })
    if (Array.isArray(uploaded) || !pictureColumns.some((name) => name in renamed(record, columns))) return uploaded
    const row = placePictures(uploaded.row, renamed(record, columns))
    return Array.isArray(row) ? row : { ...uploaded, row }
  }
}

/** The error for a table without columns of known names, or of those that the uploader named. */
export const columnsUnknown = (columns: Columns | undefined, names: string[], sentence: string): Unreadable =>
  new Unreadable(
    'file_not_readable',
    columns ? `'columns' must name ${columnsNeeded}.` : `${sentence} ${mapHint}`,
    names,
  )

export const columnsNeeded =
  "a column 'messages', or 'prompt' and 'completion' (and 'system'), or 'instruction' and 'output' (and 'input'), " +
  "or 'question' and 'answer', or 'prompt', 'chosen' and 'rejected', or 'prompt', 'completion' and 'label'"

/** What to do about a file whose columns have other names. */
const mapHint = "If its columns have other names, say which with 'columns' at the upload."

/** The columns that the uploader named and the file does not have, as a sentence. */
export function missingColumns(columns: Columns | undefined, names: string[]): string | undefined {
  const missing = Object.values(columns ?? {}).filter((name) => !names.includes(name))
  if (missing.length === 0) return undefined
  return `'columns' names ${listed(missing)}, which the file does not have. It has ${listed(names)}.`
}

/** The first name that two columns have, as a sentence. */
export function repeatedColumn(names: string[]): string | undefined {
  const repeated = names.find((name, index) => name !== '' && names.indexOf(name) !== index)
  return repeated === undefined
    ? undefined
    : `The file has two columns named '${repeated.slice(0, 40)}'. Rename one of them, or leave it out.`
}

export const listed = (names: string[]) =>
  names
    .slice(0, 20)
    .map((name) => `'${name.slice(0, 40)}'`)
    .join(', ')

/** The cells of a table's row as values; empty and null ones are absent. */
function valuesOf(record: Fields): Fields | Problem {
  const row: Fields = {}
  for (const [name, cell] of Object.entries(record)) {
    if (!knownColumns.includes(name) || pictureColumns.includes(name) || cell == null) continue
    if (name === 'messages' || name === 'tools') {
      const value = parsed(cell)
      if (value instanceof SyntaxError)
        return ['invalid_json', `: the column '${name}' is not valid JSON: ${value.message.slice(0, 200)}`]
      if (value !== undefined) row[name] = value
    } else if (name === 'label') row[name] = toBoolean(cell)
    else if (typeof cell === 'bigint') row[name] = String(cell)
    else if (!['system', 'input'].includes(name) || cell !== '') row[name] = textOrMessages(cell)
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
  return ['false', '0'].includes(name) ? false : toNumber(value)
}

function parsed(value: unknown): unknown {
  if (value === '') return undefined
  if (typeof value !== 'string') return withoutNulls(value)
  try {
    return JSON.parse(value) ?? undefined
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

/**
 * A row of a file with its line, or the problem with it. `bytes`: as it is compared with others, if not by its JSON.
 */
export type ReadRow = { line: number; row: ReturnType<ToRow>; bytes?: Buffer } | { line: number; problem: Problem }

/** The message of a library error, to end a sentence with. Empty for errors of its code, such as a TypeError. */
export function errorDetail(error: unknown): string {
  const internal =
    !(error instanceof Error) || error.name !== 'Error' || /\b(undefined|null|not a function)\b/.test(error.message)
  return internal ? '' : `: ${error.message.slice(0, 200).replace(/\.$/, '')}`
}

/** The file does not match its format or exceeds a limit. The whole file is rejected. */
export class Unreadable extends Error {
  readonly code: 'file_not_readable' | 'file_too_large' | 'file_not_utf8' | 'file_empty'
  /** The columns of a file whose columns could not be recognized. */
  readonly columns: string[] | undefined
  constructor(code: Unreadable['code'], message: string, columns?: string[]) {
    super(message)
    this.code = code
    this.columns = columns
  }
}
