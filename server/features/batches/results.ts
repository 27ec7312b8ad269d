// The results of a batch while it runs: two files of JSON lines, which become its output and its error file. A line is
// written as soon as its request is answered, so that a killed process asks nothing twice that was answered.
import { createWriteStream, ftruncateSync, mkdirSync, writeSync } from 'node:fs'
import { type FileHandle, open, rename } from 'node:fs/promises'
import path from 'node:path'
import { finished } from 'node:stream/promises'
import type { AnswerWarning } from '../../../contract/inference.ts'
import { newId } from '../../../lib/ids.ts'
import { readNumberedJsonl } from '../../../lib/jsonl.ts'

/** What one request led to: an answer of any status, or the reason why it was not asked. */
export type Result =
  | { custom_id: string; request_id: string; status: number; body: string; warnings?: AnswerWarning[] }
  | { custom_id: string; error: { code: string; message: string } }

export interface Tokens {
  prompt_tokens: number
  cached_tokens: number
  completion_tokens: number
}

export interface Results extends Tokens {
  completed: number
  failed: number
  /** Paths of the files. */
  output: string
  errors: string
  has(custom_id: string): boolean
  add(result: Result, tokens?: Tokens): void
  /** Waits until all results are on disk. */
  sync(): Promise<void>
  /** Runs `work` while the files stay as they are, synced: results that are added meanwhile are written after it. */
  unchanged<T>(work: () => Promise<T>): Promise<T>
  close(): Promise<void>
}

interface Entry {
  custom_id: string
  response?: { body?: { usage?: Partial<Tokens> & { prompt_tokens_details?: { cached_tokens?: number } } } } | null
}

/** Opens the results of a batch, with those of an earlier attempt. Lines that cannot be read are dropped. */
export async function openResults(folder: string): Promise<Results> {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const paths = { output: path.join(folder, 'output.jsonl'), errors: path.join(folder, 'errors.jsonl') }
  const seen = new Set<string>()
  const counts = { completed: 0, failed: 0, prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0 }
  await readEntries(paths.output, ({ custom_id, response }) => {
    seen.add(custom_id)
    counts.completed++
    const usage = response?.body?.usage
    counts.prompt_tokens += usage?.prompt_tokens ?? 0
    counts.completion_tokens += usage?.completion_tokens ?? 0
    counts.cached_tokens += usage?.prompt_tokens_details?.cached_tokens ?? 0
  })
  await readEntries(paths.errors, ({ custom_id }) => {
    seen.add(custom_id)
    counts.failed++
  })
  const output = await openFile(paths.output)
  const errors = await openFile(paths.errors).catch(async (error) => {
    await output.close()
    throw error
  })

  return Object.assign(counts, paths, {
    has: (custom_id: string) => seen.has(custom_id),
    add(result: Result, tokens?: Tokens) {
      const succeeded = 'body' in result && result.status === 200
      ;(succeeded ? output : errors).append(`${toLine(result)}\n`)
      seen.add(result.custom_id)
      if (succeeded) counts.completed++
      else counts.failed++
      if (!tokens) return
      counts.prompt_tokens += tokens.prompt_tokens
      counts.cached_tokens += tokens.cached_tokens
      counts.completion_tokens += tokens.completion_tokens
    },
    async sync() {
      await output.sync()
      await errors.sync()
    },
    async unchanged<T>(work: () => Promise<T>) {
      await output.sync()
      await errors.sync()
      output.hold()
      errors.hold()
      try {
        return await work()
      } finally {
        output.release()
        errors.release()
      }
    },
    async close() {
      await output.close()
      await errors.close()
    },
  })
}

interface AppendedFile {
  append(line: string): void
  /** Keeps what is appended in memory until `release`. */
  hold(): void
  release(): void
  sync(): Promise<void>
  close(): Promise<void>
}

async function openFile(file: string): Promise<AppendedFile> {
  const handle: FileHandle = await open(file, 'a+', 0o600)
  let size = (await handle.stat()).size
  let synced = true
  const { buffer } = await handle.read(Buffer.alloc(1), 0, 1, Math.max(0, size - 1))
  // A kill may have come between a line and its end.
  if (size > 0 && buffer[0] !== 0x0a) size += writeSync(handle.fd, '\n')
  let held: string | undefined
  function write(line: string): void {
    const bytes = Buffer.from(line)
    try {
      for (let written = 0; written < bytes.length; ) written += writeSync(handle.fd, bytes, written)
    } catch (error) {
      // On a full disk a part of the line may be written; the next line must not follow it.
      ftruncateSync(handle.fd, size)
      throw error
    }
    size += bytes.length
    synced = false
  }
  return {
    append(line) {
      if (held === undefined) write(line)
      else held += line
    },
    hold() {
      held = ''
    },
    release() {
      const lines = held
      held = undefined
      if (lines) write(lines)
    },
    async sync() {
      if (synced) return
      synced = true
      await handle.sync()
    },
    close: () => handle.close(),
  }
}

/** Reads the lines of a file. If some cannot be read (one that a kill left half written), rewrites it without them. */
async function readEntries(file: string, add: (entry: Entry) => void): Promise<void> {
  const damaged = new Set<number>()
  try {
    for await (const { line, json } of readNumberedJsonl(file)) {
      const entry = parseEntry(json)
      if (entry) add(entry)
      else damaged.add(line)
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  if (damaged.size === 0) return
  const copy = createWriteStream(`${file}.part`, { mode: 0o600 })
  for await (const { line, json } of readNumberedJsonl(file)) if (!damaged.has(line)) copy.write(`${json}\n`)
  copy.end()
  await finished(copy)
  await rename(`${file}.part`, file)
}

function parseEntry(json: string): Entry | undefined {
  try {
    const entry = JSON.parse(json)
    return typeof entry?.custom_id === 'string' ? entry : undefined
  } catch {
    return undefined
  }
}

/** The body is JSON text already: it is not parsed and written again. */
function toLine(result: Result): string {
  const head = `{"id":"${newId('batch_req')}","custom_id":${JSON.stringify(result.custom_id)}`
  if ('error' in result) return `${head},"response":null,"error":${JSON.stringify(result.error)}}`
  const { status, request_id, body, warnings = [] } = result
  const also = warnings.length > 0 ? `"warnings":${JSON.stringify(warnings)},` : ''
  return `${head},"response":{"status_code":${status},"request_id":"${request_id}",${also}"body":${body}},"error":null}`
}
