// Online backup of the data folder.
//
// First copy the usage journal: lines that are folded into the database meanwhile are then in both, and count once.
// Then take a consistent copy of the database, and hard-link every file that its rows name, so that a later deletion
// takes nothing from the backup. If a file was deleted before it was linked, copy the database again.
import { existsSync } from 'node:fs'
import { mkdir, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { databaseFile, lockDataDir } from '../../platform/db/open.ts'
import { copyDatabase, findDamage, openCopy } from '../../platform/db/snapshot.ts'
import { hashFile, type OwnedFile, syncPath } from '../../platform/storage/durable-files.ts'
import { hashMismatch } from './check.ts'
import {
  copyInto,
  filesIn,
  linkInto,
  missingFrom,
  missingMessage,
  ownedFiles,
  syncFolders,
  withStorage,
} from './files.ts'
import { BackupError, type Manifest, writeManifest } from './manifest.ts'

/** Most copies of the database when files are deleted meanwhile. */
const maxTries = 5

/**
 * Backs up the data folder into `target`, a new or empty folder. A failure leaves nothing there. With a storage that
 * machines share, the backup has what is in it too.
 */
export async function backUp(
  dataDir: string,
  target: string,
  tunery_version: string,
  storage_url?: string,
): Promise<Manifest> {
  if (!existsSync(databaseFile(dataDir)))
    throw new BackupError(`There is no database in ${dataDir}. Set TUNERY_DATA_DIR to the service's data folder.`)
  const isNewFolder = !existsSync(target)
  if (!isNewFolder && (await readdir(target)).length > 0)
    throw new BackupError(`${target} is not empty. A backup takes an empty folder.`)
  const lock = lockDataDir(dataDir, 'backup.lock')
  if (!lock) throw new BackupError('Another backup of this data folder is being made. Wait for its end.')
  const staging = path.join(dataDir, 'backup.part')
  try {
    // A killed backup leaves its hard links.
    await rm(staging, { recursive: true, force: true })
    await mkdir(target, { recursive: true, mode: 0o700 })
    return await writeBackup(staging, target, await gather(dataDir, staging, storage_url), tunery_version)
  } catch (error) {
    for (const name of isNewFolder ? ['.'] : await readdir(target))
      await rm(path.join(target, name), { recursive: true, force: true })
    throw error
  } finally {
    await rm(staging, { recursive: true, force: true })
    lock.release()
  }
}

/** Collects everything in a staging folder on the same filesystem, by hard links. Returns the files that rows name. */
async function gather(dataDir: string, staging: string, storage_url: string | undefined): Promise<OwnedFile[]> {
  const journal = (await filesIn(path.join(dataDir, 'usage'))).filter((name) => name.endsWith('.jsonl'))
  for (const name of journal)
    await ignoreMissing(() => copyInto(path.join(dataDir, 'usage', name), path.join(staging, 'usage', name)))
  await mkdir(staging, { recursive: true, mode: 0o700 })
  for (let tries = 1; ; tries++) {
    const files = await copyDatabaseChecked(dataDir, databaseFile(staging))
    for (const { path: name } of files)
      for (const file of await filesAt(dataDir, name))
        await ignoreMissing(() => linkInto(path.join(dataDir, file), path.join(staging, file)))
    await fetchMissing(staging, files, storage_url)
    const missingFiles = missingFrom(staging, files)
    if (missingFiles.length === 0) return files
    if (tries === maxTries) assertNoProblems(missingFiles.map(missingMessage))
  }
}

/** Fetches what is only in the storage. */
async function fetchMissing(staging: string, files: OwnedFile[], storage_url: string | undefined): Promise<void> {
  if (storage_url === undefined) return
  await withStorage(staging, storage_url, async ({ artifacts }) => {
    for (const key of new Set(missingFrom(staging, files, true).map((ownedFile) => ownedFile.key)))
      await artifacts.ensureLocal(key)
  })
}

/** Copies the database, checks the copy, and returns the files that its rows name. */
async function copyDatabaseChecked(dataDir: string, copy: string): Promise<OwnedFile[]> {
  await rm(copy, { force: true })
  const damage = (await copyDatabase(databaseFile(dataDir), copy)) ?? findDamage(copy)
  if (damage.length > 0)
    throw new BackupError(
      `${damage.join('\n')}\nNothing was backed up. './tunery restore' brings an earlier backup back.`,
    )
  const db = openCopy(copy)
  return ownedFiles(db).finally(() => db.destroy())
}

function assertNoProblems(problems: string[]): void {
  if (problems.length > 0)
    throw new BackupError(
      `${problems.join('\n')}\nNothing was backed up. ` +
        'Restore these files, or delete what needs them: it no longer works.',
    )
}

/** The path of a file, or of all files in a folder, relative to the data folder. */
async function filesAt(dataDir: string, name: string): Promise<string[]> {
  try {
    return (await filesIn(path.join(dataDir, name))).map((file) => path.join(name, file))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOTDIR') return [name]
    throw error
  }
}

async function ignoreMissing(work: () => Promise<void>): Promise<void> {
  await work().catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
  })
}

/** Moves the staged files to `target` durably; writes the manifest last, which marks the backup as complete. */
async function writeBackup(
  staging: string,
  target: string,
  owned: OwnedFile[],
  tunery_version: string,
): Promise<Manifest> {
  const byPath = new Map(owned.filter((ownedFile) => ownedFile.sha256).map((ownedFile) => [ownedFile.path, ownedFile]))
  const files: Manifest['files'] = []
  for (const name of await filesIn(staging)) {
    const file = path.join(target, name)
    await linkInto(path.join(staging, name), file)
    files.push({ path: name, size_bytes: await syncPath(file), sha256: await hashFile(file) })
  }
  assertNoProblems(
    files.flatMap(({ path: name, sha256 }) =>
      (byPath.get(name)?.sha256 ?? sha256) === sha256 ? [] : [hashMismatch(byPath.get(name)!)],
    ),
  )
  await syncFolders(
    target,
    files.map((file) => file.path),
  )
  const manifest: Manifest = {
    format: 'tunery-backup',
    version: 1,
    created_at: new Date().toISOString(),
    tunery_version,
    files,
  }
  await writeManifest(target, manifest)
  return manifest
}
