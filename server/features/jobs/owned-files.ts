import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'
import { checkpointKey } from './run-files.ts'
import * as store from './store.ts'

/** The checkpoints that unfinished jobs resume from, all optional: without them a job starts from the beginning. */
export async function jobFiles(db: Db): Promise<OwnedFile[]> {
  const checkpoints: OwnedFile[] = []
  for (const { id } of await store.unfinishedJobs(db))
    for (const { attempt, step } of await store.checkpoints(db, id, 10))
      checkpoints.push({
        path: path.normalize(checkpointKey(id, attempt, step)).replace(/\/$/, ''),
        key: checkpointKey(id, attempt, step),
        owner: `the job ${id}`,
        required: false,
      })
  return checkpoints
}
