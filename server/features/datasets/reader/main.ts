// Child process that reads one untrusted file: `node main.ts REQUEST`. Writes the rows as canonical JSONL,
// and its result as one line of JSON on standard output. The parent may kill it.
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream, createWriteStream } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { finished } from 'node:stream/promises'
import type { Columns, DatasetFormat } from '../../../../contract/datasets.ts'
import { dieWithParent } from '../../../../lib/child-process.ts'
import { recordProblem } from '../canonical.ts'
import { type Check, createRowChecker, createRowWriter, lengthProblem, maxPictureLineBytes } from '../check-rows.ts'
import type { Problem } from '../row-problem.ts'
import { errorDetail, type ReadRow, Unreadable } from './columns.ts'
import { addressesOf, boundedLines, embedFetched, openFetched, rowWithAddresses } from './fetched-pictures.ts'
import { createListSplitter } from './json-list.ts'
import { embedPictures, hasPlacedPictures } from './picture-columns.ts'

const outOfMemory = /Array buffer allocation failed|Invalid array length/

/** One downloaded file of a table. */
export interface TablePart {
  source: string
  format: 'csv' | 'parquet' | 'jsonl'
}

/** Most pictures at addresses of one file. */
const addressesMax = 10_000

/**
 * `canonical` is the path to write the valid rows to. `pictures`, where those at addresses are fetched: the path to
 * write a JSON list of them to, or the folder of what was fetched.
 */
export interface ReadRequest {
  format: DatasetFormat
  source: string
  /** If given, read in this order instead of `source`. */
  parts?: TablePart[]
  /** The file is a JSON list instead of JSON lines. */
  list?: boolean
  /** The uploader's names of the columns. */
  columns?: Columns | undefined
  /** Rows that an earlier version wrote of another format: each has its line. */
  source_lines?: boolean
  canonical: string
  max_rows: number
  max_bytes: number
  pictures?: { list: string } | { fetched: string }
}

export type ReadResult =
  | { check: Check; sha256: string }
  /** How many pictures are at addresses; nothing else was checked. */
  | { addresses: number }
  | { unreadable: { code: Unreadable['code']; message: string; columns?: string[] } }

async function read(request: ReadRequest): Promise<ReadResult> {
  try {
    if (request.format !== 'jsonl') return await convertTable(request, readRows(request))
    return request.pictures && 'list' in request.pictures
      ? await listAddresses(request, request.pictures.list)
      : await convertLines(request)
  } catch (error) {
    if (error instanceof Unreadable)
      return {
        unreadable: { code: error.code, message: error.message, ...(error.columns && { columns: error.columns }) },
      }
    throw error
  }
}

/** Turns parser errors into Unreadable. System errors (disk) and out-of-memory errors are passed on. */
async function* readRows(request: ReadRequest): AsyncGenerator<ReadRow> {
  try {
    yield* openReader(request)
  } catch (error) {
    const { syscall, message } = error as NodeJS.ErrnoException
    // The parent process recognises out-of-memory errors.
    if (error instanceof Unreadable || syscall !== undefined || outOfMemory.test(message)) throw error
    process.stderr.write(`${(error as Error).stack}\n`)
    throw new Unreadable('file_not_readable', `The file is damaged${errorDetail(error)}.`)
  }
}

// Import only the reader that is needed: loading all libraries takes longer than reading most files.
async function* openReader(request: ReadRequest): AsyncGenerator<ReadRow> {
  const { format, source, parts, max_bytes, columns } = request
  if (parts) yield* readParts(parts, request)
  else if (format === 'huggingface') yield* (await import('./arrow-zip.ts')).readArrowZip(source, max_bytes, columns)
  else yield* readTable({ source, format }, request)
}

async function* readTable({ source, format }: TablePart, request: ReadRequest): AsyncGenerator<ReadRow> {
  const { max_rows, max_bytes, columns } = request
  if (format === 'csv') yield* (await import('./csv.ts')).readCsv(source, columns)
  else if (format === 'parquet') yield* (await import('./parquet.ts')).readParquet(source, max_rows, max_bytes, columns)
  else yield* (await import('./jsonl.ts')).readJsonLines(source, columns)
}

async function* readParts(parts: TablePart[], request: ReadRequest): AsyncGenerator<ReadRow> {
  let before = 0
  for (const part of parts) {
    let last = 0
    for await (const row of readTable(part, request)) {
      last = row.line
      yield { ...row, line: before + row.line }
    }
    before += last
  }
}

