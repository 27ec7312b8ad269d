import { RecordBatchReader, StructRow, Vector } from 'apache-arrow'
import yauzl from 'yauzl'
import type { Columns } from '../../../../contract/datasets.ts'
import {
  columnsNeeded,
  columnsUnknown,
  errorDetail,
  listed,
  missingColumns,
  type ReadRow,
  rowMaker,
  Unreadable,
} from './columns.ts'

const maxEntries = 10_000
/** Zip compression methods: stored and deflate. */
const readableMethods = [0, 8]

/**
 * Reads a zip of a folder written by `datasets.Dataset.save_to_disk` (Arrow streams). With several splits, `train` is
 * read. Nothing is unpacked to disk, so path traversal is impossible.
 */
export async function* readArrowZip(path: string, max_bytes: number, columns?: Columns): AsyncGenerator<ReadRow> {
  const zip = await yauzl
    .openPromise(path, { autoClose: false, validateEntrySizes: true, strictFileNames: true })
    .catch((error) => {
      const { message } = error as Error
      const why = /^End of central directory|^Central Directory/i.test(message)
        ? 'its end is missing'
        : message.slice(0, 200)
      throw new Unreadable('file_not_readable', `The file is no zip archive, or it is damaged: ${why}.`)
    })
  try {
    const entries = await arrowFiles(zip, max_bytes)
    const chosen = chooseSplit(entries)
    let line = 0
    for (const entry of chosen) {
      const stream = await zip.openReadStreamPromise(entry)
      for await (const record of records(stream, max_bytes)) {
        const names = Object.keys(record)
        const missing = missingColumns(columns, names)
        if (missing) throw new Unreadable('file_not_readable', missing, names)
        const makeRow = rowMaker(names, columns)
        if (!makeRow)
          throw columnsUnknown(columns, names, `The dataset must have ${columnsNeeded}; it has ${listed(names)}.`)
        yield { line: ++line, row: makeRow(record) }
      }
    }
  } finally {
    zip.close()
  }
}

async function arrowFiles(zip: yauzl.ZipFile, max_bytes: number): Promise<yauzl.Entry[]> {
  const entries: yauzl.Entry[] = []
  let bytes = 0
  let count = 0
  let table: string | undefined
  try {
    for await (const entry of zip.eachEntry()) {
      if (++count > maxEntries)
        throw new Unreadable('file_too_large', `The zip archive has more than ${maxEntries} entries.`)
      if (/\.(csv|parquet|jsonl)$/i.test(entry.fileName)) table ??= entry.fileName
      if (!entry.fileName.endsWith('.arrow')) continue
      if (entry.isEncrypted())
        throw new Unreadable('file_not_readable', 'The zip archive is encrypted. Make it without a password.')
      if (!readableMethods.includes(entry.compressionMethod))
        throw new Unreadable(
          'file_not_readable',
          'The zip archive is compressed in a way that this service does not read (method ' +
            `${entry.compressionMethod}). Make it with deflate, as most programs do.`,
        )
      bytes += entry.uncompressedSize
      entries.push(entry)
    }
  } catch (error) {
    if (error instanceof Unreadable) throw error
    throw new Unreadable('file_not_readable', `The zip archive is damaged${errorDetail(error)}.`)
  }
  if (entries.length === 0)
    throw new Unreadable(
      'file_not_readable',
      table === undefined
        ? 'The zip archive has no .arrow file. Zip the folder that `dataset.save_to_disk(folder)` writes.'
        : `The zip archive has no .arrow file, but ${table.slice(0, 200)}: unpack it, and upload that file itself.`,
    )
  if (bytes > max_bytes)
    throw new Unreadable(
      'file_too_large',
      `The zip archive says that it holds ${Math.round(bytes / 1e6)} MB unpacked, more than this service takes.`,
    )
  return entries
}

/** The Arrow files of one split: all of them if they are in one folder, else those in the folder `train`. */
function chooseSplit(entries: yauzl.Entry[]): yauzl.Entry[] {
  const folderOf = (entry: yauzl.Entry) => entry.fileName.split('/').slice(0, -1).join('/')
  const sorted = entries.toSorted((a, b) => a.fileName.localeCompare(b.fileName))
  const folders = [...new Set(sorted.map(folderOf))]
  if (folders.length === 1) return sorted
  const train = folders.filter((folder) => folder.split('/').at(-1) === 'train')
  if (train.length !== 1)
    throw new Unreadable(
      'file_not_readable',
      `The zip archive has several datasets (${folders.slice(0, 10).join(', ')}) and none named train. ` +
        'Zip one of them.',
    )
  return sorted.filter((entry) => folderOf(entry) === train[0])
}

async function* records(stream: NodeJS.ReadableStream, max_bytes: number): AsyncGenerator<Record<string, unknown>> {
  let bytes = 0
  async function* metered() {
    for await (const chunk of stream) {
      bytes += chunk.length
      if (bytes > max_bytes)
        throw new Unreadable('file_too_large', 'The zip archive holds more than this service takes.')
      yield chunk as Uint8Array
    }
  }
  try {
    const reader = await RecordBatchReader.from(metered())
    await reader.open()
    for await (const batch of reader) for (const row of batch) yield plain(row) as Record<string, unknown>
  } catch (error) {
    if (error instanceof Unreadable) throw error
    throw new Unreadable(
      'file_not_readable',
      `An .arrow file of the zip archive is damaged, or is not as \`save_to_disk\` writes it${errorDetail(error)}.`,
    )
  }
}

/** Converts Arrow rows and lists to plain objects and arrays. */
function plain(value: unknown): unknown {
  if (value instanceof StructRow) return Object.fromEntries([...value].map(([name, part]) => [name, plain(part)]))
  if (value instanceof Vector) return Array.from(value, plain)
  return value
}
