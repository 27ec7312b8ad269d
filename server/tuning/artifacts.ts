// What a trainer made, moved to where models live.
import { mkdir, readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { newId } from '../ids.ts'
import { syncPath } from '../storage.ts'
import { modelDir, modelFiles, probeFile } from './paths.ts'
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
