import path from 'node:path'
import type { Db } from '../db/open.ts'
import type { Held } from '../storage/durable-files.ts'
import { modelDir, modelFiles, runDir } from './artifacts.ts'
import * as store from './store.ts'

/**
 * The files of all models, and the checkpoints that unfinished jobs go on from; a job whose checkpoints are gone begins
 * anew.
 */
export async function heldByTuning(db: Db): Promise<Held[]> {
  const models = (await store.everyModel(db)).flatMap(({ id, kind, gguf_sha256 }) => {
    const folder = modelDir('', id)
    const { gguf, folder: weights } = modelFiles[kind]
    const of = `the model ${id}`
    return [
      { path: path.join(folder, gguf), sha256: gguf_sha256, of, needed: true },
      { path: path.join(folder, weights), of, needed: true },
      { path: folder, of, needed: true },
    ]
  })
  const checkpoints: Held[] = []
  for (const { id } of await store.unfinishedJobs(db))
    for (const { attempt, step } of await store.checkpoints(db, id, 10))
      checkpoints.push({
        path: path.join(runDir('', id, attempt), 'checkpoints', `step-${step}`),
        of: `the job ${id}`,
        needed: false,
      })
  return [...models, ...checkpoints]
}
