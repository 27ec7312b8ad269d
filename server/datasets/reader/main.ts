// Child process that reads one untrusted file: `node main.ts REQUEST`. Writes the rows as canonical JSONL,
// and its result as one line of JSON on standard output. The parent may kill it.
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream, createWriteStream } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { finished } from 'node:stream/promises'
import { dieWithParent } from '../../../lib/child-process.ts'
import type { Problem } from '../row-message.ts'
import { createPictureCheck } from '../row-pictures.ts'
import {
  type Check,
  createCheck,
  createRowChecker,
  lengthProblem,
  maxPictureLineBytes,
  picturesOf,
  rowProblem,
} from '../rows.ts'
import { errorDetail, type ReadRow, Unreadable } from './columns.ts'
import { addressesOf, boundedLines, embedFetched, openFetched, rowWithAddresses } from './fetched-pictures.ts'
import { embedPictures, hasPlacedPictures } from './picture-columns.ts'

const outOfMemory = /Array buffer allocation failed|Invalid array length/

/** One downloaded file of a table. */
export interface TablePart {
  source: string
  format: 'csv' | 'parquet' | 'jsonl'
}

/** Most pictures at addresses of one file. */
export const addressesMax = 10_000

/**
 * `canonical` is the path to write rows to; null for a file that is canonical already. `pictures`, where those at
 * addresses are fetched: the path to write a JSON list of them to, or the folder of what was fetched.
 */
export interface ReadRequest {
  format: 'jsonl' | 'csv' | 'parquet' | 'huggingface'
  source: string
  /** If given, read in this order instead of `source`. */
  parts?: TablePart[]
  canonical: string | null
  max_rows: number
  max_bytes: number
  pictures?: { list: string } | { fetched: string }
}

export type ReadResult =
  | { check: Check; sha256: string | null }
  /** How many pictures are at addresses; nothing else was checked. */
  | { addresses: number }
  | { unreadable: { code: Unreadable['code']; message: string } }

