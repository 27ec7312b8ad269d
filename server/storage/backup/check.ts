import { existsSync } from 'node:fs'
import path from 'node:path'
import { databaseFile, openDatabase } from '../../db/open.ts'
import { findDamage } from '../../db/snapshot.ts'
import { hashFile, type OwnedFile } from '../durable-files.ts'
import { missingFrom, missingMessage, ownedFiles } from './files.ts'

/** Checks the data folder; returns its problems as sentences. Safe while the server runs. */
export async function checkDataDir(dataDir: string): Promise<string[]> {
  const file = databaseFile(dataDir)
  if (!existsSync(file)) return [`There is no database in ${dataDir}.`]
  const damage = findDamage(file)
  if (damage.length > 0) return damage
  const db = await openDatabase(dataDir)
  try {
    const files = await ownedFiles(db)
    const problems = missingFrom(dataDir, files).map((file) => ({ file, problem: missingMessage(file) }))
    for (const each of files)
      if (each.sha256 && !(await hasHash(path.join(dataDir, each.path), each.sha256)))
        problems.push({ file: each, problem: hashMismatch(each) })
    // Ignore files whose row was deleted during the check.
    const still = new Set((await ownedFiles(db)).map((each) => each.path))
    return problems.filter((each) => still.has(each.file.path)).map(({ problem }) => problem)
  } finally {
    await db.destroy()
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
