// A copy of all that a service must keep, made beside the running service.
//
// The journal of usage is copied first: what is folded into the database meanwhile is then in both, and counts once.
// Then comes the database, as it is at one moment; then every file that its rows name gets a second name at once, so
// that deleting it takes nothing from the backup. What was deleted before that is found missing, and the database is
// copied again.
import { existsSync } from 'node:fs'
import { mkdir, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { fileOf, lockDataDir } from '../../db/open.ts'
import { copyDatabase, findDamage, openCopy } from '../../db/snapshot.ts'
import { type Held, hashFile, syncPath } from '../durable-files.ts'
import { changed } from './check.ts'
import { copyInto, filesIn, heldFiles, linkInto, missing, missingFrom, syncFolders } from './files.ts'
import { type Manifest, writeManifest } from './manifest.ts'

/** How often the database is copied again because something was deleted just then. */
const maxTries = 5

/** Backs the data folder up into `target`, a new or empty folder. Leaves nothing there where it fails. */
export async function backUp(dataDir: string, target: string, tunery_version: string): Promise<Manifest> {
  if (!existsSync(fileOf(dataDir)))
    throw new BackupError(`There is no database in ${dataDir}. Set TUNERY_DATA_DIR to the service's data folder.`)
  const fresh = !existsSync(target)
  if (!fresh && (await readdir(target)).length > 0)
    throw new BackupError(`${target} is not empty. A backup takes a folder of its own.`)
  const lock = lockDataDir(dataDir, 'backup.lock')
  if (!lock) throw new BackupError('Another backup of this data folder is being made. Wait for its end.')
  const staging = path.join(dataDir, 'backup.part')
  try {
    // One that was killed left its second names.
    await rm(staging, { recursive: true, force: true })
    await mkdir(target, { recursive: true, mode: 0o700 })
    return await bring(staging, target, await gather(dataDir, staging), tunery_version)
  } catch (error) {
    for (const name of fresh ? ['.'] : await readdir(target))
      await rm(path.join(target, name), { recursive: true, force: true })
    throw error
  } finally {
    await rm(staging, { recursive: true, force: true })
    lock.release()
  }
}

/**
 * Gathers everything in a folder beside what it comes from, where a second name costs nothing. Returns what rows name
 * of it.
 */
async function gather(dataDir: string, staging: string): Promise<Held[]> {
  const journal = (await filesIn(path.join(dataDir, 'usage'))).filter((name) => name.endsWith('.jsonl'))
  for (const name of journal)
    await unlessGone(() => copyInto(path.join(dataDir, 'usage', name), path.join(staging, 'usage', name)))
  await mkdir(staging, { recursive: true, mode: 0o700 })
  for (let tries = 1; ; tries++) {
    const held = await copyRows(dataDir, fileOf(staging))
    for (const { path: name } of held)
      for (const file of await filesAt(dataDir, name))
        await unlessGone(() => linkInto(path.join(dataDir, file), path.join(staging, file)))
    const lost = missingFrom(staging, held)
    if (lost.length === 0) return held
    if (tries === maxTries) refuse(lost.map(missing))
  }
}

/** Copies the database, checks the copy, and returns what its rows name outside of it. */
async function copyRows(dataDir: string, copy: string): Promise<Held[]> {
  await rm(copy, { force: true })
  const damage = (await copyDatabase(fileOf(dataDir), copy)) ?? findDamage(copy)
  if (damage.length > 0)
    throw new BackupError(
      `${damage.join('\n')}\nNothing was backed up. './tunery restore' brings an earlier backup back.`,
    )
  const db = openCopy(copy)
  return heldFiles(db).finally(() => db.destroy())
}

function refuse(problems: string[]): void {
  if (problems.length > 0)
    throw new BackupError(
      `${problems.join('\n')}\nNothing was backed up. Restore these files, or delete what needs them, which is of no use any more.`,
    )
}

/** A file's own path, or those of all files in a folder; relative to the data folder. */
async function filesAt(dataDir: string, name: string): Promise<string[]> {
  try {
    return (await filesIn(path.join(dataDir, name))).map((file) => path.join(name, file))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOTDIR') return [name]
    throw error
  }
}

async function unlessGone(work: () => Promise<void>): Promise<void> {
  await work().catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
  })
}

/** Brings what was gathered to where the backup is to be, durably, and says last that it is whole. */
async function bring(staging: string, target: string, held: Held[], tunery_version: string): Promise<Manifest> {
  const known = new Map(held.filter((each) => each.sha256).map((each) => [each.path, each]))
  const files: Manifest['files'] = []
  for (const name of await filesIn(staging)) {
    const file = path.join(target, name)
    await linkInto(path.join(staging, name), file)
    files.push({ path: name, size_bytes: await syncPath(file), sha256: await hashFile(file) })
  }
  refuse(
    files.flatMap(({ path: name, sha256 }) =>
      (known.get(name)?.sha256 ?? sha256) === sha256 ? [] : [changed(known.get(name)!)],
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

/** Why there is no backup, or why it is not restored; for the operator, with what to do. */
export class BackupError extends Error {}
