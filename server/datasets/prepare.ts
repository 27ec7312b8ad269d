// The background work of datasets: reads a stored file in a process of its own, checks its rows, and makes the one
// canonical form of them that the trainer reads.
import { statSync } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import type { Logger } from 'pino'
import type { Db } from '../db/open.ts'
import { type Claim, LeaseLost, type Queue } from '../queue/queue.ts'
import { requireFreeDisk, storageError, syncPath } from '../storage/durable-files.ts'
import { fetchFromHub, hubSourceOf } from './hugging-face.ts'
import { Unreadable } from './reader/columns.ts'
import type { ReadResult } from './reader/main.ts'
import { readFileOf } from './reader.ts'
import * as store from './store.ts'
import { filesOf } from './store.ts'

export const queueKind = 'dataset'
const maxAttempts = 3
const retry_ms = 500
/** Each attempt waits longer than the one before, up to this many times as long. */
const retry_growth = 60
/**
 * Rows may be this many times the size of their file, and some more: a small file that holds far more is made to fill
 * disks.
 */
const most_compressed = 250
const spare_bytes = 64e6

export interface PrepareWork {
  db: Db
  queue: Queue
  dataDir: string
  max_rows: number
  max_bytes: number
  min_free_mb: number
  /** The hub that datasets are fetched from, and the token that came with a dataset's upload. */
  huggingface_url: string
  hubToken(id: string): string | undefined
  log: Logger
  /** Aborts when the dataset is deleted; to be asked for before its row is read. */
  deleted(id: string): AbortSignal
  /** Tells those who wait for a dataset. */
  prepared(id: string): void
}

export async function prepareDataset(work: PrepareWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const deleted = work.deleted(claim.ref)
  try {
    await prepare(work, claim, AbortSignal.any([stopping, deleted]))
  } catch (error) {
    if (!deleted.aborted) throw error
    // Who deleted it could not know what was still to be written.
    const { part, rows } = filesOf(work.dataDir, claim.ref, 'jsonl')
    for (const file of [part, rows]) await rm(file, { force: true })
    throw new LeaseLost(claim)
  }
}

async function prepare(work: PrepareWork, claim: Claim, signal: AbortSignal): Promise<void> {
  const dataset = await store.byId(work.db, claim.ref)
  const files = filesOf(work.dataDir, claim.ref, dataset?.format ?? 'jsonl')
  const result = dataset?.status === 'preparing' ? await read(work, claim, dataset, files, signal) : undefined
  const wait_ms = retry_ms * Math.min(claim.attempt, retry_growth)
  if (result === 'again')
    return await work.db.transaction().execute((trx) => work.queue.release(trx, claim, Date.now() + wait_ms))
  const made = result && 'check' in result ? result : undefined
  if (made?.sha256) {
    await syncPath(files.part)
    await rename(files.part, files.rows)
  }
  await work.db.transaction().execute(async (trx) => {
    await work.queue.hold(trx, claim)
    if (made) {
      const { check, sha256 } = made
      await store.update(trx, claim.ref, {
        status: 'ready',
        rows: check.rows,
        check_json: JSON.stringify(check),
        ...(sha256 && { rows_sha256: sha256 }),
      })
    } else if (result) await store.update(trx, claim.ref, { status: 'unreadable', check_json: JSON.stringify(result) })
    await work.queue.finish(trx, claim, 'done')
  })
  if (!made) await rm(files.part, { force: true })
  work.prepared(claim.ref)
}

/** The rows take about as much as their files, unpacked perhaps more: twice the room must be there. */
async function requireRoom({ dataDir, min_free_mb }: PrepareWork, bytes: number): Promise<void> {
  await requireFreeDisk(dataDir, min_free_mb + Math.ceil((2 * bytes) / 1e6)).catch((error: Error) => {
    throw new Unreadable('file_too_large', error.message)
  })
}

async function read(
  work: PrepareWork,
  claim: Claim,
  dataset: store.DatasetRow,
  files: ReturnType<typeof filesOf>,
  signal: AbortSignal,
): Promise<ReadResult | 'again'> {
  const { max_rows } = work
  const max_bytes = Math.min(work.max_bytes, spare_bytes + most_compressed * dataset.size_bytes)
  const canonical = files.source === files.rows ? null : files.part
  try {
    const source = dataset.format === 'huggingface' ? await hubSourceOf(files.source, dataset.size_bytes) : undefined
    if (!source)
      return await readFileOf(
        { format: dataset.format, source: files.source, canonical, max_rows, max_bytes },
        dataset.size_bytes,
        signal,
      )
    const hub = { url: work.huggingface_url, token: work.hubToken(dataset.id) }
    const parts = await fetchFromHub(hub, source, files.fetched, work.max_bytes, signal, (bytes) =>
      requireRoom(work, bytes),
    )
    const bytes = parts.reduce((sum, part) => sum + statSync(part.source).size, 0)
    return await readFileOf(
      { format: 'huggingface', source: files.source, parts, canonical, max_rows, max_bytes: work.max_bytes },
      bytes,
      signal,
    )
  } catch (error) {
    if (error instanceof Unreadable) return { unreadable: { code: error.code, message: error.message } }
    // The service stops, or has lost the lease: the next attempt reads it again.
    if (signal.aborted) throw new LeaseLost(claim)
    work.log.error({ err: error, dataset: dataset.id }, 'reading a dataset failed')
    // A disk that is full is not the file's fault. The process that reads can only say so in words.
    const full = storageError(error) || /\b(ENOSPC|EDQUOT)\b/.test((error as Error).message)
    if (full || claim.attempt < maxAttempts) return 'again'
    return {
      unreadable: {
        code: 'file_not_readable',
        message: 'The service failed at reading this file. Its log has the reason.',
      },
    }
  } finally {
    await rm(files.fetched, { recursive: true, force: true })
  }
}
