// How an attempt at an export ends: with files, with a reason, or to be begun again.
import { chmod, mkdir, rename, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { ExportCheck, ExportFile } from '../../contract/exports.ts'
import { day_ms } from '../../lib/utc-day.ts'
import { type NewEvent, statusEvent } from '../events/event-streams.ts'
import type { TakenModel } from '../fine-tuning/models/export-source.ts'
import { type Claim, underClaim } from '../queue/queue.ts'
import { hashFile, syncPath } from '../storage/durable-files.ts'
import type { Made } from './make.ts'
import { modelfile } from './modelfile.ts'
import * as store from './store.ts'
import { exportDir, exportsDir, makingDir, removeDir } from './store.ts'
import type { ExportWork } from './work.ts'

const maxCrashes = 3
/**
 * More than operators stop a service by force in the minutes of one export; a machine that it takes down goes on for
 * ever.
 */
const maxInterruptions = 5
/** How long an export waits before it tries whether a full disk has room again. */
const room_wait_ms = 60_000

/** What the hub said: that it has the files, or why not. */
export interface Pushed {
  repository: string
  url: string | null
  error: string | null
}

export interface Whole extends Made {
  packed: { path: string; file: ExportFile }
  pushed: Pushed | null
}

/** Puts the files where they are downloaded from, durably, then says so in one transaction with the export's end. */
export async function complete(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  model: TakenModel,
  whole: Whole,
): Promise<void> {
  const { check, packed, pushed } = whole
  const folder = path.join(makingDir(work.dataDir, row.id), 'ready')
  await mkdir(folder, { mode: 0o700 })
  const name = path.basename(packed.file.name)
  await chmod(packed.path, 0o600)
  await rename(packed.path, path.join(folder, name))
  const files: ExportFile[] = [{ ...packed.file, name }]
  if (row.format === 'gguf') files.push(await addModelfile(folder, name, row, model))
  for (const file of files) await syncPath(path.join(folder, file.name))
  await syncPath(folder)
  await rename(folder, exportDir(work.dataDir, row.id))
  // The folder of all exports may itself be new.
  for (const each of [exportsDir(work.dataDir), work.dataDir]) await syncPath(each)
  // Before it is told, so that nothing is seen beside what is ready.
  await clear(work, row.id)
  const registered = underClaim(work, claim, async (trx) => {
    const time = work.now()
    await store.update(trx, row.id, {
      status: 'ready',
      stage: null,
      progress: 1,
      files_json: JSON.stringify(files),
      check_json: JSON.stringify(check),
      push_json: pushed && JSON.stringify(pushed),
      finished_at: time,
      expires_at: work.kept_days > 0 ? time + work.kept_days * day_ms : null,
    })
    const warnings: NewEvent[] = pushed?.error
      ? [{ type: 'warning', message: pushed.error, data: { code: 'push_failed' } }]
      : []
    await store.log.append(
      trx,
      row.id,
      [...warnings, statusEvent('ready', 'The export is ready.', { files, check })],
      time,
    )
    await work.queue.finish(trx, claim, 'done')
  })
  await registered.catch(async (error) => {
    // Deleted, or taken over, just then: nobody knows these files.
    await removeDir(exportDir(work.dataDir, row.id))
    throw error
  })
}

/** Removes all that was made on the way. */
export const clear = (work: ExportWork, id: string) => removeDir(makingDir(work.dataDir, id))

async function addModelfile(
  folder: string,
  gguf: string,
  row: store.ExportRow,
  model: TakenModel,
): Promise<ExportFile> {
  const file = path.join(folder, 'Modelfile')
  await writeFile(file, await modelfile(gguf, row, model), { mode: 0o600 })
  return { name: 'Modelfile', size_bytes: await syncPath(file), sha256: await hashFile(file) }
}

export async function fail(
  work: ExportWork,
  claim: Claim,
  { code, message }: { code: string; message: string },
  check: ExportCheck | undefined,
): Promise<void> {
  await clear(work, claim.ref)
  await underClaim(work, claim, async (trx) => {
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
    await store.log.append(trx, claim.ref, events, time)
    await work.queue.finish(trx, claim, 'dead')
  })
}

/** Lets it wait for its turn once more, from `run_at` on. */
async function again(
  work: ExportWork,
  claim: Claim,
  events: NewEvent[],
  wait_ms: number,
  values: Partial<store.ExportRow> = {},
): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    await store.update(trx, claim.ref, { status: 'queued', stage: null, ...values })
    await store.log.append(trx, claim.ref, events, time)
    await work.queue.release(trx, claim, time + wait_ms)
  })
  work.queue.wake()
}

export const giveBack = (work: ExportWork, claim: Claim) =>
  again(work, claim, [statusEvent('queued', 'The service is stopping; the export begins again when it starts.')], 0)

/** The disk is full, which the export cannot help. */
export const waitForRoom = (work: ExportWork, claim: Claim) => {
  const message = 'The disk of the service has too little room for this export. It waits until there is room.'
  const events: NewEvent[] = [
    { type: 'warning', message, data: { code: 'storage_full' } },
    statusEvent('queued', 'The export waits to be tried again.'),
  ]
  return again(work, claim, events, room_wait_ms)
}

/** The whole service died while it was made. Returns whether that is to be tried again; else it has failed. */
export async function afterInterruption(work: ExportWork, claim: Claim, row: store.ExportRow): Promise<boolean> {
  const interruptions = row.interruptions + 1
  if (interruptions < maxInterruptions) {
    await underClaim(work, claim, async (trx) => {
      await store.update(trx, row.id, { status: 'queued', interruptions })
      const message = 'The work on this export ended before the export was made; it begins again.'
      await store.log.append(trx, row.id, [statusEvent('queued', message)], work.now())
    })
    return true
  }
  const message = `The service ended ${interruptions} times while it made this export, as it does where the machine's memory is not enough.`
  await fail(work, claim, { code: 'export_crashed', message }, undefined)
  return false
}

/** What made it died without saying why. Once or twice that may be the machine's doing; then it is the export's. */
export async function afterCrash(work: ExportWork, claim: Claim, what: string): Promise<void> {
  const crashes = ((await store.byId(work.db, claim.ref))?.crashes ?? 0) + 1
  if (crashes >= maxCrashes)
    return fail(work, claim, { code: 'export_crashed', message: `${what}, ${crashes} times.` }, undefined)
  const events: NewEvent[] = [
    { type: 'warning', message: `${what}. It is tried again.`, data: { code: 'export_crashed', crashes } },
    statusEvent('queued', 'The export waits to be tried again.'),
  ]
  await again(work, claim, events, 1000 * crashes, { crashes })
}
