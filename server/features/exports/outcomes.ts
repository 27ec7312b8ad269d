// The outcomes of an export attempt: complete, failed, or requeued.
import { chmod, mkdir, rename, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { ExportCheck, ExportFile } from '../../../contract/exports.ts'
import { day_ms } from '../../../lib/utc-day.ts'
import { type NewEvent, statusEvent } from '../../platform/events/event-streams.ts'
import { withLease } from '../../platform/queue/lease-writes.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import {
  constantDelay,
  createRetryPolicy,
  diskFullRule,
  linearDelay,
  requeueAfter,
} from '../../platform/queue/retry-policy.ts'
import { hashFile, removeUnlessCommitted, syncPath } from '../../platform/storage/durable-files.ts'
import type { ExportSource } from '../models/index.ts'
import { modelfile } from './modelfile.ts'
import * as store from './store.ts'
import { exportDir, exportKey, exportsDir, partialDir, removeDir } from './store.ts'
import type { ExportOutput, ExportWork, PushResult } from './work.ts'

const retries = createRetryPolicy({
  crash: { max: 3, delay_ms: linearDelay(1000) },
  /**
   * Service crashes during one export. More than an operator's forced stops; without a limit, an export that takes the
   * machine down (out of memory) would do so forever.
   */
  interruption: { max: 5, delay_ms: constantDelay(0) },
  disk_full: diskFullRule,
})

interface CompletedExport extends ExportOutput {
  packed: { path: string; file: ExportFile }
  pushed: PushResult | null
}

/** Moves the files durably to the export's folder, then marks the export as ready in one transaction. */
export async function complete(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  model: ExportSource,
  completed: CompletedExport,
): Promise<void> {
  const { check, packed, pushed, projector } = completed
  const folder = path.join(partialDir(work.dataDir, row.id), 'ready')
  await mkdir(folder, { mode: 0o700 })
  const name = path.basename(packed.file.name)
  await chmod(packed.path, 0o600)
  await rename(packed.path, path.join(folder, name))
  const files: ExportFile[] = [{ ...packed.file, name }]
  if (projector) {
    const file = path.join(folder, path.basename(projector.path))
    await chmod(projector.path, 0o600)
    await rename(projector.path, file)
    files.push({ name: path.basename(file), size_bytes: await syncPath(file), sha256: projector.sha256 })
  }
  if (row.format === 'gguf') files.push(await addModelfile(folder, name, projector?.path, row, model))
  for (const file of files) await syncPath(path.join(folder, file.name))
  await syncPath(folder)
  await rename(folder, exportDir(work.dataDir, row.id))
  // The folder of all exports may be new: sync its parent too.
  for (const folder of [exportsDir(work.dataDir), work.dataDir]) await syncPath(folder)
  // Remove the partial folder before the export becomes visible as ready.
  await removePartial(work, row.id)
  const commit = async () => {
    await work.artifacts.publish(exportKey(row.id))
    await withLease(work, claim, async (trx) => {
      const time = work.now()
      await store.update(trx, row.id, {
        status: 'ready',
        stage: null,
        progress: 1,
        files_json: JSON.stringify(files),
        check_json: JSON.stringify(check),
        push_json: pushed && JSON.stringify(pushed),
        finished_at: time,
        expires_at: work.retention_days > 0 ? time + work.retention_days * day_ms : null,
      })
      const warnings: NewEvent[] = pushed?.error
        ? [{ type: 'warning', message: pushed.error, data: { code: 'push_failed' } }]
        : []
      await store.events.append(
        trx,
        row.id,
        [...warnings, statusEvent('ready', 'The export is ready.', { files, check })],
        time,
      )
      await work.queue.finish(trx, claim, 'done')
    })
  }
  await commit().catch(async (error) => {
    // The export was deleted or taken over: no row refers to these files.
    const isCommitted = async () => (await store.findUnscoped(work.db, row.id))?.status === 'ready'
    await removeUnlessCommitted(isCommitted, () => work.artifacts.remove(exportKey(row.id)))
    throw error
  })
}

/** Removes the partial folder with all intermediate files. */
export const removePartial = (work: ExportWork, id: string) => removeDir(partialDir(work.dataDir, id))

