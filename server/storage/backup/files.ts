// Files brought from one folder to another.
import { constants, existsSync } from 'node:fs'
import { copyFile, link, mkdir, readdir } from 'node:fs/promises'
import path from 'node:path'
import { heldByDatasets } from '../../datasets/owned-files.ts'
import type { Db } from '../../db/open.ts'
import { heldByExports } from '../../exports/owned-files.ts'
import { heldByTuning } from '../../fine-tuning/owned-files.ts'
import { type Held, syncPath } from '../durable-files.ts'

/** The files in a folder, of any depth, relative to it and with slashes. None where it is not there. */
export async function filesIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return []
      throw error
    },
  )
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(folder, path.join(entry.parentPath, entry.name)).replaceAll(path.sep, '/'))
    .sort()
}

/** Copies a file, by the filesystem's own means where it can share the blocks. */
export async function copyInto(source: string, target: string): Promise<void> {
  await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
  await copyFile(source, target, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE)
}

/** Gives a file that is never changed a second name; copies it where that cannot be. */
export async function linkInto(source: string, target: string): Promise<void> {
  await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
  try {
    await link(source, target)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EEXIST') return
    if (!['EXDEV', 'EPERM', 'EACCES', 'EMLINK', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS'].includes(code ?? '')) throw error
    await copyInto(source, target)
  }
}

/** Makes the folders that hold these files durable, and their own folders up to `root`. */
export async function syncFolders(root: string, files: string[]): Promise<void> {
  const folders = new Set([root])
  for (const file of files)
    for (let folder = path.dirname(path.join(root, file)); !folders.has(folder); folder = path.dirname(folder))
      folders.add(folder)
  for (const folder of folders) await syncPath(folder)
}

/** All that the rows of the database name outside of it. */
export const heldFiles = async (db: Db): Promise<Held[]> => [
  ...(await heldByDatasets(db)),
  ...(await heldByTuning(db)),
  ...(await heldByExports(db)),
]

/** What of it should be in `folder` and is not. */
export const missingFrom = (folder: string, held: Held[]): Held[] =>
  held.filter((each) => each.needed && !existsSync(path.join(folder, each.path)))

export const missing = ({ path, of }: Held) => `${path} of ${of} is missing.`
