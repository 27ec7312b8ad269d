// The worker of downloads: fetches a checkpoint, converts it, and moves it to the models folder.

import { mkdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { runToEnd } from '../../../lib/child-process.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { fromJson } from '../../platform/db/json.ts'
import { type Claim, LeaseLost } from '../../platform/queue/queue.ts'
import { constantDelay, createRetryPolicy, exponentialDelay } from '../../platform/queue/retry-policy.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { storageError, syncPath } from '../../platform/storage/durable-files.ts'
import { writeWhileFree } from '../../platform/storage/free-disk.ts'
import { bytesIn, DownloadFailed, fetchFile, HashMismatch, listCheckpoint } from './checkpoint.ts'
import { type Downloads, downloadFolder } from './downloads.ts'
import type { Hub } from './service.ts'
import type { DownloadRow } from './store.ts'

const retryPolicy = (retry_ms: number) =>
  createRetryPolicy({
    /** Attempts in a row without new bytes. The delay doubles with each. */
    interruption: { max: 8, delay_ms: exponentialDelay(retry_ms, 60_000) },
    damaged_file: { max: 2, delay_ms: constantDelay(0) },
  })
/** Interval of progress writes. */
const progress_ms = 1000

interface DownloadWork {
  downloads: Downloads
  hub: Hub
  modelsDir: string
  url: string
  token: string | undefined
  trainingSetup: TrainingSetup
  python: string
  converters: string
  min_free_mb: number
  log: Logger
  /** Delay before the first retry. */
  retry_ms?: number
  now(): number
}

export async function workOnDownload(work: DownloadWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const { downloads, hub, modelsDir } = work
  const id = claim.ref
  const folder = downloadFolder(modelsDir, id)
  // Before the row is read, so that a cancellation is either in the row or aborts this signal.
  const cancelled = downloads.startWorking(id)
  const before = await downloads.row(id)
  const progress = { bytes: before?.bytes ?? 0 }
  try {
    if (!hub.localOrUndefined(id))
      await fetchAndConvert(work, claim, before, progress, AbortSignal.any([stopping, cancelled]))
    await rm(folder, { recursive: true, force: true })
    await downloads.save(claim, { status: 'completed', bytes: progress.bytes, error_json: null }, 'done')
  } catch (error) {
    if (cancelled.aborted) {
      await rm(folder, { recursive: true, force: true })
      throw new LeaseLost(claim)
    }
    if (error instanceof LeaseLost) throw error
    if (stopping.aborted)
      return await downloads.save(claim, { status: 'queued', bytes: progress.bytes }, { retry_at: work.now() })
    await afterFailure(work, claim, before, progress.bytes, error)
  } finally {
    downloads.stopWorking(id)
  }
}

async function fetchAndConvert(
  work: DownloadWork,
  claim: Claim,
  before: DownloadRow | undefined,
  progress: { bytes: number },
  ended: AbortSignal,
): Promise<void> {
  const { downloads, modelsDir, min_free_mb } = work
  const id = claim.ref
  const folder = downloadFolder(modelsDir, id)
  const hf = path.join(folder, 'hf')
  const source = { url: work.url, token: work.token, model_id: id }
  await mkdir(hf, { recursive: true })
  const { revision, files } = await listCheckpoint(source, before?.revision ?? 'main', ended)
  const total_bytes = files.reduce((sum, { size }) => sum + size, 0)
  progress.bytes = await bytesIn(hf, files)
  // The rest of the download, plus about the whole size for the GGUF file.
  const writing = { folder: modelsDir, min_free_mb, needed_bytes: 2 * total_bytes - progress.bytes, signal: ended }
  await writeWhileFree(writing, async (signal) => {
    await downloads.save(claim, { status: 'downloading', revision, total_bytes, bytes: progress.bytes })
    let written = progress.bytes
    // By a timer, not by arriving data: a stalled connection must not hide the progress so far.
    const progressTask = runPeriodically(progress_ms, async () => {
      if (progress.bytes === written) return
      written = progress.bytes
      await downloads
        .save(claim, { bytes: written })
        .catch((error: Error) => work.log.warn({ err: error, model: id }, 'the progress of a download was not saved'))
    })
    try {
      for (const file of files)
        await fetchFile(source, revision, file, hf, signal, (bytes) => {
          progress.bytes += bytes
        })
    } finally {
      await progressTask.close()
    }
    await downloads.save(claim, { status: 'converting', bytes: progress.bytes, failures: 0, error_json: null })
    await work.trainingSetup.whenReady(signal)
    signal.throwIfAborted()
    await convertCheckpoint(work.python, work.converters, id, folder, signal)
  })
  await syncPath(path.join(folder, 'model.gguf'))
  await syncPath(path.join(folder, 'model.json'))
  const target = path.join(modelsDir, id)
  await mkdir(path.dirname(target), { recursive: true })
  await rm(target, { recursive: true, force: true })
  await rename(folder, target)
  await syncPath(path.dirname(target))
}

/** Schedules a retry of transient failures; ends the download for permanent ones. */
async function afterFailure(
  work: DownloadWork,
  claim: Claim,
  before: DownloadRow | undefined,
  bytes: number,
  error: unknown,
): Promise<void> {
  const { downloads, modelsDir, now, retry_ms = 500 } = work
  const retries = retryPolicy(retry_ms)
  const id = claim.ref
  const errorJson = (code: string, message: string) => JSON.stringify({ code, message })
  const fail = (code: string, message: string, kept_bytes = bytes) =>
    downloads.save(claim, { status: 'failed', bytes: kept_bytes, error_json: errorJson(code, message) }, 'dead')
  const full = storageError(error) ?? (error instanceof ApiError ? error : undefined)
  if (full?.code === 'storage_full') {
    // The others need the space.
    await rm(downloadFolder(modelsDir, id), { recursive: true, force: true })
    return await fail(full.code, full.message, 0)
  }
  if (error instanceof DownloadFailed) {
    // A later attempt takes another revision or version of this service, so these files are useless.
    if (error.code !== 'access_denied') await rm(downloadFolder(modelsDir, id), { recursive: true, force: true })
    return await downloads.save(
      claim,
      { status: 'failed', revision: null, bytes: 0, error_json: errorJson(error.code, error.message) },
      'dead',
    )
  }
  const { message, cause } = error as Error
  const reason = cause instanceof Error ? cause.message : message
  work.log.warn({ err: error, model: id }, 'a download of a base model was interrupted')
  if (error instanceof HashMismatch) {
    const repeated = before?.error_json && fromJson(before.error_json).code === 'hash_mismatch'
    const { retry, delay_ms } = retries.after('damaged_file', repeated ? 1 : 0)
    if (!retry)
      return await fail(
        'hash_mismatch',
        `${work.url} sent a damaged file twice: ${reason}. It was removed; download it again later.`,
      )
    return await downloads.save(
      claim,
      { status: 'queued', bytes, error_json: errorJson('hash_mismatch', reason) },
      { retry_at: now() + delay_ms },
    )
  }
  const earlier = bytes > (before?.bytes ?? 0) ? 0 : before?.failures
  const { retry, count: failures, delay_ms } = retries.after('interruption', earlier)
  const code = full?.code ?? 'hub_unreachable'
  if (!retry)
    return await fail(
      code,
      `${id} could not be downloaded from ${work.url}, ${failures} times in a row: ${reason}. ` +
        'What has come is kept for the next try.',
    )
  await downloads.save(
    claim,
    { status: 'queued', bytes, failures, error_json: errorJson(code, reason) },
    { retry_at: now() + delay_ms },
  )
}

/**
 * Converts a downloaded checkpoint in a separate Python process, with the code of `./tunery models add`: reads `hf/` in
 * `folder` and writes `model.gguf` and `model.json` next to it. Throws DownloadFailed if the conversion fails.
 */
async function convertCheckpoint(
  python: string,
  converters: string,
  model_id: string,
  folder: string,
  signal: AbortSignal,
): Promise<void> {
  const args = [
    '-m',
    'trainer.cli.prepare_download',
    '--repo',
    model_id,
    '--id',
    model_id,
    '--converters',
    converters,
    '--out',
    folder,
    '--node',
    process.execPath,
  ]
  const { status, killed_by, stderr } = await runToEnd(python, args, {
    env: { PATH: process.env.PATH, HF_HUB_OFFLINE: '1' },
    signal,
  })
  if (status === 0) return
  const why = killed_by === 'SIGKILL' ? 'the machine may have run out of memory' : (stderr.split('\n').at(-1) ?? '')
  throw new DownloadFailed(
    'conversion_failed',
    `The checkpoint of ${model_id} could not be converted (${killed_by ?? `status ${status}`}): ${why}`,
  )
}