async function addModelfile(
  folder: string,
  gguf: string,
  projector: string | undefined,
  row: store.ExportRow,
  model: ExportSource,
): Promise<ExportFile> {
  const file = path.join(folder, 'Modelfile')
  await writeFile(file, await modelfile({ gguf, projector: projector && path.basename(projector) }, row, model), {
    mode: 0o600,
  })
  return { name: 'Modelfile', size_bytes: await syncPath(file), sha256: await hashFile(file) }
}

export async function fail(
  work: ExportWork,
  claim: Claim,
  { code, message }: { code: string; message: string },
  check: ExportCheck | undefined,
): Promise<void> {
  await removePartial(work, claim.ref)
  await withLease(work, claim, async (trx) => {
    const time = work.now()
    const error_json = JSON.stringify({ code, message })
    await store.update(trx, claim.ref, {
      status: 'failed',
      stage: null,
      error_json,
      check_json: check ? JSON.stringify(check) : null,
      finished_at: time,
    })
    const events: NewEvent[] = [
      { type: 'error', message, data: { code, ...(check && { check }) } },
      statusEvent('failed', 'The export failed.'),
    ]
    await store.events.append(trx, claim.ref, events, time)
    await work.queue.finish(trx, claim, 'dead')
  })
}

/** Ends an attempt whose export is made again after `delay_ms`. */
const requeue = (
  work: ExportWork,
  claim: Claim,
  events: NewEvent[],
  delay_ms: number,
  values: Partial<store.ExportRow> = {},
) =>
  requeueAfter(work, claim, delay_ms, async (trx, time) => {
    await store.update(trx, claim.ref, { status: 'queued', stage: null, ...values })
    await store.events.append(trx, claim.ref, events, time)
  })

const retryEvents = (message: string, data: { code: string; [key: string]: unknown }): NewEvent[] => [
  { type: 'warning', message, data },
  statusEvent('queued', 'The export is queued for a retry.'),
]

/** Requeues an export because the service stops, or its account is suspended. */
export const requeueInterrupted = (work: ExportWork, claim: Claim, suspended: boolean) => {
  const event = suspended
    ? statusEvent('queued', 'The account is suspended, so the export waits; it is then made again.', {
        code: 'account_suspended',
      })
    : statusEvent('queued', 'The service is stopping; the export restarts when it starts.')
  return requeue(work, claim, [event], 0)
}

/** Requeues an export because the disk is full. */
export const waitForDiskSpace = (work: ExportWork, claim: Claim) => {
  const message = 'The service has too little disk space for this export. It waits until there is space.'
  const { delay_ms } = retries.after('disk_full')
  return requeue(work, claim, retryEvents(message, { code: 'storage_full' }), delay_ms)
}

/** Requeues an export because the storage that machines share is away. */
export const waitForStorage = (work: ExportWork, claim: Claim) => {
  const message = 'The storage of the service is away. The export waits, and is made again when it is back.'
  const { delay_ms } = retries.after('disk_full')
  return requeue(work, claim, retryEvents(message, { code: 'storage_unavailable' }), delay_ms)
}

/** Handles a service crash during the export. Returns true to retry at once; false if the export has failed. */
export async function afterInterruption(work: ExportWork, claim: Claim, row: store.ExportRow): Promise<boolean> {
  const { retry, count: interruptions } = retries.after('interruption', row.interruptions)
  if (retry) {
    await withLease(work, claim, async (trx) => {
      await store.update(trx, row.id, { status: 'queued', interruptions })
      const message = 'The work on this export was interrupted; it starts again.'
      await store.events.append(trx, row.id, [statusEvent('queued', message)], work.now())
    })
    return true
  }
  const message =
    `The service ended ${interruptions} times while it made this export. ` +
    'The machine may have too little memory for it.'
  await fail(work, claim, { code: 'export_crashed', message }, undefined)
  return false
}

/** Handles a child process that died without a reason: requeues the export, or fails it the third time. */
export async function retryAfterCrash(work: ExportWork, claim: Claim, what: string): Promise<void> {
  const earlier = (await store.findUnscoped(work.db, claim.ref))?.crashes
  const { retry, count: crashes, delay_ms } = retries.after('crash', earlier)
  const code = 'export_crashed'
  if (!retry) return fail(work, claim, { code, message: `${what}, ${crashes} times.` }, undefined)
  await requeue(work, claim, retryEvents(`${what}. It will be retried.`, { code, crashes }), delay_ms, { crashes })
}
