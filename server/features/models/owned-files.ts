import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'
import { draftsKey, modelDir, modelFiles, modelKey, projectorFile } from './artifacts.ts'
import * as store from './store.ts'

/** The files of all models. Draft files are optional: without them a model answers more slowly. */
export async function tunedModelFiles(db: Db): Promise<OwnedFile[]> {
  return (await store.modelFileRows(db)).flatMap(({ id, kind, gguf_sha256, projector_sha256, drafts_sha256 }) => {
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
  })
}
