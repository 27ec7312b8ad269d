// Reads one untrusted file in a process of its own, which may be killed: `node main.ts REQUEST`. Writes the rows in the
// one canonical form, JSON lines of {"messages":[…]}, and one line of JSON with what it found on standard output.
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream, createWriteStream } from 'node:fs'
import { finished } from 'node:stream/promises'
import { type Check, createCheck, createRowChecker, rowProblem } from '../rows.ts'
import { because, type Found, Unreadable } from './columns.ts'

const outOfMemory = /Array buffer allocation failed|Invalid array length/

/** A file of a table that was fetched in parts. */
export interface TablePart {
  source: string
  format: 'csv' | 'parquet' | 'jsonl'
}

/** `canonical` is null for a file that is in the canonical form already. */
export interface ReadRequest {
  format: 'jsonl' | 'csv' | 'parquet' | 'huggingface'
  source: string
  /** Read in this order, in place of `source`, where they are given. */
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
    return await convert(request, found(request), request.canonical!)
  } catch (error) {
    if (error instanceof Unreadable) return { unreadable: { code: error.code, message: error.message } }
    throw error
  }
}

/** What a reader stumbles over in a file that nobody meant to be read is the file's fault; a disk that fails is not. */
async function* found(request: ReadRequest): AsyncGenerator<Found> {
  try {
    yield* rowsIn(request)
  } catch (error) {
    const { syscall, message } = error as NodeJS.ErrnoException
    // What has no room in memory is told apart by who started this process.
    if (error instanceof Unreadable || syscall !== undefined || outOfMemory.test(message)) throw error
    process.stderr.write(`${(error as Error).stack}\n`)
    throw new Unreadable('file_not_readable', `The file is damaged${because(error)}.`)
  }
}

// Each reader is imported where it is used: the libraries of all together take longer to load than most files to read.
async function* rowsIn({ format, source, parts, max_rows, max_bytes }: ReadRequest): AsyncGenerator<Found> {
  if (parts) yield* readParts(parts, max_rows, max_bytes)
  else if (format === 'huggingface') yield* (await import('./arrow-zip.ts')).readArrowZip(source, max_bytes)
  else yield* readTable({ source, format }, max_rows, max_bytes)
}

async function* readTable({ source, format }: TablePart, max_rows: number, max_bytes: number): AsyncGenerator<Found> {
  if (format === 'csv') yield* (await import('./csv.ts')).readCsv(source)
  else if (format === 'parquet') yield* (await import('./parquet.ts')).readParquet(source, max_rows, max_bytes)
  else yield* (await import('./jsonl.ts')).readJsonLines(source)
}

async function* readParts(parts: TablePart[], max_rows: number, max_bytes: number): AsyncGenerator<Found> {
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
    checker.add(chunk as Buffer)
    await checker.ready()
    if (checker.rows() > max_rows) throw tooManyRows(max_rows)
  }
  return checker.end()
}

async function convert(
  { max_rows, max_bytes }: ReadRequest,
  rows: AsyncGenerator<Found>,
  canonical: string,
): Promise<ReadResult> {
  const { check, wrong, good, ready, end } = createCheck()
  const out = createWriteStream(canonical, { mode: 0o600, highWaterMark: 1 << 20 })
  const sha256 = createHash('sha256')
  let bytes = 0
  for await (const each of rows) {
    const made = 'problem' in each ? each.problem : each.row
    const problem = Array.isArray(made) ? made : rowProblem(made)
    if (problem) wrong(each.line, problem)
    else {
      good(each.line, Buffer.from(JSON.stringify(made)), made)
      // Where it stands in the uploaded file, for what is told of it later; the row itself is its messages.
      const line = Buffer.from(`${JSON.stringify({ ...made, source_line: each.line })}\n`)
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
  if (check.rows === 0) throw new Unreadable('file_empty', 'The file has no rows.')
  out.end()
  await finished(out)
  return { check: await end(), sha256: sha256.digest('hex') }
}

const result = await read(JSON.parse(process.argv[2]!) as ReadRequest)
// Where reading was given up, the thread that looks for duplicates still waits for rows.
process.stdout.write(JSON.stringify(result), () => process.exit(0))
