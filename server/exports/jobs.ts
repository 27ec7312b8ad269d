// The background work of exports: takes a queued one, makes and checks it, puts its files where they are downloaded
// from. Every write is made under the claim's attempt, so a worker that lost its lease changes nothing.
import { ApiError } from '../../contract/errors.ts'
import type { ExportCheck } from '../../contract/exports.ts'
import { statusEvent } from '../events/event-streams.ts'
import { placeFor } from '../queue/account-slots.ts'
import { type Claim, LeaseLost, underClaim } from '../queue/queue.ts'
import { requireFreeDisk, storageError } from '../storage/durable-files.ts'
import { bytesNeeded } from './choice.ts'
import { make, pack, stagesOf } from './make.ts'
import { afterCrash, afterInterruption, clear, complete, fail, giveBack, type Pushed, waitForRoom } from './outcomes.ts'
import { pushFiles } from './push.ts'
import * as store from './store.ts'
import { exportDir, removeDir } from './store.ts'
import { createProgress, Died, ExportFailure, type ExportWork } from './work.ts'

export async function workOnExport(work: ExportWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  // One that is being made is one of what its account has under way, as a running job is.
  const place = await placeFor(work, claim, await store.byId(work.db, claim.ref))
  if (!place) return
  try {
    const row = await begin(work, claim)
    if (row) await workInPlace(work, claim, row, stopping)
  } finally {
    work.forget(claim.ref)
    place()
  }
}

async function workInPlace(work: ExportWork, claim: Claim, row: store.ExportRow, stopping: AbortSignal): Promise<void> {
  const deleted = work.deleted(row.id)
  let check: ExportCheck | undefined
  try {
    await attempt(work, claim, row, AbortSignal.any([stopping, deleted]), (found) => {
      check = found
    })
  } catch (error) {
    if (deleted.aborted) throw new LeaseLost(claim)
    if (error instanceof LeaseLost) throw error
    if (stopping.aborted) return await giveBack(work, claim)
    if (full(error)) return await waitForRoom(work, claim)
    // A disk or a database that fails is nothing that the export did: it is taken up again when its lease has run out.
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
      { err: error, export: row.id, attempt: claim.attempt, log: (error as Died).log },
      'making an export failed',
    )
    await afterCrash(
      work,
      claim,
      error instanceof Died ? error.message : `The service failed at it (${(error as Error).message})`,
    )
  } finally {
    await clear(work, row.id)
  }
}

async function attempt(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  ended: AbortSignal,
  onCheck: (check: ExportCheck) => void,
): Promise<void> {
  const model = await work.models.taken(row.account_id, row.model_id)
  if (!model) throw new ExportFailure('base_missing', `The model '${row.model_id}' is not there any more.`)
  // An attempt that was killed just before it said so has left its files.
  await removeDir(exportDir(work.dataDir, row.id))
  await requireFreeDisk(work.dataDir, work.min_free_mb + bytesNeeded({ ...row, merge: row.merge === 1 }, model) / 1e6)
  const progress = createProgress(work, claim, stagesOf(row))
  const signal = AbortSignal.any([ended, progress.failed])
  try {
    const made = await make(work, row, model, progress.told, signal)
    onCheck(made.check)
    if (made.check.problem) throw new ExportFailure('export_disagrees', made.check.problem)
    const packed = await pack(work, row, made.check, progress.told, signal)
    let pushed: Pushed | null = null
    if (row.push_to) pushed = await pushFiles(work, claim, row, made, progress.told, signal)
    await progress.written()
    signal.throwIfAborted()
    await complete(work, claim, row, model, { ...made, packed, pushed })
  } catch (error) {
    // Why nothing could be written any more says more than that it was given up.
    if (progress.failed.aborted) await progress.written()
    throw error
  }
}

const full = (error: unknown) =>
  (error instanceof ExportFailure && error.code === 'storage_full') ||
  storageError(error)?.code === 'storage_full' ||
  (error instanceof ApiError && error.code === 'storage_full')

async function begin(work: ExportWork, claim: Claim): Promise<store.ExportRow | undefined> {
  const found = await store.byId(work.db, claim.ref)
  // Its worker died without a word: the lease ran out, or this server has just started on the database of a dead one.
  if (found?.status === 'running' && !(await afterInterruption(work, claim, found))) return undefined
  return underClaim(work, claim, async (trx) => {
    const row = await store.byId(trx, claim.ref)
    if (!row || (row.status !== 'queued' && row.status !== 'running')) {
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    const time = work.now()
    const message =
      claim.attempt === 1 ? 'The export is being made.' : `The export is being made again (attempt ${claim.attempt}).`
    await store.log.append(trx, row.id, [statusEvent('running', message, { attempt: claim.attempt })], time)
    await store.update(trx, row.id, { status: 'running', started_at: row.started_at ?? time })
    return row
  })
}
