import { open } from 'node:fs/promises'
import { type FileMetaData, parquetMetadataAsync, parquetReadObjects, parquetSchema } from 'hyparquet'
import { compressors } from 'hyparquet-compressors'
import type { Columns } from '../../../../contract/datasets.ts'
import {
  columnsNeeded,
  columnsUnknown,
  errorDetail,
  knownColumns,
  listed,
  missingColumns,
  type ReadRow,
  repeatedColumn,
  rowMaker,
  Unreadable,
} from './columns.ts'
import { pictureColumns } from './picture-columns.ts'

/** The most uncompressed bytes of a row group, which is read whole. */
const maxGroupBytes = 512_000_000
/** The same of a file with pictures: measured, these take five times their bytes of the reader's memory. */
const maxPictureGroupBytes = 150_000_000

/** Reads a parquet file, one row group at a time. Checks the claims of its footer against the limits first. */
export async function* readParquet(
  path: string,
  max_rows: number,
  max_bytes: number,
  mapped?: Columns,
): AsyncGenerator<ReadRow> {
  const file = await openAsBuffer(path)
  try {
    const metadata = await readFooter(file)
    const columns = parquetSchema(metadata).children.map((child) => child.element.name)
    const wrong = repeatedColumn(columns) ?? missingColumns(mapped, columns)
    if (wrong) throw new Unreadable('file_not_readable', wrong, columns)
    const makeRow = rowMaker(columns, mapped)
    if (!makeRow)
      throw columnsUnknown(mapped, columns, `The parquet file must have ${columnsNeeded}; it has ${listed(columns)}.`)
    const selected = mapped ? Object.values(mapped) : columns.filter((name) => knownColumns.includes(name))
    const pictured = pictureColumns.map((name) => (mapped ? mapped[name as 'image'] : name))
    const hasPictures = selected.some((name) => pictured.includes(name))
    requireWithinLimits(metadata, max_rows, max_bytes, hasPictures ? maxPictureGroupBytes : maxGroupBytes)
    let line = 0
    for (const group of metadata.row_groups) {
      const rows = Number(group.num_rows)
      const objects = await parquetReadObjects({
        file,
        metadata,
        columns: selected,
        rowStart: line,
        rowEnd: line + rows,
        compressors,
        // Bytes that no type marks as text are text all the same, unless some are pictures.
        utf8: !hasPictures,
      }).catch((error) => {
        throw new Unreadable('file_not_readable', `The parquet file is damaged${errorDetail(error)}.`)
      })
      if (objects.length !== rows)
        throw new Unreadable('file_not_readable', 'The parquet file is damaged: it has fewer rows than it says.')
      for (const object of objects)
        yield { line: ++line, row: makeRow(hasPictures ? withTexts(object, pictured) : object) }
    }
  } finally {
    await file.close()
  }
}

/** The record with text for bytes, except in the columns of pictures. */
const withTexts = (record: Record<string, unknown>, pictured: (string | undefined)[]) =>
  Object.fromEntries(
    Object.entries(record).map(([name, value]) => [name, pictured.includes(name) ? value : toText(value)]),
  )

function toText(value: unknown): unknown {
  if (value instanceof Uint8Array) return new TextDecoder().decode(value)
  if (Array.isArray(value)) return value.map(toText)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, toText(part)]))
}

const magicBytes = 4
/** Two magic numbers and the footer length. */
const minFileBytes = 12

async function readFooter(file: Awaited<ReturnType<typeof openAsBuffer>>): Promise<FileMetaData> {
  const magicAt = async (at: number) => Buffer.from(await file.slice(at, at + magicBytes)).toString('latin1')
  const size = file.byteLength
  const [start, end] = size < minFileBytes ? ['', ''] : [await magicAt(0), await magicAt(size - magicBytes)]
  if (start === 'PARE' || end === 'PARE')
    throw new Unreadable('file_not_readable', 'The parquet file is encrypted. Write it without encryption.')
  if (start !== 'PAR1')
    throw new Unreadable('file_not_readable', 'The file is no parquet file: it does not begin as one does.')
  if (end !== 'PAR1')
    throw new Unreadable(
      'file_not_readable',
      'The parquet file is cut off: it does not end as one does. Write it once more, closing it, and upload all of it.',
    )
  try {
    return await parquetMetadataAsync(file)
  } catch (error) {
    throw new Unreadable('file_not_readable', `The footer of the parquet file is damaged${errorDetail(error)}.`)
  }
}

function requireWithinLimits(
  metadata: FileMetaData,
  max_rows: number,
  max_bytes: number,
  max_group_bytes: number,
): void {
  const groups = metadata.row_groups.map((group) => ({
    rows: group.num_rows,
    bytes: group.columns.reduce((sum, { meta_data }) => sum + (meta_data?.total_uncompressed_size ?? 0n), 0n),
  }))
  const rows = groups.reduce((sum, group) => sum + group.rows, 0n)
  const bytes = groups.reduce((sum, group) => sum + group.bytes, 0n)
  if (metadata.num_rows > BigInt(max_rows) || rows > BigInt(max_rows))
    throw new Unreadable(
      'file_too_large',
      `The parquet file says that it has ${metadata.num_rows} rows; this service takes ${max_rows} at most.`,
    )
  if (rows !== metadata.num_rows || groups.some((group) => group.rows < 0n || group.bytes < 0n))
    throw new Unreadable(
      'file_not_readable',
      'The parquet file is damaged: its groups do not have the rows that it says.',
    )
  if (bytes > BigInt(max_bytes))
    throw new Unreadable(
      'file_too_large',
      `The parquet file says that it holds ${bytes / 1_000_000n} MB uncompressed, more than this service takes.`,
    )
  const largest = groups.toSorted((a, b) => Number(b.bytes - a.bytes))[0]
  if (largest && largest.bytes > BigInt(max_group_bytes))
    throw new Unreadable(
      'file_too_large',
      `The parquet file has a group of ${largest.rows} rows with more than ${max_group_bytes / 1e6} MB, which is ` +
        'read at once. Write it with smaller row groups (`row_group_size` of pyarrow, `batch_size` of datasets).',
    )
}

/** hyparquet's AsyncBuffer over a file. A slice outside the file throws, instead of allocating a huge buffer. */
async function openAsBuffer(path: string) {
  const handle = await open(path, 'r')
  const { size } = await handle.stat()
  return {
    byteLength: size,
    async slice(start: number, end = size): Promise<ArrayBuffer> {
      if (!(start >= 0 && end <= size && start <= end)) throw new Error('it points outside of itself')
      const bytes = new ArrayBuffer(end - start)
      await handle.read(new Uint8Array(bytes), 0, end - start, start)
      return bytes
    },
    close: () => handle.close(),
  }
}