const tooManyRows = (max_rows: number) =>
  new Unreadable('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`)

const tooManyBytes = (max_bytes: number) =>
  new Unreadable(
    'file_too_large',
    `The rows are more than ${Math.round(max_bytes / 1e6)} MB of text, more than this service takes or this account ` +
      'may still store.',
  )

/** Writes the addresses of a file's pictures to `list`, each once. */
function createAddressList(list: string) {
  const all = new Set<string>()
  return {
    count: () => all.size,
    add(addresses: string[]) {
      for (const address of addresses) all.add(address)
      if (all.size > addressesMax)
        throw new Unreadable(
          'file_too_large',
          `The rows have more than ${addressesMax} pictures at addresses, the most of a file. Divide it, or write ` +
            'the pictures into the rows as data URLs.',
        )
    },
    async end(): Promise<ReadResult> {
      await writeFile(list, JSON.stringify([...all]), { mode: 0o600 })
      return { addresses: all.size }
    },
  }
}

async function* linesOf({ source, list }: ReadRequest): AsyncGenerator<Buffer> {
  if (!list) return yield* boundedLines(source, maxPictureLineBytes)
  const splitter = createListSplitter()
  for await (const chunk of createReadStream(source, { highWaterMark: 1 << 20 })) {
    const lines = splitter.add(chunk as Buffer)
    for (let from = 0, at = lines.indexOf(10); at !== -1; from = at + 1, at = lines.indexOf(10, from))
      yield lines.subarray(from, at)
  }
}

async function listAddresses(request: ReadRequest, list: string): Promise<ReadResult> {
  const addresses = createAddressList(list)
  for await (const line of linesOf(request)) {
    const row = rowWithAddresses(line)
    if (row) addresses.add(addressesOf(row))
  }
  return await addresses.end()
}

/** The file of canonical rows while it is written. */
function createCanonicalFile({ canonical, max_bytes }: ReadRequest) {
  const out = createWriteStream(canonical, { mode: 0o600, highWaterMark: 1 << 20 })
  const sha256 = createHash('sha256')
  let bytes = 0
  return {
    write(line: string) {
      const written = Buffer.from(line)
      bytes += written.length
      if (bytes > max_bytes) throw tooManyBytes(max_bytes)
      sha256.update(written)
      out.write(written)
    },
    async ready() {
      if (out.writableNeedDrain) await once(out, 'drain')
    },
    abandon: () => out.destroy(),
    async end(): Promise<string> {
      out.end()
      await finished(out)
      return sha256.digest('hex')
    },
  }
}

async function convertLines(request: ReadRequest): Promise<ReadResult> {
  const { source, columns, source_lines = false, pictures, max_rows } = request
  const fetched = pictures && 'fetched' in pictures ? await openFetched(pictures.fetched) : undefined
  const file = createCanonicalFile(request)
  const list = request.list ? createListSplitter() : undefined
  const checker = createRowChecker({
    columns,
    lineOf: list?.lineOf,
    source_lines,
    write: file.write,
    ...(fetched && {
      embed: (row, check) => (addressesOf(row).length > 0 ? embedFetched(row, fetched, check) : undefined),
    }),
  })
  for await (const chunk of createReadStream(source, { highWaterMark: 1 << 20 })) {
    await checker.add(list ? list.add(chunk as Buffer) : (chunk as Buffer))
    await checker.ready()
    await file.ready()
    if (checker.rows() > max_rows) throw tooManyRows(max_rows)
  }
  const problem = list?.problem() ?? (checker.rows() === 0 ? 'The list has no rows.' : undefined)
  if (list && problem) throw new Unreadable('file_not_readable', problem)
  return { check: await checker.end(), sha256: await file.end() }
}

async function convertTable(request: ReadRequest, rows: AsyncGenerator<ReadRow>): Promise<ReadResult> {
  const { max_rows, pictures: remote } = request
  const file = createCanonicalFile(request)
  const writer = createRowWriter(file.write)
  const { check, pictureCheck, addInvalid } = writer
  const addresses = remote && 'list' in remote ? createAddressList(remote.list) : undefined
  const fetched = remote && 'fetched' in remote ? await openFetched(remote.fetched) : undefined
  for await (const result of rows) {
    const placed = 'problem' in result ? result.problem : result.row
    if (Array.isArray(placed)) {
      addInvalid(result.line, placed)
      continue
    }
    const embedded = hasPlacedPictures(placed.row) ? await embedPictures(placed.row, pictureCheck) : placed.row
    if (addresses && !Array.isArray(embedded)) {
      addresses.add(addressesOf(embedded))
      // The next reading checks the rows.
      if (addresses.count() > 0) continue
    }
    const problem = Array.isArray(embedded)
      ? embedded
      : ((fetched && (await embedFetched(embedded, fetched, pictureCheck))) ?? recordProblem(embedded))
    if (problem) addInvalid(result.line, problem as Problem)
    else {
      const bytes = Buffer.from(JSON.stringify(embedded))
      const tooLong = lengthProblem(bytes)
      if (tooLong) addInvalid(result.line, tooLong)
      else await writer.add(result.line, bytes, { ...placed, row: embedded as Record<string, unknown> })
    }
    await file.ready()
    await writer.ready()
    if (check.rows > max_rows) throw tooManyRows(max_rows)
  }
  if (addresses && addresses.count() > 0) {
    pictureCheck.close()
    file.abandon()
    return await addresses.end()
  }
  if (check.rows === 0) throw new Unreadable('file_empty', 'The file has no rows.')
  return { check: await writer.end(), sha256: await file.end() }
}

dieWithParent()
const result = await read(JSON.parse(process.argv[2]!) as ReadRequest)
// Exit explicitly: after a failed read the duplicates thread still waits for rows.
process.stdout.write(JSON.stringify(result), () => process.exit(0))
