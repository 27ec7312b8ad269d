// Checkpoints in the storage that machines share, so that a job resumes on another one.

import { existsSync } from 'node:fs'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import { checkpointKey, checkpointsKept } from './run-files.ts'
import * as store from './store.ts'

interface Options {
  db: Db
  artifacts: Artifacts
  log: Logger
  job_id: string
  record(event: TrainerEvent, attempt: number, within?: Within): void
}

type Within = ((trx: Trx) => Promise<void>) | undefined

/** What a trainer said of a checkpoint. `within` also writes where the reader of its lines is. */
interface Checkpoint {
  event: TrainerEvent
  attempt: number
  within: Within
}

/**
 * Publishes the checkpoints of a job, then records them. While one is on its way, only the newest of the following
 * waits. One that cannot be published is recorded all the same: this machine can resume from it. The lines of a cluster
 * are recorded in their order, so there a checkpoint is recorded first.
 */
export function publishCheckpoints({ db, artifacts, log, job_id, record }: Options) {
  let next: Checkpoint | undefined
  let running: Promise<void> | undefined
  let published: string[] | undefined

  async function publishAll(): Promise<void> {
    // Those of earlier attempts are superseded too.
    published ??= (await store.checkpoints(db, job_id, checkpointsKept))
      .map(({ attempt, step }) => checkpointKey(job_id, attempt, step))
      .toReversed()
    for (let checkpoint = next; checkpoint; checkpoint = next) {
      next = undefined
      const { event, attempt, within } = checkpoint
      const key = checkpointKey(job_id, attempt, Number(event.data?.step))
      try {
        await artifacts.publish(key)
        if (!published.includes(key)) published.push(key)
      } catch (error) {
        // The trainer has removed it meanwhile, as there are newer ones.
        if (!existsSync(artifacts.pathOf(key))) continue
        log.warn({ err: error, job: job_id }, 'a checkpoint could not be published; only this machine has it')
      }
      if (!within) record(event, attempt)
      for (const old of published.splice(0, published.length - checkpointsKept)) await artifacts.remove(old)
    }
    running = undefined
  }

  return {
    add(checkpoint: Checkpoint): void {
      const { event, attempt, within } = checkpoint
      if (within) record(event, attempt, within)
      next = checkpoint
      running ??= publishAll()
    },
    /** Resolves when the last one is published. */
    ended: async () => void (await running),
  }
}

/** The checkpoints that the trainer may resume from, newest first. Fetches the newest if none is here. */
export async function checkpointsToResume(
  { db, artifacts, log }: { db: Db; artifacts: Artifacts; log: Logger },
  job_id: string,
): Promise<{ path: string; sha256: string; step: number }[]> {
  const checkpoints: { path: string; sha256: string; step: number }[] = []
  for (const { attempt, step, sha256 } of await store.checkpoints(db, job_id, 10)) {
    const key = checkpointKey(job_id, attempt, step)
    const path = artifacts.pathOf(key).replace(/\/$/, '')
    if (artifacts.shared && !existsSync(path)) {
      if (checkpoints.length > 0) continue
      try {
        await artifacts.ensureLocal(key)
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        log.warn({ err: error, job: job_id }, 'a checkpoint is damaged; an earlier one is used')
      }
      if (!existsSync(path)) continue
    }
    checkpoints.push({ path, sha256, step })
  }
  return checkpoints
}
