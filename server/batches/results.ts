// The results of a batch while it runs: two files of JSON lines, which become its output and its error file. A line is
// written as soon as its request is answered, so that a killed process asks nothing twice that was answered.
import { closeSync, createReadStream, fsyncSync, mkdirSync, openSync, truncateSync, writeSync } from 'node:fs'
import path from 'node:path'
import { newId } from '../../lib/ids.ts'
import { readNumberedJsonl } from '../../lib/jsonl.ts'

/** What one request led to: an answer of any status, or the reason why it was not asked. */
export type Result =
  | { custom_id: string; request_id: string; status: number; body: string }
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
  sync(): void
  close(): void
}

/** Opens the results of a batch, with those of an earlier attempt. A line that it wrote half is cut off. */
export async function openResults(folder: string): Promise<Results> {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const paths = { output: path.join(folder, 'output.jsonl'), errors: path.join(folder, 'errors.jsonl') }
  const known = new Set<string>()
  const counts = { completed: 0, failed: 0, prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0 }
  const files = { output: openSync(paths.output, 'a', 0o600), errors: openSync(paths.errors, 'a', 0o600) }
  for (const file of Object.values(paths)) await cutTornLine(file)
  for await (const { json } of readNumberedJsonl(paths.output)) {
    const { custom_id, response } = JSON.parse(json)
    known.add(custom_id)
    counts.completed++
    const { usage } = response.body
    counts.prompt_tokens += usage?.prompt_tokens ?? 0
    counts.completion_tokens += usage?.completion_tokens ?? 0
    counts.cached_tokens += usage?.prompt_tokens_details?.cached_tokens ?? 0
  }
  for await (const { json } of readNumberedJsonl(paths.errors)) {
    known.add(JSON.parse(json).custom_id)
    counts.failed++
  }

  return Object.assign(counts, paths, {
    has: (custom_id: string) => known.has(custom_id),
    add(result: Result, tokens?: Tokens) {
      const succeeded = 'body' in result && result.status === 200
      const bytes = Buffer.from(`${toLine(result)}\n`)
      for (let written = 0; written < bytes.length; )
        written += writeSync(succeeded ? files.output : files.errors, bytes, written)
      known.add(result.custom_id)
      if (succeeded) counts.completed++
      else counts.failed++
      if (!tokens) return
      counts.prompt_tokens += tokens.prompt_tokens
      counts.cached_tokens += tokens.cached_tokens
      counts.completion_tokens += tokens.completion_tokens
    },
    sync() {
      for (const file of Object.values(files)) fsyncSync(file)
    },
    close() {
      for (const file of Object.values(files)) closeSync(file)
    },
  })
}

/** The body is JSON text already: it is not parsed and written again. */
function toLine(result: Result): string {
  const head = `{"id":"${newId('batch_req')}","custom_id":${JSON.stringify(result.custom_id)}`
  if ('error' in result) return `${head},"response":null,"error":${JSON.stringify(result.error)}}`
  const { status, request_id, body } = result
  return `${head},"response":{"status_code":${status},"request_id":"${request_id}","body":${body}},"error":null}`
}

async function cutTornLine(file: string): Promise<void> {
  let size = 0
  let whole = 0
  for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
    const end = chunk.lastIndexOf(0x0a)
    if (end >= 0) whole = size + end + 1
    size += chunk.length
  }
  if (whole < size) truncateSync(file, whole)
}
