// Background work of datasets: reads an uploaded file in a child process, checks its rows, and writes the canonical
// JSONL that the trainer reads.
import { statSync } from 'node:fs'
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import type { Servers } from '../../platform/cluster/servers.ts'
import type { Db } from '../../platform/db/open.ts'
import type { PictureFetcher } from '../../platform/outbound/pictures.ts'
import { type Claim, LeaseLost, type Queue } from '../../platform/queue/queue.ts'
import { createRetryPolicy, linearDelay } from '../../platform/queue/retry-policy.ts'
import { storageError, syncPath } from '../../platform/storage/durable-files.ts'
import { requireFreeDisk, writeWhileFree } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { readUntrusted } from '../../platform/storage/untrusted-files.ts'
import { fetchPictures } from './fetch-pictures.ts'
import { isList } from './format.ts'
import { fetchFromHub, hubSourceOf } from './hugging-face.ts'
import { Unreadable } from './reader/columns.ts'
import type { ReadRequest, ReadResult } from './reader/main.ts'
import * as store from './store.ts'
import { columnsOf, filesOf, isEarlierForm, rowsKey } from './store.ts'

export const queueKind = 'dataset'
const rereadDelay = linearDelay(500, 30_000)
/** Counted by the attempts at the dataset. */
const retries = createRetryPolicy({ crash: { max: 3, delay_ms: rereadDelay }, disk_full: { delay_ms: rereadDelay } })
/** Decompression bomb limit: rows may have this many times the bytes of their file, plus an allowance. */
const maxExpansion = 250
const expansionAllowance_bytes = 64e6
/** Rows have their texts twice, as messages and as they were uploaded, beside the names of fields. */
const expansionKept = 4

interface PrepareWork {
  db: Db
  queue: Queue
  servers: Pick<Servers, 'list'>
  artifacts: Artifacts
  dataDir: string
  max_rows: number
  max_bytes: number
  min_free_mb: number
  quota: StorageQuota
  /** The hub to download datasets from, and the token from a dataset's upload. */
  huggingface_url: string
  hubToken(id: string): string | undefined
  pictureFetcher: PictureFetcher
  log: Logger
  /** Aborts when the dataset is deleted. Get it before reading the row. */
  deletionSignal(id: string): AbortSignal
  /** Wakes the requests that wait for a dataset. */
  notifyPrepared(id: string): void
}

/** When work that is another server's may be claimed again. */
const retry_ms = 500

export async function prepareDataset(work: PrepareWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const deleted = work.deletionSignal(claim.ref)
  try {
    await prepare(work, claim, AbortSignal.any([stopping, deleted]))
  } catch (error) {
    if (!deleted.aborted) throw error
    // These files may have been written after the deletion removed its files.
    const { part, rows } = filesOf(work.dataDir, { id: claim.ref, format: 'jsonl', source_name: null })
    for (const file of [part, rows]) await rm(file, { force: true })
    await work.artifacts.remove(rowsKey(claim.ref))
    throw new LeaseLost(claim)
  }
}

async function prepare(work: PrepareWork, claim: Claim, signal: AbortSignal): Promise<void> {
  const dataset = await store.findUnscoped(work.db, claim.ref)
  if (await isForAnother(work, dataset)) return await work.queue.defer(claim, Date.now() + retry_ms, 'unused')
  const isEarlier = dataset !== undefined && isEarlierForm(dataset)
  const files = filesOf(work.dataDir, dataset ?? { id: claim.ref, format: 'jsonl', source_name: null })
  const result =
    dataset?.status === 'preparing' || isEarlier ? await read(work, claim, dataset!, files, signal) : undefined
  if (result && 'retry_in_ms' in result) {
    const run_at = Date.now() + result.retry_in_ms
    return await work.db.transaction().execute((trx) => work.queue.requeue(trx, claim, run_at))
  }
  const valid = result && 'check' in result ? result : undefined
  let rows_bytes = 0
  if (valid) {
    rows_bytes = await syncPath(files.part)
    await rename(files.part, files.rows)
    await work.artifacts.publish(rowsKey(claim.ref))
  }
  await work.db.transaction().execute(async (trx) => {
    await work.queue.assertLease(trx, claim)
    if (valid) {
      const { check, sha256 } = valid
      await store.update(trx, claim.ref, {
        status: 'ready',
        rows: check.rows,
        check_json: JSON.stringify(check),
        rows_sha256: sha256,
        rows_bytes,
        rows_form: 1,
        ...(isEarlier && { earlier_rows_sha256: dataset.rows_sha256 }),
      })
      if (isEarlier) await store.forgetTokens(trx, claim.ref)
    } else if (result) await store.update(trx, claim.ref, { status: 'unreadable', check_json: JSON.stringify(result) })
    await work.queue.finish(trx, claim, 'done')
  })
  if (!valid) await rm(files.part, { force: true })
  else if (isEarlier && files.earlier !== files.source)
    await work.artifacts.remove(path.relative(work.dataDir, files.earlier))
  work.notifyPrepared(claim.ref)
}

/** Whether another server that lives has the token of its download, which is kept in memory alone. */
async function isForAnother({ queue, servers }: PrepareWork, dataset: store.DatasetRow | undefined): Promise<boolean> {
  const owner = dataset?.hub_token_server
  if (!owner || owner === queue.server) return false
  return (await servers.list()).some(({ id }) => id === owner)
}

/** Requires twice the size of the files: the rows take about as much, and more if the files are compressed. */
async function requireDiskSpace({ dataDir, min_free_mb }: PrepareWork, bytes: number): Promise<void> {
  await requireFreeDisk(dataDir, min_free_mb + Math.ceil((2 * bytes) / 1e6)).catch((error: Error) => {
    throw new Unreadable('file_too_large', error.message)
  })
}

