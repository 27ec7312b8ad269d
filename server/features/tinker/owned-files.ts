import { readdir, stat } from 'node:fs/promises'
import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'

/** The folder of checkpoints in the data folder. */
export const checkpointsFolder = 'tinker-checkpoints'

/** The artifact of a checkpoint. */
export const checkpointKey = (id: string) => `${path.join(checkpointsFolder, id)}/`

/** In the folder of a checkpoint in Hugging Face's form: its files. */
export const externalFolder = 'adapter'

/** The files of checkpoints that are no tuned models. */
export async function tinkerFiles(db: Db): Promise<OwnedFile[]> {
  const rows = await db
    .selectFrom('tinker_checkpoints')
    .select(['id', 'kind', 'sha256'])
    .where('model_id', 'is', null)
    .execute()
  return rows.map(({ id, kind, sha256 }) => ({
    // A state's manifest has the hashes of its other files.
    path: path.join(checkpointKey(id), kind === 'training' ? 'manifest.json' : externalFolder),
    key: checkpointKey(id),
    ...(kind === 'training' && { sha256 }),
    owner: `the checkpoint ${id} of a training run`,
    required: true,
  }))
}

/** Bytes of the files in a folder. */
export async function bytesOfFolder(folder: string): Promise<number> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile())
  const sizes = await Promise.all(files.map(async (file) => (await stat(path.join(file.parentPath, file.name))).size))
  return sizes.reduce((sum, size) => sum + size, 0)
}
