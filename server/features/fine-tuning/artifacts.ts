// Paths of run and model folders, the move of a trainer's output into a model folder, and the end of old run folders.
import { createReadStream } from 'node:fs'
import { copyFile, mkdir, readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { newId } from '../../../lib/ids.ts'
import { day_ms } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { hashTree, moveTree, storeStream, syncPath, syncTree } from '../../platform/storage/durable-files.ts'
import type { Projector } from '../hub/index.ts'
import * as store from './store.ts'
import type { Artifact } from './trainer.ts'

/** How long the logs of a job are kept after it has failed. */
const logRetention_ms = 30 * day_ms

export interface StoredModel {
  id: string
  size_bytes: number
  /** Of its folder in Hugging Face's form. */
  folder_sha256: string
  /** Of its own projector. */
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

/** The folder of one attempt at a job. */
export const runDir = (dataDir: string, job_id: string, attempt: number) =>
  path.join(dataDir, 'runs', job_id, String(attempt))

/** Removes the run folders of jobs that ended 30 days before `now`. Those of living jobs have their checkpoints. */
export async function removeExpiredRuns(db: Db, dataDir: string, now: number): Promise<void> {
  const runs = path.join(dataDir, 'runs')
  for (const name of await readdir(runs).catch(() => [])) {
    const finished_at = (await store.jobById(db, name))?.finished_at ?? now
    if (finished_at < now - logRetention_ms) await rm(path.join(runs, name), { recursive: true, force: true })
    // Of a job that ended on another machine: its checkpoints are of no use any more.
    else if (finished_at < now)
      for (const attempt of await readdir(path.join(runs, name)).catch(() => []))
        await rm(path.join(runs, name, attempt, 'checkpoints'), { recursive: true, force: true })
  }
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

/** All that the storage has of the attempts at a job. */
export const runsKey = (job_id: string) => `${path.join('runs', job_id)}/`

/** The artifact of a checkpoint, from which another machine can resume. */
export const checkpointKey = (job_id: string, attempt: number, step: number) =>
  `${path.join(runDir('', job_id, attempt), 'checkpoints', `step-${step}`)}/`

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
