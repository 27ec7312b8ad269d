// The journal of what requests used: one JSON line each, in files that are folded into the database and then removed.
//
// A line is written with one synchronous call before the client has the end of its answer, so that a killed process
// loses none that a client saw complete: what the kernel has, it keeps. Against a power cut, what is not folded yet is
// synced once a second.
//
// Where the disk is full, requests go on: refusing to serve would cost more than a gap in the numbers. The lines wait
// in memory, up to a bound, and are tried again each second; the log says so, and how many had to be given up.
import {
  closeSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeSync,
} from 'node:fs'
import { open } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { z } from 'zod'
import type { NewRow } from '../db/schema.ts'

const waiting_max = 100_000

export interface Journal {
  append(record: UsageRecord): void
  /** Ends the present file; the next record begins another. Returns the files that are complete, the oldest first. */
  rotate(): string[]
  /** Makes complete files that are not folded yet outlast a power cut, off the event loop; each once. */
  sync(files: string[]): Promise<void>
  close(): void
}

/** Opens the journal in `folder`, beside the files that an earlier process left there. */
export function openJournal(folder: string, log: Logger): Journal {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const complete = readdirSync(folder)
    .filter((name) => /^\d+\.jsonl$/.test(name))
    .sort()
  let next = complete.length > 0 ? Number.parseInt(complete.at(-1)!, 10) + 1 : 1
  let current: { fd: number; name: string; bytes: number } | undefined
  let waiting: string[] = []
  let givenUp = 0
  let failing = false
  const synced = new Set<string>()

  function write(text: string): void {
    if (!current) {
      const name = `${String(next++).padStart(10, '0')}.jsonl`
      current = { fd: openSync(path.join(folder, name), 'a', 0o600), name, bytes: 0 }
    }
    const bytes = Buffer.from(text)
    const written = writeSync(current.fd, bytes)
    if (written === bytes.length) {
      current.bytes += written
      return
    }
    // A disk that fills takes a part: the line must not stay torn in the middle of the file.
    ftruncateSync(current.fd, current.bytes)
    throw Object.assign(new Error('the disk took only a part of a line'), { code: 'ENOSPC' })
  }

  /** Ends the present file; the next record begins another. */
  function endFile(): void {
    if (!current) return
    closeSync(current.fd)
    if (current.bytes > 0) complete.push(current.name)
    current = undefined
  }

  /** Writes what waits. Returns whether nothing waits any more. */
  function flush(): boolean {
    if (waiting.length === 0) return true
    try {
      write(waiting.join(''))
    } catch (error) {
      if (!failing)
        log.error(
          { err: error, waiting: waiting.length },
          'the usage journal cannot be written; requests go on, their records wait in memory',
        )
      failing = true
      endFile()
      return false
    }
    if (failing) log.warn({ records: waiting.length, given_up: givenUp }, 'the usage journal can be written again')
    failing = false
    givenUp = 0
    waiting = []
    return true
  }

  return {
    append(record) {
      const line = `${JSON.stringify(record)}\n`
      if (waiting.length >= waiting_max) {
        waiting.shift()
        givenUp++
      }
      waiting.push(line)
      // While the disk is full, each request trying all the lines again would cost more than it could win.
      if (!failing) flush()
    },
    rotate() {
      flush()
      if (current && current.bytes > 0) endFile()
      return complete.splice(0).map((name) => path.join(folder, name))
    },
    async sync(files) {
      const fresh = files.filter((file) => !synced.has(file))
      if (fresh.length === 0) return
      try {
        for (const each of [...fresh, folder]) {
          const handle = await open(each, 'r')
          await handle.sync().finally(() => handle.close())
        }
        for (const file of fresh) synced.add(file)
      } catch (error) {
        log.error({ err: error }, 'the usage journal could not be synced; it is tried again')
      }
    },
    close() {
      flush()
      if (waiting.length > 0)
        log.error({ records: waiting.length }, 'records of usage are lost: the journal cannot be written')
      endFile()
    },
  }
}

/**
 * The records of a complete file, by batches of `most` lines that are parsed when they are asked for. A last line that
 * a power cut tore is left out.
 */
export function* readJournal(file: string, most: number, log: Logger): Generator<UsageRecord[], void> {
  // One that was removed by hand holds up no other.
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : []
  for (let at = 0; at < lines.length; at += most) {
    const records: UsageRecord[] = []
    for (const line of lines.slice(at, at + most)) {
      if (line === '') continue
      try {
        records.push(UsageRecord.parse(JSON.parse(line)))
      } catch {
        log.error({ file, line: line.slice(0, 200) }, 'a line of the usage journal cannot be read; it is left out')
      }
    }
    if (records.length > 0) yield records
  }
}

export const removeJournal = (file: string) => rmSync(file, { force: true })

export const usageKinds = ['chat', 'completion', 'embedding'] as const
export type UsageKind = (typeof usageKinds)[number]
/** How an answer ended: whole, left by its client in the middle, or broken off by a failure behind us. */
export const usageFinishes = ['complete', 'client_left', 'broken'] as const
export type UsageFinish = (typeof usageFinishes)[number]

/** What one request of inference used. */
export const UsageRecord = z.object({
  request_id: z.string(),
  /** When the request came, in unix milliseconds. */
  created_at: z.int(),
  account_id: z.string(),
  key_id: z.string(),
  /** The name that the client asked for, and the id of the model that it stood for. */
  model: z.string(),
  model_id: z.string(),
  kind: z.enum(usageKinds),
  prompt_tokens: z.int().min(0),
  completion_tokens: z.int().min(0),
  /** Those of the prompt's tokens that an earlier request had computed. */
  cached_tokens: z.int().min(0),
  duration_ms: z.int().min(0),
  cost: z.number().min(0).default(0),
  finish: z.enum(usageFinishes),
})
export type UsageRecord = z.infer<typeof UsageRecord>

/** A row of usage, of a request or a job. */
export type UsageRow = NewRow<'usage'>
