// Detects the format of an uploaded file from the `format` field, its first bytes, and its file name extension.
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
  given: DatasetFormat | undefined,
  filename: string,
  head: Buffer,
  columns?: Columns,
): DatasetFormat {
  const ending = /\.(\w+)$/.exec(filename)?.[1]?.toLowerCase() ?? ''
  const named = Object.hasOwn(byEnding, ending) ? byEnding[ending] : undefined
  const detected = detect(head, columns)
  // Magic bytes of a binary format override the file name.
  const found =
    given ??
    (detected && magic.some(([, each]) => each === detected) ? detected.formats[0] : undefined) ??
    named ??
    detected?.formats[0] ??
    'jsonl'
  if (!detected || detected.formats.includes(found)) return found
  const claim = given ? `was sent with format=${given}` : named ? `is named .${ending}` : 'has no format that is known'
  const remedy = detected.formats[0] ? ` Send it with format=${detected.formats[0]}, or the right file.` : ''
  throw new ApiError('file_not_readable', `The file ${claim}, but looks like ${detected.like}.${remedy}`, {
    details: { looks_like: detected.like },
  })
}
