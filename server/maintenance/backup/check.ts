import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import { databaseFile, openDatabase } from '../../platform/db/open.ts'
import { findDamage } from '../../platform/db/snapshot.ts'
import { hashFile, type OwnedFile } from '../../platform/storage/durable-files.ts'
import { admission, WrongInstallation } from '../../platform/storage/installation.ts'
import { missingFrom, missingMessage, ownedFiles, withStorage } from './files.ts'

/**
 * Checks the data folder, and with a storage that machines share all objects that rows name; returns the problems as
 * sentences. Safe while the server runs.
 */
export async function checkDataDir(dataDir: string, storage_url?: string): Promise<string[]> {
  const file = databaseFile(dataDir)
  if (!existsSync(file)) return [`There is no database in ${dataDir}.`]
  const damage = findDamage(file)
  if (damage.length > 0) return damage
  const db = await openDatabase(dataDir, undefined, admission({ data_dir: dataDir })).catch((error) => {
    if (error instanceof WrongInstallation) return error.message
    throw error
  })
  if (typeof db === 'string') return [db]
  try {
    const files = await ownedFiles(db)
    const problems =
      storage_url === undefined
        ? missingFrom(dataDir, files).map((file) => ({ file, problem: missingMessage(file) }))
        : await checkStorage(dataDir, files, storage_url)
    for (const file of files)
      if (file.sha256 && !(await hasHash(path.join(dataDir, file.path), file.sha256)))
        problems.push({ file: file, problem: hashMismatch(file) })
    // Ignore files whose row was deleted during the check.
    const still = new Set((await ownedFiles(db)).map((ownedFile) => ownedFile.path))
    return problems.filter((problem) => still.has(problem.file.path)).map(({ problem }) => problem)
  } finally {
    await db.destroy()
  }
}

/** Reads every object once, into a temporary folder on the disk of the data folder. */
async function checkStorage(dataDir: string, files: OwnedFile[], storage_url: string) {
  const fetching = path.join(dataDir, 'fetching')
  await mkdir(fetching, { recursive: true, mode: 0o700 })
  const scratch = await mkdtemp(path.join(fetching, 'check-'))
  const problems: { file: OwnedFile; problem: string }[] = []
  try {
    await withStorage(scratch, storage_url, async ({ artifacts }) => {
      for (const key of new Set(files.map((file) => file.key))) {
        const within = files.filter((file) => file.key === key)
        try {
          await artifacts.ensureLocal(key)
          for (const file of missingFrom(scratch, within))
            problems.push({ file, problem: `${file.path} of ${file.owner} is missing in the storage.` })
          for (const file of within)
            if (file.sha256 && !(await hasHash(path.join(scratch, file.path), file.sha256)))
              problems.push({ file, problem: hashMismatch(file) })
        } catch (error) {
          if (!(error instanceof ApiError)) throw error
          problems.push({ file: within[0]!, problem: error.message })
        }
        await artifacts.removeLocal(key)
      }
    })
    return problems
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

export const hashMismatch = ({ path, owner }: OwnedFile) =>
  `${path} of ${owner} has changed since it was stored: its SHA-256 is different.`

/** Also true for a missing file, which is reported separately. */
async function hasHash(file: string, sha256: string): Promise<boolean> {
  try {
    return (await hashFile(file)) === sha256
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return true
    throw error
  }
}
