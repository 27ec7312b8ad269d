// What a trainer made, moved to where models live.
import { mkdir, readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { newId } from '../../lib/ids.ts'
import { syncPath } from '../storage/durable-files.ts'
import type { Artifact } from './trainer.ts'

/** Moves one artifact into a model's folder of its own, on disk before anyone is told. */
export async function moveToModels(dataDir: string, artifact: Artifact): Promise<{ id: string; size_bytes: number }> {
  const id = newId('mdl')
  const folder = modelDir(dataDir, id)
  const part = `${folder}.part`
  await rm(part, { recursive: true, force: true })
  await mkdir(part, { recursive: true, mode: 0o700 })
  const files = modelFiles[artifact.kind]
  await rename(artifact.folder, path.join(part, files.folder))
  await rename(artifact.gguf, path.join(part, files.gguf))
  await rename(artifact.probe, path.join(part, probeFile))
  const size_bytes = await syncTree(part)
  await rename(part, folder)
  await syncPath(path.dirname(folder))
  return { id, size_bytes }
}

async function syncTree(folder: string): Promise<number> {
  let bytes = 0
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const target = path.join(folder, entry.name)
    if (entry.isDirectory()) bytes += await syncTree(target)
    else bytes += await syncPath(target)
  }
  await syncPath(folder)
  return bytes
}

/** The folder of one attempt at a job. */
export const runDir = (dataDir: string, job_id: string, attempt: number) =>
  path.join(dataDir, 'runs', job_id, String(attempt))

/**
 * The folder of a tuned model: `adapter/` as PEFT wrote it and `adapter.gguf` as the engine serves it, or `hf/` and
 * `model.gguf` of a whole one.
 */
export const modelDir = (dataDir: string, model_id: string) => path.join(dataDir, 'models', model_id)

/** What lies in the folder of a tuned model. */
export const modelFiles = {
  adapter: { folder: 'adapter', gguf: 'adapter.gguf' },
  model: { folder: 'hf', gguf: 'model.gguf' },
} as const

/** In the folder of a model: rows by which engine and trainer are compared. */
export const probeFile = 'probe.json'

/** In the folder of a job's result: each row's loss, one JSON object a line, the strangest first. */
export const rowsFile = 'rows.jsonl'
