// A migrated SQLite database that tests begin with: copying it takes a tenth of the time of the migrations.
import { createHash } from 'node:crypto'
import { copyFileSync, existsSync, globSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'
import { databaseFile, openDatabase } from '../../server/platform/db/open.ts'

/** Cached for later runs by a hash of the sources that make it. */
async function templateFile(): Promise<string> {
  const hash = createHash('sha256')
  for (const file of globSync('server/platform/db/**/*.ts', { cwd: root }).sort())
    hash.update(readFileSync(path.join(root, file)))
  const folder = path.join(root, '.local/test-models', `database-${hash.digest('hex').slice(0, 12)}`)
  if (existsSync(folder)) return databaseFile(folder)
  mkdirSync(path.dirname(folder), { recursive: true })
  const fresh = mkdtempSync(`${folder}-`)
  await (await openDatabase(fresh)).destroy()
  try {
    renameSync(fresh, folder)
  } catch {
    // Another process has made it meanwhile.
    rmSync(fresh, { recursive: true })
  }
  return databaseFile(folder)
}

let template: Promise<string> | undefined

/** Gives a new data folder its database, and returns the folder. */
export async function withDatabase(dataDir: string): Promise<string> {
  template ??= templateFile()
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  copyFileSync(await template, databaseFile(dataDir))
  return dataDir
}
