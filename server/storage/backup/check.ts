import { existsSync } from 'node:fs'
import path from 'node:path'
import { fileOf, openDatabase } from '../../db/open.ts'
import { findDamage } from '../../db/snapshot.ts'
import { type Held, hashFile } from '../durable-files.ts'
import { heldFiles, missing, missingFrom } from './files.ts'

/** All that is wrong with what the data folder holds, in sentences. It may be asked beside a running server. */
export async function checkDataDir(dataDir: string): Promise<string[]> {
  const file = fileOf(dataDir)
  if (!existsSync(file)) return [`There is no database in ${dataDir}.`]
  const damage = findDamage(file)
  if (damage.length > 0) return damage
  const db = await openDatabase(dataDir)
  try {
    const held = await heldFiles(db)
    const wrong: { held: Held; problem: string }[] = missingFrom(dataDir, held).map((each) => ({
      held: each,
      problem: missing(each),
    }))
    for (const each of held)
      if (each.sha256 && !(await hasHash(path.join(dataDir, each.path), each.sha256)))
        wrong.push({ held: each, problem: changed(each) })
    // What was deleted while it was looked at is no loss.
    const still = new Set((await heldFiles(db)).map((each) => each.path))
    return wrong.filter((each) => still.has(each.held.path)).map(({ problem }) => problem)
  } finally {
    await db.destroy()
  }
}

export const changed = ({ path, of }: Held) =>
  `${path} of ${of} is not what it was when it was stored: its SHA-256 is another.`

/** True also of a file that is not there: that is told by itself. */
async function hasHash(file: string, sha256: string): Promise<boolean> {
  try {
    return (await hashFile(file)) === sha256
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return true
    throw error
  }
}
