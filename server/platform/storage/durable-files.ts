// Durable files: once a database row names a file, it must survive a power cut. So write to a temporary name, sync it,
// rename it and sync the folder.
import { createHash, randomUUID } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { cp, open, readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import { databaseAway } from '../db/dialect.ts'

export interface StoredFile {
  size_bytes: number
  sha256: string
}

/** A file, or a folder with its content, that a database row names. It never changes while the row exists. */
export interface OwnedFile {
  /** Relative to the data folder. */
  path: string
  /** The artifact that it is, or is in (storage/objects/artifacts.ts). */
  key: string
  /** In hex; only for files whose row has it. */
  sha256?: string
  /** The owner for messages, such as 'the dataset ds_…'. */
  owner: string
  /** Whether the row is useless without the file. */
  required: boolean
}

/** The SHA-256 of a file, in hex. */
export async function hashFile(file: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer)
  return hash.digest('hex')
}

/** Returns a function that hashes files and remembers the hash while a file's size and time of change stay the same. */
export function createFileHashes(): (file: string) => Promise<StoredFile> {
  const hashes = new Map<string, Promise<string>>()
  return async (file) => {
    const { size, mtimeMs } = await stat(file)
    const key = `${file}\0${size}\0${mtimeMs}`
    const hash = hashes.get(key) ?? hashFile(file)
    hashes.set(key, hash)
    hash.catch(() => hashes.delete(key))
    return { sha256: await hash, size_bytes: size }
  }
}

interface TreeFile extends StoredFile {
  /** Relative to the folder, with slashes. */
  path: string
}

/** The files of a folder in the order of their paths, and one SHA-256 of all their names and contents. */
export async function hashTree(
  folder: string,
  hashed: (file: string) => Promise<StoredFile> = createFileHashes(),
): Promise<{ sha256: string; files: TreeFile[] }> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const paths = entries
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(folder, path.join(entry.parentPath, entry.name)).split(path.sep).join('/'))
  const files: TreeFile[] = []
  for (const name of paths.sort()) files.push({ path: name, ...(await hashed(path.join(folder, name))) })
  const hash = createHash('sha256')
  for (const { sha256, path } of files) hash.update(`${sha256}  ${path}\n`)
  return { sha256: hash.digest('hex'), files }
}

/** Syncs a file or folder to disk. Returns its size in bytes. */
export async function syncPath(target: string): Promise<number> {
  const handle = await open(target, 'r')
  try {
    await handle.sync()
    return (await handle.stat()).size
  } finally {
    await handle.close()
  }
}

/** Syncs a file, or a folder with all that is in it. Returns the size of its files in bytes. */
export async function syncTree(target: string): Promise<number> {
  if (!(await stat(target)).isDirectory()) return await syncPath(target)
  let bytes = 0
  for (const name of await readdir(target)) bytes += await syncTree(path.join(target, name))
  await syncPath(target)
  return bytes
}

/**
 * Renames a file or folder. Where `to` is on another volume, as `models/` is that engines mount too, copies it to
 * `<to>.part`, which gets its name when all of it is there.
 */
export async function moveTree(from: string, to: string): Promise<void> {
  try {
    return await rename(from, to)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EXDEV') throw error
  }
  const part = `${to}.${randomUUID()}.part`
  try {
    await cp(from, part, { recursive: true })
    await syncTree(part)
    await rename(part, to)
  } finally {
    await rm(part, { recursive: true, force: true })
  }
  await rm(from, { recursive: true, force: true })
}

/**
 * After a transaction has failed: removes the files that its row would name. It may have been committed all the same,
 * where only the answer was lost or the sync failed: then, and if that cannot be told, they stay. The sweep of orphans
 * takes those that no row names.
 */
export async function removeUnlessCommitted(
  isCommitted: () => Promise<unknown>,
  remove: () => Promise<unknown>,
): Promise<void> {
  const committed = await isCommitted().then(Boolean, () => true)
  if (!committed) await remove()
}

/** The code of errors while the storage of TUNERY_STORAGE_URL cannot be used. */
export const storageAway = 'STORAGE_AWAY'

/** Error codes of file operations, of SQLite and of Postgres. */
const fullCodes = ['ENOSPC', 'EDQUOT', 'SQLITE_FULL', 'SQLITE_IOERR_SHMSIZE', '53100']
const unavailableCodes = [databaseAway, 'EACCES', 'EPERM', 'EROFS', 'EIO', 'ENOTDIR', 'EEXIST', 'EMFILE', 'ENFILE']
const sqliteUnavailable = /^SQLITE_(BUSY|LOCKED|READONLY|IOERR|CANTOPEN|PROTOCOL)/

/** Whether an error says that the disk is full. */
export const isFull = (error: unknown) => fullCodes.includes(String((error as { code?: unknown } | undefined)?.code))

/** Maps a failure of disk or database to its API error; undefined for any other failure. */
export function storageError(error: unknown): ApiError | undefined {
  const code = (error as { code?: unknown } | undefined)?.code
  if (typeof code !== 'string') return undefined
  if (code === storageAway)
    return new ApiError(
      'storage_unavailable',
      'The storage that the servers share cannot be used. Nothing is lost; try again in a moment. The operator finds ' +
        "the cause in the service's log.",
    )
  if (isFull(error))
    return new ApiError(
      'storage_full',
      'The disk of the service is full. Nothing was stored; try again when there is room.',
    )
  if (unavailableCodes.includes(code) || sqliteUnavailable.test(code))
    return new ApiError(
      'storage_unavailable',
      'The service cannot use its database or its data folder. Try again in a moment; its log has the cause.',
    )
  return undefined
}
