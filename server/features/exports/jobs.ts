// Background work of exports: makes, checks and publishes a queued export. Every write asserts the lease, so a worker
// that lost it changes nothing.

import { ApiError } from '../../../contract/errors.ts'
import type { ExportCheck } from '../../../contract/exports.ts'
import { statusEvent } from '../../platform/events/event-streams.ts'
import { acquireSlotOrDefer } from '../../platform/queue/account-slots.ts'
import { withLease } from '../../platform/queue/lease-writes.ts'
import { type Claim, LeaseLost } from '../../platform/queue/queue.ts'
import type { Turn } from '../../platform/queue/worker.ts'
import { storageAway, storageError } from '../../platform/storage/durable-files.ts'
import { writeWhileFree } from '../../platform/storage/free-disk.ts'
import type { ExportSource } from '../models/index.ts'
import { bytesNeeded } from './choice.ts'
import { make, pack, stagesOf } from './make.ts'
import {
  afterInterruption,
  complete,
  fail,
  removePartial,
  requeueInterrupted,
  retryAfterCrash,
  waitForDiskSpace,
  waitForStorage,
} from './outcomes.ts'
import { pushFiles } from './push.ts'
import * as store from './store.ts'
import { exportDir, removeDir } from './store.ts'
import { createProgress, ExportFailure, type ExportWork, ProcessDied, type PushResult } from './work.ts'

export async function workOnExport(work: ExportWork, claim: Claim, turn: Turn): Promise<void> {
  // A running export counts towards the account's concurrency limit, like a running job.
  const releaseSlot = await acquireSlotOrDefer(work, claim, await store.findUnscoped(work.db, claim.ref))
  if (!releaseSlot) return
  try {
    const row = await start(work, claim)
    if (row) await runWithSlot(work, claim, row, turn)
  } finally {
    work.finished(claim.ref)
    releaseSlot()
  }
}

async function runWithSlot(work: ExportWork, claim: Claim, row: store.ExportRow, turn: Turn): Promise<void> {
  const { interrupted, suspended } = turn
  const deleted = work.deletionSignal(row.id)
  let check: ExportCheck | undefined
  try {
    await attempt(work, claim, row, AbortSignal.any([interrupted, suspended, deleted]), (verdict) => {
      check = verdict
    })
  } catch (error) {
    if (deleted.aborted) throw new LeaseLost(claim)
    if (error instanceof LeaseLost) throw error
    if (interrupted.aborted || suspended.aborted) return await requeueInterrupted(work, claim, suspended.aborted)
    if (isDiskFull(error)) return await waitForDiskSpace(work, claim)
    if ((error as { code?: unknown }).code === storageAway) return await waitForStorage(work, claim)
    // Disk and database failures are not the export's fault: it is retried when the lease expires.
    if (storageError(error)) throw error
    if (error instanceof ExportFailure) {
      if (error.log) work.log.warn({ export: row.id, code: error.code, log: error.log }, 'an export failed')
      return await fail(work, claim, error, check)
    }
    if (error instanceof ApiError && error.status < 500)
      return await fail(
        work,
        claim,
        { code: error.code.startsWith('model_') ? 'base_missing' : error.code, message: error.message },
        check,
      )
    work.log.warn(
      { err: error, export: row.id, attempt: claim.attempt, log: (error as ProcessDied).log },
      'making an export failed',
    )
    await retryAfterCrash(
      work,
      claim,
      error instanceof ProcessDied ? error.message : `The service failed (${(error as Error).message})`,
    )
  } finally {
    await removePartial(work, row.id)
  }
}

async function attempt(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  ended: AbortSignal,
  onCheck: (check: ExportCheck) => void,
): Promise<void> {
  const model = await work.models.exportSource(row.account_id, row.model_id)
  if (!model) throw new ExportFailure('base_missing', `The model '${row.model_id}' no longer exists.`)
  const hold = await work.artifacts.hold([model.gguf, model.base.gguf, ...(model.rows ? [model.rows] : [])])
  try {
    await makeAndComplete(work, claim, row, model, ended, onCheck)
  } finally {
    hold.release()
  }
}

async function makeAndComplete(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  model: ExportSource,
  ended: AbortSignal,
  onCheck: (check: ExportCheck) => void,
): Promise<void> {
  // An attempt that was killed just before it committed has left its files.
  await removeDir(exportDir(work.dataDir, row.id))
  const progress = createProgress(work, claim, stagesOf(row))
  const needed_bytes = bytesNeeded({ ...row, merge: row.merge === 1 }, model)
  const writing = { folder: work.dataDir, min_free_mb: work.min_free_mb, needed_bytes }
  const signal = AbortSignal.any([ended, progress.failed])
  try {
    const { packed, ...made } = await writeWhileFree({ ...writing, signal }, async (signal) => {
      const result = await make(work, row, model, progress.report, signal)
      onCheck(result.check)
      if (result.check.problem) throw new ExportFailure('export_disagrees', result.check.problem)
      return { ...result, packed: await pack(work, row, result.check, progress.report, signal) }
    })
    await work.quota.require(work.db, row.account_id, packed.file.size_bytes).catch((error) => {
      throw error instanceof ApiError ? new ExportFailure(error.code, error.message) : error
    })
    let pushed: PushResult | null = null
    if (row.push_to) pushed = await pushFiles(work, claim, row, made, progress.report, signal)
    await progress.flushed()
    signal.throwIfAborted()
    await complete(work, claim, row, model, { ...made, packed, pushed })
  } catch (error) {
    // Prefer the error of the failed write to the abort that it caused.
    if (progress.failed.aborted) await progress.flushed()
    throw error
  }
}

const isDiskFull = (error: unknown) =>
  (error instanceof ExportFailure && error.code === 'storage_full') ||
  storageError(error)?.code === 'storage_full' ||
  (error instanceof ApiError && error.code === 'storage_full')

async function start(work: ExportWork, claim: Claim): Promise<store.ExportRow | undefined> {
  const exported = await store.findUnscoped(work.db, claim.ref)
  // Its worker died: the lease expired, or the server was restarted after a crash.
  if (exported?.status === 'running' && !(await afterInterruption(work, claim, exported))) return undefined
  return withLease(work, claim, async (trx) => {
    const row = await store.findUnscoped(trx, claim.ref)
    if (!row || (row.status !== 'queued' && row.status !== 'running')) {
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    const time = work.now()
    const message =
      claim.attempt === 1 ? 'The export is being made.' : `The export is being made again (attempt ${claim.attempt}).`
    await store.events.append(trx, row.id, [statusEvent('running', message, { attempt: claim.attempt })], time)
    await store.update(trx, row.id, { status: 'running', started_at: row.started_at ?? time })
    return row
  })
}
