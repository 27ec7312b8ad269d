// Files of tuned models, and the move of what a program leaves into a model folder.
import { createReadStream } from 'node:fs'
import { copyFile, mkdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { newId } from '../../../lib/ids.ts'
import { hashTree, moveTree, syncPath, syncTree } from '../../platform/storage/durable-files.ts'
import { storeStream } from '../../platform/storage/incoming-files.ts'
import type { Projector } from '../hub/index.ts'

/** The files that a program leaves for a model. */
export const Artifact = z.object({
  kind: z.enum(['adapter', 'model']),
  folder: z.string(),
  gguf: z.string(),
  gguf_sha256: z.string(),
  /** Path of a projector that was trained. */
  projector: z.string().nullish(),
  projector_sha256: z.string().nullish(),
  /** Path of the rows to compare the engine's answers with the trainer's. */
  probe: z.string(),
  step: z.int(),
  validation_loss: z.number().nullable(),
})
export type Artifact = z.infer<typeof Artifact>

export interface StoredModel {
  id: string
  size_bytes: number
  /** Hash of its folder in Hugging Face's form. */
  folder_sha256: string
  /** Hash of its own projector. */
  projector_sha256: string | null
}

/**
 * Moves one artifact into a new model folder, and syncs it to disk before it returns. `inherited`: the projector of an
 * artifact that has none from its training, where it is not that of the hub's base.
 */
export async function moveToModels(
  dataDir: string,
  artifact: Artifact,
  inherited: Projector | null = null,
): Promise<StoredModel> {
  const id = newId('mdl')
  const folder = modelDir(dataDir, id)
  const temporary = `${folder}.part`
  await rm(temporary, { recursive: true, force: true })
  await mkdir(temporary, { recursive: true, mode: 0o700 })
  const files = modelFiles[artifact.kind]
  await moveTree(artifact.folder, path.join(temporary, files.folder))
  await moveTree(artifact.gguf, path.join(temporary, files.gguf))
  await moveTree(artifact.probe, path.join(temporary, probeFile))
  if (artifact.projector) await moveTree(artifact.projector, path.join(temporary, projectorFile))
  else if (inherited) await copyFile(inherited.path, path.join(temporary, projectorFile))
  const { sha256: folder_sha256 } = await hashTree(path.join(temporary, files.folder))
  const size_bytes = await syncTree(temporary)
  await rename(temporary, folder)
  await syncPath(path.dirname(folder))
  return { id, size_bytes, folder_sha256, projector_sha256: artifact.projector_sha256 ?? inherited?.sha256 ?? null }
}

/** Copies a draft file durably to where that of a model is. */
export async function storeDrafts(dataDir: string, file: string, model_id: string): Promise<void> {
  const target = path.join(dataDir, draftsKey(model_id))
  await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
  await storeStream(createReadStream(file), target)
}

/**
 * The folder of a tuned model. An adapter has `adapter/` as PEFT wrote it and `adapter.gguf` for the engine; whole
 * weights have `hf/` and `model.gguf`. A model whose projector was trained has `mmproj.gguf` too.
 */
export const modelDir = (dataDir: string, model_id: string) => path.join(dataDir, 'models', model_id)

/** The projector of a tuned model that has its own; null if it reads pictures as what it was made from. */
export const ownProjector = (folder: string, sha256: string | null): Projector | null =>
  sha256 === null ? null : { path: path.join(folder, projectorFile), sha256 }

/** The artifact of a tuned model. */
export const modelKey = (model_id: string) => `${modelDir('', model_id)}/`

/**
 * The draft file of a tuned model: the answers that it was taught, as tokens. Not in the model's folder, as it goes
 * when their dataset goes.
 */
export const draftsKey = (model_id: string) => path.join(draftsFolder, `${model_id}.bin`)
export const draftsFolder = 'drafts'

/** The files in the folder of a tuned model. */
export const modelFiles = {
  adapter: { folder: 'adapter', gguf: 'adapter.gguf' },
  model: { folder: 'hf', gguf: 'model.gguf' },
} as const

/** In a model folder: the projector that was trained with the model. */
export const projectorFile = 'mmproj.gguf'

/** In a model folder: rows to compare the engine's answers with the trainer's. */
export const probeFile = 'probe.json'

/** In the model folder of a job's result: the loss of each row as JSON lines, highest first. */
export const rowsFile = 'rows.jsonl'
