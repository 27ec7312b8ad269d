// Files that a run has stored with one machine of the service, for the worker of its job on another.

import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import path from 'node:path'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import { runDir } from '../../../platform/trainer/run-folder.ts'
import type { Run } from './runs.ts'

/** Where the files of runs are. */
export interface RunFiles {
  artifacts: Pick<Artifacts, 'store'>
  dataDir: string
}

type RunId = Pick<Run, 'job_id' | 'attempt'>

const receivedFolder = ({ job_id, attempt }: RunId) => path.posix.join('runs', job_id, String(attempt), 'received')

/** The object of a file in the storage that machines share. It goes with the run folder of its job. */
export const receivedKey = (run: RunId, name: string) => `${receivedFolder(run)}/${name}`

/** Fetches those of a run's files that another machine received. Throws what the storage throws. */
export async function fetchReceived({ artifacts, dataDir }: RunFiles, run: RunId, names: unknown): Promise<void> {
  if (!artifacts.store || !Array.isArray(names)) return
  const folder = runDir(dataDir, run.job_id, run.attempt)
  for (const name of names) {
    const target = path.resolve(folder, String(name))
    if (!target.startsWith(folder + path.sep)) throw new Error(`a run names ${name}, outside of its folder`)
    if (existsSync(target)) continue
    await mkdir(path.dirname(target), { recursive: true })
    await artifacts.store.get(receivedKey(run, String(name)), target)
  }
}

/** Removes the objects of files below `within`, such as a checkpoint that newer ones have replaced. */
export async function removeReceived(
  { artifacts }: Pick<RunFiles, 'artifacts'>,
  run: RunId,
  within: string,
): Promise<void> {
  if (!artifacts.store) return
  for await (const { key } of artifacts.store.list(`${receivedFolder(run)}/${within}/`))
    await artifacts.store.remove(key)
}
