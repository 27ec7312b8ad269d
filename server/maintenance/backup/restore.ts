import { existsSync } from 'node:fs'
import { lstat, mkdir, readdir, rm, stat, statfs } from 'node:fs/promises'
import path from 'node:path'
import { type Db, lockDataDir, openDatabase } from '../../platform/db/open.ts'
import { hashFile, moveTree, syncPath } from '../../platform/storage/durable-files.ts'
import { firstAccount, installationOf } from '../../platform/storage/installation.ts'
import { copyInto, ownedFiles, syncFolders, withStorage } from './files.ts'
import { BackupError, type Manifest, readManifest } from './manifest.ts'

const stagingName = 'restore.part'
/** What an empty folder may hold: the lock, the leftovers of a killed restore, and what a volume of its own has. */
const ignoredNames = /^(server\.lock(-journal)?|restore\.part|lost\+found)$/

/**
 * Restores a backup into an empty data folder, completely or not at all. With a storage that machines share, its
 * objects are there before the database is: those of the same installation that are there already stay.
 */
export async function restore(source: string, dataDir: string, storage_url?: string): Promise<Manifest> {
  const [taken] = await contentOf(dataDir)
  if (taken !== undefined)
    throw new BackupError(
      `${dataDir} is not empty (it has ${taken}), and a backup is restored into an empty data folder only. ` +
        'Move what is there away, or set TUNERY_DATA_DIR.',
    )
  const manifest = await readManifest(source)
  await verify(source, manifest)
  const lock = lockDataDir(dataDir)
  if (!lock)
    throw new BackupError(
      `A Tunery serves the data folder ${dataDir}. Stop it, or set TUNERY_DATA_DIR to another folder.`,
    )
  const staging = path.join(dataDir, stagingName)
  try {
    await rm(staging, { recursive: true, force: true })
    await assertFreeSpace(dataDir, manifest)
    await mkdir(staging, { mode: 0o700 })
    for (const file of manifest.files) await copyVerified(source, staging, file)
    // Throws for a database of a later version, as the server does.
    const db = await openDatabase(staging)
    try {
      await signEveryoneOut(db)
      if (storage_url !== undefined) {
        const keys = new Set((await ownedFiles(db)).map((ownedFile) => ownedFile.key))
        const owner = (await installationOf(db))!
        await withStorage(staging, storage_url, async ({ artifacts }) => {
          await artifacts.claim({ owner, formerOwner: await firstAccount(db), live: async () => keys })
          for (const key of keys) if (existsSync(path.join(staging, key))) await artifacts.publish(key)
        })
      }
    } finally {
      await db.destroy()
    }
    const names = manifest.files.map((file) => file.path)
    await syncFolders(staging, names)
    // Move the database last: without it, nothing takes the folder for a restored one.
    const topLevelNames = [...new Set(names.map((name) => name.split('/')[0]!))].sort(
      (a, b) => Number(a === 'tunery.db') - Number(b === 'tunery.db'),
    )
    for (const name of topLevelNames) await moveInto(path.join(staging, name), path.join(dataDir, name))
    await syncPath(dataDir)
    return manifest
  } finally {
    await rm(staging, { recursive: true, force: true })
    lock.release()
  }
}

const isFolder = async (file: string) => (await stat(file).catch(() => undefined))?.isDirectory() ?? false

/** The names in a data folder, but those of empty folders: volumes of their own may be mounted there. */
async function contentOf(dataDir: string): Promise<string[]> {
  const namesIn = async (folder: string) => {
    const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return []
      throw error
    })
    return names.filter((name) => !ignoredNames.test(name))
  }
  const content: string[] = []
  for (const name of await namesIn(dataDir)) {
    const file = path.join(dataDir, name)
    if (!(await isFolder(file)) || (await namesIn(file)).length > 0) content.push(name)
  }
  return content
}

/** Moves a file or folder; into a folder that is there, as a mounted volume cannot be replaced. */
async function moveInto(from: string, to: string): Promise<void> {
  if (!(await isFolder(to))) return await moveTree(from, to)
  for (const name of await readdir(from)) await moveTree(path.join(from, name), path.join(to, name))
  await syncPath(to)
}

/** Who signed out since the backup, and each link that was used or withdrawn since, would work again. */
async function signEveryoneOut(db: Db): Promise<void> {
  await db.deleteFrom('sessions').execute()
  await db.deleteFrom('sign_in_tokens').execute()
  await db.updateTable('shares').set({ revoked_at: Date.now() }).where('revoked_at', 'is', null).execute()
}

const damaged = (name: string) =>
  new BackupError(`The backup is damaged: ${name} is missing or not what was backed up. Nothing was restored.`)

async function verify(source: string, { files }: Manifest): Promise<void> {
  for (const { path: name, size_bytes, sha256 } of files) {
    const file = path.join(source, name)
    const stats = await lstat(file).catch(() => undefined)
    if (!stats?.isFile() || stats.size !== size_bytes || (await hashFile(file)) !== sha256) throw damaged(name)
  }
}

/** Copies one file and reads it back, to detect a failing disk now. */
async function copyVerified(
  source: string,
  target: string,
  { path: name, sha256 }: Manifest['files'][number],
): Promise<void> {
  const file = path.join(target, name)
  await copyInto(path.join(source, name), file)
  await syncPath(file)
  if ((await hashFile(file)) !== sha256) throw damaged(name)
}

async function assertFreeSpace(dataDir: string, { files }: Manifest): Promise<void> {
  const needed = files.reduce((sum, { size_bytes }) => sum + size_bytes, 0)
  const { bavail, bsize } = await statfs(dataDir)
  const free = bavail * bsize
  if (free < needed)
    throw new BackupError(
      `The disk of ${dataDir} has ${Math.floor(free / 1e6)} MB free, and the backup takes ` +
        `${Math.ceil(needed / 1e6)} MB. Make room.`,
    )
}
