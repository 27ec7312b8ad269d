// Which format an uploaded file is of: what its sender says, what its first bytes are, what its name ends in.
import type { DatasetFormat } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import { rowMaker } from './reader/columns.ts'

/** How many of a file's first bytes are looked at. */
export const headBytes = 65_536

interface Look {
  /** In words, after "looks like". */
  like: string
  formats: readonly DatasetFormat[]
}

const magic: [string, Look][] = [
  ['PAR1', { like: 'parquet', formats: ['parquet'] }],
  ['PARE', { like: 'encrypted parquet', formats: ['parquet'] }],
  ['PK\x03\x04', { like: 'a zip archive', formats: ['huggingface'] }],
  ['PK\x05\x06', { like: 'an empty zip archive', formats: ['huggingface'] }],
  ['\x1f\x8b', { like: 'a gzip file; unpack it first', formats: [] }],
  ['\x28\xb5\x2f\xfd', { like: 'a zstd file; unpack it first', formats: [] }],
]

/** What its first bytes are without doubt; undefined where they may be anything, such as text with wrong rows. */
function lookAt(head: Buffer): Look | undefined {
  const begins = head.toString('latin1', 0, 4)
  const binary = magic.find(([bytes]) => begins.startsWith(bytes))?.[1]
  if (binary) return binary
  const text = head
    .toString('utf8')
    .replace(/^\uFEFF/, '')
    .trimStart()
  // An upload of `huggingface` may name a dataset of the hub, as a JSON object.
  if (/^\{\s*["}]/.test(text)) return { like: 'JSON', formats: ['jsonl', 'huggingface'] }
  const columns = text
    .split(/\r?\n|\r/, 1)[0]!
    .split(',')
    .map((name) => name.trim().replace(/^"(.*)"$/, '$1'))
  return rowMaker(columns) ? { like: 'CSV', formats: ['csv'] } : undefined
}

const byEnding: Record<string, DatasetFormat> = {
  jsonl: 'jsonl',
  ndjson: 'jsonl',
  csv: 'csv',
  parquet: 'parquet',
  zip: 'huggingface',
}

/**
 * The format that was given, or the one that bytes and name say. Throws file_not_readable where what was given, or the
 * name, and the first bytes disagree.
 */
export function formatOf(given: DatasetFormat | undefined, filename: string, head: Buffer): DatasetFormat {
  const ending = /\.(\w+)$/.exec(filename)?.[1]?.toLowerCase() ?? ''
  const named = Object.hasOwn(byEnding, ending) ? byEnding[ending] : undefined
  const look = lookAt(head)
  // Bytes that no text begins with are what they are, whatever the file is called.
  const found =
    given ??
    (look && magic.some(([, each]) => each === look) ? look.formats[0] : undefined) ??
    named ??
    look?.formats[0] ??
    'jsonl'
  if (!look || look.formats.includes(found)) return found
  const said = given ? `was sent with format=${given}` : named ? `is named .${ending}` : 'has no format that is known'
  const remedy = look.formats[0] ? ` Send it with format=${look.formats[0]}, or the right file.` : ''
  throw new ApiError('file_not_readable', `The file ${said}, but looks like ${look.like}.${remedy}`, {
    details: { looks_like: look.like },
  })
}
