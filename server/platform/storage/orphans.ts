// Orphans: files of the data folder that no row names. A crash between a file and its row leaves them, but a database
// that is not the right one makes everything an orphan. So nothing younger than a day is taken, and what is taken is
// set aside for a week before it is removed.
import { mkdir, readdir, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { day_ms } from '../../../lib/utc-day.ts'
import type { Db } from '../db/open.ts'
import { moveTree } from './durable-files.ts'

/** Younger files may be those of work that has no row yet. */
export const orphanAge_ms = day_ms
/** How long orphans can still be brought back. */
export const setAside_ms = 7 * day_ms

/**
 * A folder of the data folder, and the table whose rows name its entries: `<id>`, or `<id>` and anything after a dot.
 */
export interface OwnedFolder {
  folder: string
  table:
    | 'batches'
    | 'datasets'
    | 'exports'
    | 'files'
    | 'models'
    | 'tinker_checkpoints'
    | 'tinker_sessions'
    | 'tuning_jobs'
    | 'uploads'
}

export interface Orphans {
  /** Sets aside what no row names and is older than a day, and removes what was set aside a week ago. */
  sweep(folders: readonly OwnedFolder[]): Promise<void>
  /** Removes what work has left that has ended, as its row says. `folder`: relative to the data folder. */
  removeEnded(folder: string, hasEnded: (id: string, name: string) => Promise<boolean>): Promise<void>
}

const orphansFolder = 'orphans'
const idsPerQuery = 500

interface Options {
  db: Db
  dataDir: string
  log: Logger
  now(): number
}

export function createOrphans({ db, dataDir, log, now }: Options): Orphans {
  const namesIn = (folder: string) => readdir(path.join(dataDir, folder)).catch(ignoreMissing)

  /** Entries of a folder that are older than a day and that no row names. */
  async function find({ folder, table }: OwnedFolder): Promise<string[]> {
    const names = (await namesIn(folder)).filter((name) => name !== 'lost+found')
    const orphans: string[] = []
    for (let at = 0; at < names.length; at += idsPerQuery) {
      const some = names.slice(at, at + idsPerQuery)
      const rows = await db.selectFrom(table).select('id').where('id', 'in', some.map(idOf)).execute()
      const named = new Set(rows.map(({ id }) => id))
      for (const name of some)
        if (!named.has(idOf(name)) && (await newestTime(path.join(dataDir, folder, name))) < now() - orphanAge_ms)
          orphans.push(name)
    }
    return orphans
  }

  async function setAside(owned: OwnedFolder): Promise<void> {
    const { folder } = owned
    const orphans = await find(owned)
    if (orphans.length === 0) return
    const day = new Date(now()).toISOString().slice(0, 10)
    const target = path.join(dataDir, orphansFolder, day, folder)
    await mkdir(target, { recursive: true, mode: 0o700 })
    for (const name of orphans) await moveTree(path.join(dataDir, folder, name), await freeName(target, name))
    log.warn(
      { orphans: orphans.length, first: orphans[0], from: path.join(dataDir, folder), to: target },
      `set aside files that no row names; they are removed in ${setAside_ms / day_ms} days, unless they are moved back`,
    )
  }

  async function removeExpired(): Promise<void> {
    for (const day of await namesIn(orphansFolder)) {
      const since = Date.parse(day)
      if (Number.isNaN(since) || since + day_ms + setAside_ms > now()) continue
      const folder = path.join(dataDir, orphansFolder, day)
      const entries = await readdir(folder, { withFileTypes: true })
      // A stray file among the folders counts for itself.
      const counts = entries.map(async (entry) =>
        entry.isDirectory() ? (await readdir(path.join(folder, entry.name))).length : 1,
      )
      const orphans = (await Promise.all(counts)).reduce((sum, count) => sum + count, 0)
      await rm(folder, { recursive: true, force: true })
      log.warn({ orphans, from: folder }, 'removed files that no row names, set aside a week ago')
    }
  }

  return {
    async sweep(folders) {
      for (const work of [...folders.map((owned) => () => setAside(owned)), removeExpired])
        await work().catch((error) =>
          log.warn({ err: error }, 'orphans could not be set aside; the next sweep retries'),
        )
    },

    async removeEnded(folder, hasEnded) {
      const removed: string[] = []
      for (const name of await namesIn(folder)) {
        if (!(await hasEnded(idOf(name), name))) continue
        await rm(path.join(dataDir, folder, name), { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
        removed.push(name)
      }
      if (removed.length > 0)
        log.info(
          { removed: removed.length, first: removed[0], from: path.join(dataDir, folder) },
          'removed what work that has ended had left',
        )
    },
  }
}

/** The id that names an entry: all before its first dot. */
const idOf = (name: string) => name.split('.')[0]!

/** A path in the folder that is not taken. */
async function freeName(folder: string, name: string): Promise<string> {
  const taken = new Set(await readdir(folder))
  for (let tries = 1; ; tries++) {
    const free = tries === 1 ? name : `${name}.${tries}`
    if (!taken.has(free)) return path.join(folder, free)
  }
}

/** When a file, or anything in a folder, was last changed, in unix milliseconds; 0 if it is gone. */
export async function newestTime(target: string): Promise<number> {
  const within = await readdir(target, { recursive: true }).catch(() => [])
  let newest = 0
  for (const file of [target, ...within.map((name) => path.join(target, name))])
    newest = Math.max(newest, (await stat(file).catch(() => undefined))?.mtimeMs ?? 0)
  return newest
}

function ignoreMissing(error: NodeJS.ErrnoException): string[] {
  if (error.code === 'ENOENT') return []
  throw error
}
