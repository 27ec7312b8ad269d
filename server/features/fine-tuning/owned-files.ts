import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'
import { checkpointKey, draftsKey, modelDir, modelFiles, modelKey, projectorFile } from './artifacts.ts'
import * as store from './store.ts'

/**
 * The files of all models, and the checkpoints that unfinished jobs resume from. Checkpoints are optional: without them
 * a job starts from the beginning. So are draft files: without them a model answers more slowly.
 */
export async function fineTuningFiles(db: Db): Promise<OwnedFile[]> {
  const models = (await store.modelFileRows(db)).flatMap(
    ({ id, kind, gguf_sha256, projector_sha256, drafts_sha256 }) => {
      const folder = modelDir('', id)
      const { gguf, folder: weights } = modelFiles[kind]
      const owner = `the model ${id}`
      const key = modelKey(id)
      return [
        { path: path.join(folder, gguf), key, sha256: gguf_sha256, owner, required: true },
        ...(projector_sha256 === null
          ? []
          : [{ path: path.join(folder, projectorFile), key, sha256: projector_sha256, owner, required: true }]),
        ...(drafts_sha256 === null
          ? []
          : [{ path: draftsKey(id), key: draftsKey(id), sha256: drafts_sha256, owner, required: false }]),
        { path: path.join(folder, weights), key, owner, required: true },
        { path: folder, key, owner, required: true },
      ]
    },
  )
  const checkpoints: OwnedFile[] = []
  for (const { id } of await store.unfinishedJobs(db))
    for (const { attempt, step } of await store.checkpoints(db, id, 10))
      checkpoints.push({
        path: path.normalize(checkpointKey(id, attempt, step)).replace(/\/$/, ''),
        key: checkpointKey(id, attempt, step),
        owner: `the job ${id}`,
        required: false,
      })
  return [...models, ...checkpoints]
}
