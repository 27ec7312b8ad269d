// The usage journal: one JSON line per request, in files that are folded into the database and then removed.
//
// A line is written synchronously before the client gets the end of its response, so a killed process loses no usage of
// a completed response (the kernel keeps the written bytes). Files that are not folded yet are synced once a second
// against power loss.
//
// On a full disk requests continue: refusing to serve would cost more than a gap in the numbers. Lines are buffered in
// memory up to a bound and retried each second; the log reports this, and how many lines were dropped.
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
import type { NewRow } from '../../platform/db/schema.ts'

const pending_max = 100_000

interface Journal {
  append(record: UsageRecord): void
  /** Closes the current file; the next record starts another. Returns the closed files, oldest first. */
  rotate(): string[]
  /** Fsyncs closed files off the event loop, each once, so that they survive a power cut before they are folded. */
  sync(files: string[]): Promise<void>
  close(): void
}

/** Opens the journal in `folder`, including files left by an earlier process. */
export function openJournal(folder: string, log: Logger): Journal {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const complete = readdirSync(folder)
    .filter((name) => /^\d+\.jsonl$/.test(name))
    .sort()
  let next = complete.length > 0 ? Number.parseInt(complete.at(-1)!, 10) + 1 : 1
  let current: { fd: number; name: string; bytes: number } | undefined
  let pending: string[] = []
  let dropped = 0
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
    // A disk that fills up may write part of a line: truncate, or the file has a torn line in the middle.
    ftruncateSync(current.fd, current.bytes)
    throw Object.assign(new Error('only part of a journal line could be written'), { code: 'ENOSPC' })
  }

  function endFile(): void {
    if (!current) return
    closeSync(current.fd)
    if (current.bytes > 0) complete.push(current.name)
    current = undefined
  }

  /** Writes the pending lines. Returns false if they could not be written. */
  function flush(): boolean {
    if (pending.length === 0) return true
    try {
      write(pending.join(''))
    } catch (error) {
      if (!failing)
        log.error(
          { err: error, waiting: pending.length },
          'the usage journal cannot be written; requests continue, their records wait in memory',
        )
      failing = true
      endFile()
      return false
    }
    if (failing) log.warn({ records: pending.length, given_up: dropped }, 'the usage journal can be written again')
    failing = false
    dropped = 0
    pending = []
    return true
  }

  return {
    append(record) {
      const line = `${JSON.stringify(record)}\n`
      if (pending.length >= pending_max) {
        pending.shift()
        dropped++
      }
      pending.push(line)
      // While the disk is full, only `rotate` retries: retrying all lines on each request is too expensive.
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
        for (const path of [...fresh, folder]) {
          const handle = await open(path, 'r')
          await handle.sync().finally(() => handle.close())
        }
        for (const file of fresh) synced.add(file)
      } catch (error) {
        log.error({ err: error }, 'the usage journal could not be synced; it is retried')
      }
    },
    close() {
      flush()
      if (pending.length > 0)
        log.error({ records: pending.length }, 'usage records are lost: the journal cannot be written')
      endFile()
    },
  }
}

/**
 * Yields the records of a closed file in batches of up to `batchSize` lines. Unreadable lines are logged and skipped.
 */
export function* readJournal(file: string, batchSize: number, log: Logger): Generator<UsageRecord[], void> {
  // A file that was removed by hand must not block the others.
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : []
  for (let at = 0; at < lines.length; at += batchSize) {
    const records: UsageRecord[] = []
    for (const line of lines.slice(at, at + batchSize)) {
      if (line === '') continue
      try {
        records.push(UsageRecord.parse(JSON.parse(line)))
      } catch {
        log.error({ file, line: line.slice(0, 200) }, 'a line of the usage journal cannot be read; it is skipped')
      }
    }
    if (records.length > 0) yield records
  }
}

export const removeJournal = (file: string) => rmSync(file, { force: true })

const usageKinds = ['chat', 'completion', 'embedding'] as const
export type UsageKind = (typeof usageKinds)[number]
/** How a response ended: completed, aborted by the client, or broken off by an upstream failure. */
const usageFinishes = ['complete', 'client_left', 'broken'] as const
export type UsageFinish = (typeof usageFinishes)[number]

/**
 * Most tokens of one request, by any count: a body of 8 MiB has fewer. Sums of a year stay exact integers. Counts
 * beyond are no counts: an upstream once reported 2^53 - 1, and each later report of the account failed.
 */
export const requestTokensMax = 10_000_000

/** The usage of one inference request. */
const Record = z.object({
  request_id: z.string(),
  /** When the request arrived, in unix milliseconds. */
  created_at: z.int(),
  account_id: z.string(),
  key_id: z.string(),
  /** The name in the request, and the id of the model that it resolved to. */
  model: z.string(),
  model_id: z.string(),
  kind: z.enum(usageKinds),
  prompt_tokens: z.int().min(0),
  completion_tokens: z.int().min(0),
  /** Prompt tokens read from the prefix cache. */
  cached_tokens: z.int().min(0),
  duration_ms: z.int().min(0),
  /** Set for a streamed answer. */
  first_token_ms: z.int().min(0).nullish(),
  cost: z.number().min(0).default(0),
  finish: z.enum(usageFinishes),
})
const tokenCounts = ['prompt_tokens', 'completion_tokens', 'cached_tokens'] as const
/** A journal of an older version may hold counts beyond the bound, and their cost. */
export const UsageRecord = Record.transform((record) => {
  const beyond = tokenCounts.filter((name) => record[name] > requestTokensMax)
  if (beyond.length === 0) return record
  return { ...record, ...Object.fromEntries(beyond.map((name) => [name, 0])), cost: 0 }
})
export type UsageRecord = z.infer<typeof UsageRecord>

/** A usage row of a request or a job. */
export type UsageRow = NewRow<'usage'>
