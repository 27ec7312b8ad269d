// The files of attempts at jobs, and the end of old run folders.
import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { day_ms } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import * as store from './store.ts'

/** How long the logs of a job are kept after it has failed. */
const logRetention_ms = 30 * day_ms

/** Checkpoints of a job that are kept, whatever attempts wrote them. */
export const checkpointsKept = 2

/** All that the storage has of the attempts at a job. */
export const runsKey = (job_id: string) => `${path.join('runs', job_id)}/`

/** The artifact of a checkpoint, from which another machine can resume. */
export const checkpointKey = (job_id: string, attempt: number, step: number) =>
  `${path.join(runDir('', job_id, attempt), 'checkpoints', `step-${step}`)}/`

/** Removes the run folders of jobs that ended 30 days before `now`. Those of living jobs have their checkpoints. */
export async function removeExpiredRuns(db: Db, dataDir: string, now: number): Promise<void> {
  const runs = path.join(dataDir, 'runs')
  for (const name of await readdir(runs).catch(() => [])) {
    const finished_at = (await store.findJobUnscoped(db, name))?.finished_at ?? now
    if (finished_at < now - logRetention_ms) await rm(path.join(runs, name), { recursive: true, force: true })
    // The job ended on another machine: its checkpoints are of no use any more.
    else if (finished_at < now)
      for (const attempt of await readdir(path.join(runs, name)).catch(() => []))
        await rm(path.join(runs, name, attempt, 'checkpoints'), { recursive: true, force: true })
  }
}
