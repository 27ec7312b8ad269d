// Child process that reads one untrusted file: `node main.ts REQUEST`. Writes the rows as canonical JSONL,
// and its result as one line of JSON on standard output. The parent may kill it.
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream, createWriteStream } from 'node:fs'
import { finished } from 'node:stream/promises'
import { dieWithParent } from '../../../lib/child-process.ts'
import { createPictureCheck } from '../row-pictures.ts'
import { type Check, createCheck, createRowChecker, lengthProblem, picturesOf, rowProblem } from '../rows.ts'
import { errorDetail, type ReadRow, Unreadable } from './columns.ts'
import { embedPictures, hasPlacedPictures } from './picture-columns.ts'

const outOfMemory = /Array buffer allocation failed|Invalid array length/

/** One downloaded file of a table. */
export interface TablePart {
  source: string
  format: 'csv' | 'parquet' | 'jsonl'
}

/** `canonical` is the path to write rows to; null for a file that is canonical already. */
export interface ReadRequest {
  format: 'jsonl' | 'csv' | 'parquet' | 'huggingface'
  source: string
  /** If given, read in this order instead of `source`. */
  parts?: TablePart[]
  canonical: string | null
  max_rows: number
  max_bytes: number
}

export type ReadResult =
  | { check: Check; sha256: string | null }
  | { unreadable: { code: Unreadable['code']; message: string } }

async function read(request: ReadRequest): Promise<ReadResult> {
  try {
    if (request.format === 'jsonl') return { check: await checkLines(request), sha256: null }
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

async function checkLines({ source, max_rows }: ReadRequest): Promise<Check> {
  const checker = createRowChecker()
  for await (const chunk of createReadStream(source, { highWaterMark: 1 << 20 })) {
    await checker.add(chunk as Buffer)
    await checker.ready()
    if (checker.rows() > max_rows) throw tooManyRows(max_rows)
  }
  return checker.end()
}

async function convert(
  { max_rows, max_bytes }: ReadRequest,
  rows: AsyncGenerator<ReadRow>,
  canonical: string,
): Promise<ReadResult> {
  const { check, addInvalid: wrong, addValid: good, ready, end } = createCheck()
  const pictureCheck = createPictureCheck()
  const out = createWriteStream(canonical, { mode: 0o600, highWaterMark: 1 << 20 })
  const sha256 = createHash('sha256')
  let bytes = 0
  for await (const each of rows) {
    const placed = 'problem' in each ? each.problem : each.row
    const made =
      Array.isArray(placed) || !hasPlacedPictures(placed) ? placed : await embedPictures(placed, pictureCheck)
    const problem = Array.isArray(made) ? made : rowProblem(made)
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
      if (bytes > max_bytes)
        throw new Unreadable(
          'file_too_large',
          `The rows are more than ${Math.round(max_bytes / 1e6)} MB of text, the most this service takes.`,
        )
      sha256.update(line)
      if (!out.write(line)) {
        await once(out, 'drain')
        await ready()
      }
    }
    if (check.rows > max_rows) throw tooManyRows(max_rows)
  }
  pictureCheck.close()
  if (check.rows === 0) throw new Unreadable('file_empty', 'The file has no rows.')
  out.end()
  await finished(out)
  return { check: await end(), sha256: sha256.digest('hex') }
}

dieWithParent()
const result = await read(JSON.parse(process.argv[2]!) as ReadRequest)
// Exit explicitly: after a failed read the duplicates thread still waits for rows.
process.stdout.write(JSON.stringify(result), () => process.exit(0))