async function read(request: ReadRequest): Promise<ReadResult> {
  try {
    if (request.format === 'jsonl') {
      if (request.canonical === null) return { check: await checkLines(request), sha256: null }
      return request.pictures && 'list' in request.pictures
        ? await listAddresses(request, request.pictures.list)
        : await embedLines(request, request.canonical)
    }
    return await convert(request, readRows(request), request.canonical!)
  } catch (error) {
    if (error instanceof Unreadable) return { unreadable: { code: error.code, message: error.message } }
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
async function* openReader({ format, source, parts, max_rows, max_bytes }: ReadRequest): AsyncGenerator<ReadRow> {
  if (parts) yield* readParts(parts, max_rows, max_bytes)
  else if (format === 'huggingface') yield* (await import('./arrow-zip.ts')).readArrowZip(source, max_bytes)
  else yield* readTable({ source, format }, max_rows, max_bytes)
}

async function* readTable({ source, format }: TablePart, max_rows: number, max_bytes: number): AsyncGenerator<ReadRow> {
  if (format === 'csv') yield* (await import('./csv.ts')).readCsv(source)
  else if (format === 'parquet') yield* (await import('./parquet.ts')).readParquet(source, max_rows, max_bytes)
  else yield* (await import('./jsonl.ts')).readJsonLines(source)
}

async function* readParts(parts: TablePart[], max_rows: number, max_bytes: number): AsyncGenerator<ReadRow> {
  let before = 0
  for (const part of parts) {
    let last = 0
    for await (const each of readTable(part, max_rows, max_bytes)) {
      last = each.line
      yield { ...each, line: before + each.line }
    }
    before += last
  }
}

const tooManyRows = (max_rows: number) =>
  new Unreadable('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`)

const tooManyBytes = (max_bytes: number) =>
  new Unreadable(
    'file_too_large',
    `The rows are more than ${Math.round(max_bytes / 1e6)} MB of text, the most this service takes.`,
  )

/** Writes the addresses of a file's pictures to `list`, each once. */
function createAddressList(list: string) {
  const found = new Set<string>()
  return {
    count: () => found.size,
    add(addresses: string[]) {
      for (const address of addresses) found.add(address)
      if (found.size > addressesMax)
        throw new Unreadable(
          'file_too_large',
          `The rows have more than ${addressesMax} pictures at addresses, the most of a file. Divide it, or write the ` +
            'pictures into the rows as data URLs.',
        )
    },
    async end(): Promise<ReadResult> {
      await writeFile(list, JSON.stringify([...found]), { mode: 0o600 })
      return { addresses: found.size }
    },
  }
}

async function listAddresses({ source }: ReadRequest, list: string): Promise<ReadResult> {
  const addresses = createAddressList(list)
  for await (const line of boundedLines(source, maxPictureLineBytes)) {
    const row = rowWithAddresses(line)
    if (row) addresses.add(addressesOf(row))
  }
  return await addresses.end()
}

/** Writes the lines with their fetched pictures, each in its place, and checks them. */
async function embedLines(request: ReadRequest, canonical: string): Promise<ReadResult> {
  const { source, pictures, max_rows, max_bytes } = request
  const fetched = pictures && 'fetched' in pictures ? await openFetched(pictures.fetched) : undefined
  const pictureCheck = createPictureCheck()
  const out = createWriteStream(canonical, { mode: 0o600, highWaterMark: 1 << 20 })
  const sha256 = createHash('sha256')
  const problems = new Map<number, Problem>()
  let number = 0
  let bytes = 0
  for await (const line of boundedLines(source, maxPictureLineBytes)) {
    number++
    const row = fetched && rowWithAddresses(line)
    const problem = row && (await embedFetched(row, fetched!, pictureCheck))
    if (problem) problems.set(number, problem)
    const written = row && !problem ? Buffer.from(`${JSON.stringify(row)}\n`) : line
    bytes += written.length
    if (bytes > max_bytes) throw tooManyBytes(max_bytes)
    sha256.update(written)
    if (!out.write(written)) await once(out, 'drain')
  }
  pictureCheck.close()
  out.end()
  await finished(out)
  return { check: await checkLines({ source: canonical, max_rows }, problems), sha256: sha256.digest('hex') }
}

async function checkLines(
  { source, max_rows }: Pick<ReadRequest, 'source' | 'max_rows'>,
  known?: ReadonlyMap<number, Problem>,
): Promise<Check> {
  const checker = createRowChecker(known)
  for await (const chunk of createReadStream(source, { highWaterMark: 1 << 20 })) {
    await checker.add(chunk as Buffer)
    await checker.ready()
    if (checker.rows() > max_rows) throw tooManyRows(max_rows)
  }
  return checker.end()
}

async function convert(
  { max_rows, max_bytes, pictures: remote }: ReadRequest,
  rows: AsyncGenerator<ReadRow>,
  canonical: string,
): Promise<ReadResult> {
  const { check, addInvalid: wrong, addValid: good, ready, end } = createCheck()
  const pictureCheck = createPictureCheck()
  const addresses = remote && 'list' in remote ? createAddressList(remote.list) : undefined
  const fetched = remote && 'fetched' in remote ? await openFetched(remote.fetched) : undefined
  const out = createWriteStream(canonical, { mode: 0o600, highWaterMark: 1 << 20 })
  const sha256 = createHash('sha256')
  let bytes = 0
  for await (const each of rows) {
    const placed = 'problem' in each ? each.problem : each.row
    const made =
      Array.isArray(placed) || !hasPlacedPictures(placed) ? placed : await embedPictures(placed, pictureCheck)
    if (addresses && !Array.isArray(made)) {
      addresses.add(addressesOf(made))
      // The next reading checks the rows.
      if (addresses.count() > 0) continue
    }
    const unfetched = fetched && !Array.isArray(made) ? await embedFetched(made, fetched, pictureCheck) : undefined
    const problem = unfetched ?? (Array.isArray(made) ? made : rowProblem(made))
    if (problem) {
      wrong(each.line, problem)
      continue
    }
    const row = made as Record<string, unknown>
    const pictures = picturesOf(row)
    const json = Buffer.from(JSON.stringify(row))
    const further = lengthProblem(json) ?? (pictures.length > 0 ? await pictureCheck.problemOf(pictures) : undefined)
    if (further) wrong(each.line, further)
    else if (good(each.line, json, row, pictures)) {
      // `source_line` is the line in the uploaded file, for later messages about this row.
      const line = Buffer.from(`${JSON.stringify({ ...row, source_line: each.line })}\n`)
      bytes += line.length
      if (bytes > max_bytes) throw tooManyBytes(max_bytes)
      sha256.update(line)
      if (!out.write(line)) {
        await once(out, 'drain')
        await ready()
      }
    }
    if (check.rows > max_rows) throw tooManyRows(max_rows)
  }
  pictureCheck.close()
  if (addresses && addresses.count() > 0) {
    out.destroy()
    return await addresses.end()
  }
  if (check.rows === 0) throw new Unreadable('file_empty', 'The file has no rows.')
  out.end()
  await finished(out)
  return { check: await end(), sha256: sha256.digest('hex') }
}

dieWithParent()
const result = await read(JSON.parse(process.argv[2]!) as ReadRequest)
// Exit explicitly: after a failed read the duplicates thread still waits for rows.
process.stdout.write(JSON.stringify(result), () => process.exit(0))
