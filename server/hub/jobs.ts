// The background work of downloads: brings a checkpoint, has it converted, and moves it to where base models live.
import { mkdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import { nowAndThen } from '../../lib/periodic.ts'
import { type Claim, LeaseLost } from '../queue/queue.ts'
import { requireFreeDisk, storageError, syncPath } from '../storage/durable-files.ts'
import { bytesIn, DownloadFailed, fetchFile, HashMismatch, listCheckpoint } from './checkpoint.ts'
import { convertCheckpoint } from './convert.ts'
import { type Downloads, downloadFolder } from './downloads.ts'
import type { Hub } from './service.ts'
import type { DownloadRow } from './store.ts'

/** Tries in a row that bring nothing new, until a download has failed. The wait doubles with each, up to a minute. */
const failures_max = 8
const longest_wait_ms = 60_000
/** How often the progress is written. */
const progress_ms = 1000

export interface DownloadWork {
  downloads: Downloads
  hub: Hub
  modelsDir: string
  url: string
  token: string | undefined
  python: string
  converters: string
  min_free_mb: number
  log: Logger
  /** The wait before the first retry. */
  retry_ms?: number
  now(): number
}

export async function workOnDownload(work: DownloadWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const { downloads, hub, modelsDir } = work
  const id = claim.ref
  const folder = downloadFolder(modelsDir, id)
  // Before the row is read, so that a cancellation is either seen in it or heard.
  const cancelled = downloads.running(id)
  const before = await downloads.row(id)
  const progress = { bytes: before?.bytes ?? 0 }
  try {
    if (!hub.localOrUndefined(id)) await bring(work, claim, before, progress, AbortSignal.any([stopping, cancelled]))
    await rm(folder, { recursive: true, force: true })
    await downloads.save(claim, { status: 'completed', bytes: progress.bytes, error_json: null }, 'done')
  } catch (error) {
    if (cancelled.aborted) {
      await rm(folder, { recursive: true, force: true })
      throw new LeaseLost(claim)
    }
    if (error instanceof LeaseLost) throw error
    if (stopping.aborted)
      return await downloads.save(claim, { status: 'queued', bytes: progress.bytes }, { again_at: work.now() })
    await afterFailure(work, claim, before, progress.bytes, error)
  } finally {
    downloads.stopped(id)
  }
}

async function bring(
  work: DownloadWork,
  claim: Claim,
  before: DownloadRow | undefined,
  progress: { bytes: number },
  signal: AbortSignal,
): Promise<void> {
  const { downloads, modelsDir, min_free_mb } = work
  const id = claim.ref
  const folder = downloadFolder(modelsDir, id)
  const hf = path.join(folder, 'hf')
  const source = { url: work.url, token: work.token, model_id: id }
  await mkdir(hf, { recursive: true })
  const { revision, files } = await listCheckpoint(source, before?.revision ?? 'main', signal)
  const total_bytes = files.reduce((sum, { size }) => sum + size, 0)
  progress.bytes = await bytesIn(hf, files)
  // What is still to come, and about as much as all of it for the form that the engine serves.
  await requireFreeDisk(modelsDir, min_free_mb + Math.ceil((2 * total_bytes - progress.bytes) / 1e6))
  await downloads.save(claim, { status: 'downloading', revision, total_bytes, bytes: progress.bytes })
  let written = progress.bytes
  // By the clock and not by what comes: a connection that has gone quiet must not hide what is here.
  const telling = nowAndThen(progress_ms, async () => {
    if (progress.bytes === written) return
    written = progress.bytes
    await downloads
      .save(claim, { bytes: written })
      .catch((error: Error) => work.log.warn({ err: error, model: id }, 'the progress of a download was not kept'))
  })
  try {
    for (const file of files)
      await fetchFile(source, revision, file, hf, signal, (bytes) => {
        progress.bytes += bytes
      })
  } finally {
    await telling.close()
  }
  await downloads.save(claim, { status: 'converting', bytes: progress.bytes, failures: 0, error_json: null })
  await convertCheckpoint(work.python, work.converters, id, folder, signal)
  await syncPath(path.join(folder, 'model.gguf'))
  await syncPath(path.join(folder, 'model.json'))
  const place = path.join(modelsDir, id)
  await mkdir(path.dirname(place), { recursive: true })
  await rm(place, { recursive: true, force: true })
  await rename(folder, place)
  await syncPath(path.dirname(place))
}

/** Tries again later what may pass; ends what will not. */
async function afterFailure(
  work: DownloadWork,
  claim: Claim,
  before: DownloadRow | undefined,
  bytes: number,
  error: unknown,
): Promise<void> {
  const { downloads, modelsDir, now, retry_ms = 500 } = work
  const id = claim.ref
  const told = (code: string, message: string) => JSON.stringify({ code, message })
  const end = (code: string, message: string) =>
    downloads.save(claim, { status: 'failed', bytes, error_json: told(code, message) }, 'dead')
  const full = storageError(error) ?? (error instanceof ApiError ? error : undefined)
  if (full?.code === 'storage_full') return await end(full.code, full.message)
  if (error instanceof DownloadFailed) {
    // Another revision, or another version of this service, may make a model of it: what was brought is of no use then.
    if (error.code !== 'access_denied') await rm(downloadFolder(modelsDir, id), { recursive: true, force: true })
    return await downloads.save(
      claim,
      { status: 'failed', revision: null, bytes: 0, error_json: told(error.code, error.message) },
      'dead',
    )
  }
  const { message, cause } = error as Error
  const reason = cause instanceof Error ? cause.message : message
  work.log.warn({ err: error, model: id }, 'a download of a base model was interrupted')
  if (error instanceof HashMismatch) {
    const again = before?.error_json && JSON.parse(before.error_json).code === 'hash_mismatch'
    if (again)
      return await end(
        'hash_mismatch',
        `${work.url} sent a damaged file twice: ${reason}. It was removed; download it again later.`,
      )
    return await downloads.save(
      claim,
      { status: 'queued', bytes, error_json: told('hash_mismatch', reason) },
      { again_at: now() },
    )
  }
  const failures = bytes > (before?.bytes ?? 0) ? 1 : (before?.failures ?? 0) + 1
  const code = full?.code ?? 'hub_unreachable'
  if (failures >= failures_max)
    return await end(
      code,
      `${id} could not be downloaded from ${work.url}, ${failures} times in a row: ${reason}. What has come is kept for the next try.`,
    )
  const wait_ms = Math.min(longest_wait_ms, retry_ms * 2 ** (failures - 1))
  await downloads.save(
    claim,
    { status: 'queued', bytes, failures, error_json: told(code, reason) },
    { again_at: now() + wait_ms },
  )
}