async function headOf(file: string): Promise<Buffer> {
  const handle = await open(file)
  try {
    const { buffer, bytesRead } = await handle.read({ buffer: Buffer.alloc(4096) })
    return buffer.subarray(0, bytesRead)
  } finally {
    await handle.close()
  }
}

/** The bytes that the rows of a dataset may have: what its account may still store, but as many as are usual. */
async function bytesMax({ db, quota, max_bytes }: PrepareWork, dataset: store.DatasetRow): Promise<number> {
  const left_bytes = await quota.left(db, dataset.account_id)
  return Math.min(max_bytes, Math.max(left_bytes, expansionKept * dataset.size_bytes))
}

async function read(
  context: PrepareWork,
  claim: Claim,
  dataset: store.DatasetRow,
  files: ReturnType<typeof filesOf>,
  ended: AbortSignal,
): Promise<ReadResult | { retry_in_ms: number }> {
  const work = { ...context, max_bytes: await bytesMax(context, dataset) }
  const { max_rows } = work
  const max_bytes = Math.min(work.max_bytes, expansionAllowance_bytes + maxExpansion * dataset.size_bytes)
  const isEarlier = isEarlierForm(dataset)
  const local = await work.artifacts.ensureLocal(isEarlier ? files.earlier : files.source)
  const request = {
    format: dataset.format,
    source: local,
    list: dataset.format === 'jsonl' && !isEarlier && isList(await headOf(local)),
    columns: columnsOf(dataset),
    canonical: files.part,
    max_rows,
    max_bytes,
  }
  const convert = async (signal: AbortSignal): Promise<ReadResult> => {
    if (isEarlier)
      return await readFileOf(
        { ...request, format: 'jsonl', source_lines: dataset.format !== 'jsonl', max_bytes: work.max_bytes },
        statSync(local).size,
        signal,
      )
    const source = dataset.format === 'huggingface' ? await hubSourceOf(files.source, dataset.size_bytes) : undefined
    if (!source) return await readFetching(work, dataset.account_id, files, request, dataset.size_bytes, signal)
    const hub = { url: work.huggingface_url, token: work.hubToken(dataset.id) }
    const parts = await fetchFromHub(hub, source, files.fetched, work.max_bytes, signal, (bytes) =>
      requireDiskSpace(work, bytes),
    )
    const bytes = parts.reduce((sum, part) => sum + statSync(part.source).size, 0)
    return await readFetching(
      work,
      dataset.account_id,
      files,
      { ...request, parts, max_bytes: work.max_bytes },
      bytes,
      signal,
    )
  }
  try {
    const writing = { folder: work.dataDir, min_free_mb: work.min_free_mb, signal: ended }
    return await writeWhileFree(writing, convert)
  } catch (error) {
    if (error instanceof Unreadable) return { unreadable: { code: error.code, message: error.message } }
    // The service is stopping or lost the lease: the next attempt reads the file again.
    if (ended.aborted) throw new LeaseLost(claim)
    work.log.error({ err: error, dataset: dataset.id }, 'reading a dataset failed')
    // Others need the space of what is written so far.
    await rm(files.part, { force: true })
    // Retry on a full disk. The child process can only report it in its message.
    const full =
      (error instanceof ApiError && error.code === 'storage_full') ||
      storageError(error) ||
      /\b(ENOSPC|EDQUOT)\b/.test((error as Error).message)
    const { retry, delay_ms } = retries.after(full ? 'disk_full' : 'crash', claim.attempt - 1)
    if (retry) return { retry_in_ms: delay_ms }
    return {
      unreadable: {
        code: 'file_not_readable',
        message: 'The service failed to read this file. Its log has the reason.',
      },
    }
  } finally {
    for (const folder of [files.fetched, files.pictures]) await rm(folder, { recursive: true, force: true })
  }
}

/** Reads a file; if pictures of it are at addresses, fetches them and reads it again. */
async function readFetching(
  work: PrepareWork,
  account_id: string,
  files: ReturnType<typeof filesOf>,
  request: ReadRequest,
  size_bytes: number,
  signal: AbortSignal,
): Promise<ReadResult> {
  if (!work.pictureFetcher.enabled) return await readFileOf(request, size_bytes, signal)
  await mkdir(files.pictures, { recursive: true })
  const list = path.join(files.pictures, 'addresses.json')
  const listed = await readFileOf({ ...request, pictures: { list } }, size_bytes, signal)
  if (!('addresses' in listed)) return listed
  if (listed.addresses === 0) return await readFileOf(request, size_bytes, signal)
  const bytes = await fetchPictures(
    work.pictureFetcher,
    { account_id, addresses: JSON.parse(await readFile(list, 'utf8')), folder: files.pictures },
    (bytes) => requireDiskSpace(work, bytes),
    (work.max_bytes * 3) / 4,
    signal,
  )
  const pictures = { fetched: files.pictures }
  return await readFileOf({ ...request, max_bytes: work.max_bytes, pictures }, size_bytes + bytes, signal)
}

/**
 * Reads a stored file in a child process. Resolves with `unreadable` for a bad file; rejects on internal errors only.
 */
export async function readFileOf(request: ReadRequest, size_bytes: number, signal?: AbortSignal): Promise<ReadResult> {
  const read = await readUntrusted('server/features/datasets/reader/main.ts', request, size_bytes, signal)
  if ('stdout' in read) return JSON.parse(read.stdout) as ReadResult
  return { unreadable: { code: 'file_not_readable', message: `The file cannot be read: ${read.stopped}` } }
}
