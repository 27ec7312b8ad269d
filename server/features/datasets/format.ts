// What an uploaded file tells while it is received, and why it is refused: its format, from the `format` field, its
// first bytes and the ending of its name; how many rows it has, and whether it is UTF-8.
import { isUtf8 } from 'node:buffer'
import type { Columns, DatasetFormat } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import { rowMaker } from './reader/columns.ts'

/** How many of a file's first bytes are examined. */
export const headBytes = 65_536

interface Detected {
  /** For messages, after "looks like". */
  like: string
  formats: readonly DatasetFormat[]
}

const magic: [string, Detected][] = [
  ['PAR1', { like: 'parquet', formats: ['parquet'] }],
  ['PARE', { like: 'encrypted parquet', formats: ['parquet'] }],
  ['PK\x03\x04', { like: 'a zip archive', formats: ['huggingface'] }],
  ['PK\x05\x06', { like: 'an empty zip archive', formats: ['huggingface'] }],
  ['\x1f\x8b', { like: 'a gzip file; unpack it first', formats: [] }],
  ['\x28\xb5\x2f\xfd', { like: 'a zstd file; unpack it first', formats: [] }],
]

/** The format of the first bytes if they are unambiguous; undefined for other text. */
function detect(head: Buffer, columns?: Columns): Detected | undefined {
  const start = head.toString('latin1', 0, 4)
  const binary = magic.find(([bytes]) => start.startsWith(bytes))?.[1]
  if (binary) return binary
  const text = head
    .toString('utf8')
    .replace(/^\uFEFF/, '')
    .trimStart()
  // A `huggingface` upload may be a JSON object that names a dataset of the hub.
  if (/^(\[\s*)?\{\s*["}]/.test(text)) return { like: 'JSON', formats: ['jsonl', 'huggingface'] }
  const names = text
    .split(/\r?\n|\r/, 1)[0]!
    .split(',')
    .map((name) => name.trim().replace(/^"(.*)"$/, '$1'))
  const isTable = columns ? Object.values(columns).every((name) => names.includes(name)) : rowMaker(names)
  return isTable ? { like: 'CSV', formats: ['csv'] } : undefined
}

/** Whether the text is a JSON list of rows, and not one row a line. */
export const isList = (head: Buffer): boolean => /^\uFEFF?[ \t\r\n]*\[/.test(head.toString('utf8', 0, 4096))

const byEnding: Record<string, DatasetFormat> = {
  jsonl: 'jsonl',
  ndjson: 'jsonl',
  csv: 'csv',
  parquet: 'parquet',
  zip: 'huggingface',
}

/**
 * The given format, or the one detected from the first bytes and the file name. Throws file_not_readable if they
 * disagree.
 */
export function formatOf(
  requested: DatasetFormat | undefined,
  filename: string,
  head: Buffer,
  columns?: Columns,
): DatasetFormat {
  const ending = /\.(\w+)$/.exec(filename)?.[1]?.toLowerCase() ?? ''
  const named = Object.hasOwn(byEnding, ending) ? byEnding[ending] : undefined
  const detected = detect(head, columns)
  // Magic bytes of a binary format override the file name.
  const format =
    requested ??
    (detected && magic.some(([, entry]) => entry === detected) ? detected.formats[0] : undefined) ??
    named ??
    detected?.formats[0] ??
    'jsonl'
  if (!detected || detected.formats.includes(format)) return format
  const claim = requested
    ? `was sent with format=${requested}`
    : named
      ? `is named .${ending}`
      : 'has no format that is known'
  const remedy = detected.formats[0] ? ` Send it with format=${detected.formats[0]}, or the right file.` : ''
  throw new ApiError('file_not_readable', `The file ${claim}, but looks like ${detected.like}.${remedy}`, {
    details: { looks_like: detected.like },
  })
}

/** Counts the rows of a JSONL file and checks that it is UTF-8, during the upload. The rows are parsed later. */
export function createLineCounter() {
  let rows = 0
  let line = 1
  // True once the current line has a non-blank byte.
  let hasContent = false
  let tail: Buffer = Buffer.alloc(0)
  let not_utf8_line: number | undefined

  function isBlank(piece: Buffer): boolean {
    for (const byte of piece)
      if (byte !== 32 && byte !== 9 && byte !== 13 && byte !== 0xef && byte !== 0xbb && byte !== 0xbf) return false
    return true
  }

  /** The number of the first line that is not UTF-8. */
  function firstInvalidLine(bytes: Buffer, first: number): number {
    let at = first
    for (let from = 0; ; ) {
      const end = bytes.indexOf(10, from)
      if (!isUtf8(bytes.subarray(from, end === -1 ? bytes.length : end))) return at
      if (end === -1) return at
      from = end + 1
      at++
    }
  }

  function checkUtf8(chunk: Buffer, firstLine: number) {
    if (not_utf8_line !== undefined) return
    const bytes = tail.length > 0 ? Buffer.concat([tail, chunk]) : chunk
    const whole = bytes.length - incompleteTail(bytes)
    if (!isUtf8(bytes.subarray(0, whole))) not_utf8_line = firstInvalidLine(bytes.subarray(0, whole), firstLine)
    tail = Buffer.from(bytes.subarray(whole))
  }

  return {
    add(chunk: Buffer): void {
      checkUtf8(chunk, line)
      let from = 0
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
        if (hasContent || !isBlank(chunk.subarray(from, at))) rows++
        hasContent = false
        line++
        from = at + 1
      }
      if (!hasContent && from < chunk.length) hasContent = !isBlank(chunk.subarray(from))
    },
    end(): { rows: number; not_utf8_line?: number } {
      if (hasContent) rows++
      if (tail.length > 0) not_utf8_line ??= line
      return { rows, ...(not_utf8_line !== undefined && { not_utf8_line }) }
    },
  }
}

/** How many bytes at the end belong to a character that continues in the next chunk. */
function incompleteTail(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back]!
    if ((byte & 0b1100_0000) === 0b1000_0000) continue
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1
    return length > back ? back : 0
  }
  return 0
}

/** Throws for files that are not lines of text. Files with invalid rows are accepted: `validate` reports the rows. */
export function refuseUnreadable(
  format: DatasetFormat,
  size_bytes: number,
  counted: { rows: number; not_utf8_line?: number },
  max_rows: number,
): void {
  if (size_bytes === 0) throw new ApiError('file_empty', 'The file is empty.')
  if (format !== 'jsonl') return
  if (counted.not_utf8_line)
    throw new ApiError(
      'file_not_utf8',
      `The file is not UTF-8 text (first seen in line ${counted.not_utf8_line}). Save it as UTF-8 and upload it again.`,
      { details: { line: counted.not_utf8_line } },
    )
  if (counted.rows === 0) throw new ApiError('file_empty', 'The file has no rows, only blank lines.')
  if (counted.rows > max_rows)
    throw new ApiError('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`, {
      details: { max_rows },
    })
}
