// Lists, copies and hard-links the files of a backup.
import { constants, existsSync } from 'node:fs'
import { copyFile, link, mkdir, readdir } from 'node:fs/promises'
import path from 'node:path'
import pino from 'pino'
import { datasetFiles } from '../../features/datasets/owned-files.ts'
import { exportFiles } from '../../features/exports/owned-files.ts'
import { uploadedFiles } from '../../features/files/owned-files.ts'
import { jobFiles } from '../../features/jobs/owned-files.ts'
import { tunedModelFiles } from '../../features/models/owned-files.ts'
import { tinkerFiles } from '../../features/tinker/owned-files.ts'
import type { Db } from '../../platform/db/open.ts'
import { type OwnedFile, syncPath } from '../../platform/storage/durable-files.ts'
import {
  type Artifacts,
  createArtifacts,
  type ObjectStore,
  openObjectStore,
} from '../../platform/storage/objects/index.ts'

/** All files in a folder and its subfolders, as sorted relative paths with slashes. Empty if the folder is missing. */
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

/** Copies a file, sharing blocks where the filesystem can (reflink). */
export async function copyInto(source: string, target: string): Promise<void> {
  await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
  await copyFile(source, target, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE)
}

/** Hard-links a file that never changes; copies it if that is not possible. */
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

/** Syncs the folders of these files, and their parents up to `root`. */
export async function syncFolders(root: string, files: string[]): Promise<void> {
  const folders = new Set([root])
  for (const file of files)
    for (let folder = path.dirname(path.join(root, file)); !folders.has(folder); folder = path.dirname(folder))
      folders.add(folder)
  for (const folder of folders) await syncPath(folder)
}

/** All files that rows of the database name. */
export const ownedFiles = async (db: Db): Promise<OwnedFile[]> => [
  ...(await datasetFiles(db)),
  ...(await tunedModelFiles(db)),
  ...(await jobFiles(db)),
  ...(await uploadedFiles(db)),
  ...(await exportFiles(db)),
  ...(await tinkerFiles(db)),
]

/** Opens a storage for work on a data folder, whose cache is not bounded meanwhile. */
export async function withStorage<T>(
  dataDir: string,
  storage_url: string,
  work: (storage: { artifacts: Artifacts; store: ObjectStore }) => Promise<T>,
): Promise<T> {
  const store = await openObjectStore(storage_url)
  const log = pino({ level: 'silent' })
  try {
    return await work({
      store,
      artifacts: createArtifacts({ dataDir, store, cache_mb: 1e9, min_free_mb: 0, redirect: false, log }),
    })
  } finally {
    store.close()
  }
}

/** The artifacts that rows name: of these the storage keeps the objects, and removes others as orphans. */
export async function ownedKeys(db: Db): Promise<Set<string>> {
  const uploads = await db.selectFrom('uploads').select('id').where('status', '=', 'pending').execute()
  const batches = await db
    .selectFrom('batches')
    .select('id')
    .where('status', 'in', ['validating', 'in_progress', 'finalizing', 'cancelling'])
    .execute()
  return new Set([
    ...(await ownedFiles(db)).map(({ key }) => key),
    ...uploads.map(({ id }) => `uploads/${id}/`),
    ...batches.map(({ id }) => `batches/${id}/`),
  ])
}

/** The required files, or with `optional` all, that are not in `folder`. */
export const missingFrom = (folder: string, files: OwnedFile[], optional = false): OwnedFile[] =>
  files.filter((file) => (optional || file.required) && !existsSync(path.join(folder, file.path)))

export const missingMessage = ({ path, owner }: OwnedFile) => `${path} of ${owner} is missing.`
