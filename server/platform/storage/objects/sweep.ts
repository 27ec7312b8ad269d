// Removes orphans: objects that no row names, left by a crash between publishing and its transaction, or by a deletion
// while the storage was away. The object `orphans.json` remembers since when; only after a week they are removed.
import { randomUUID } from 'node:crypto'
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { z } from 'zod'
import { runPeriodically } from '../../../../lib/periodic.ts'
import { day_ms, hour_ms } from '../../../../lib/utc-day.ts'
import { WrongInstallation } from '../installation.ts'
import { newestTime, orphanAge_ms, setAside_ms } from '../orphans.ts'
import { claimStorage, isNamed, type Owner, ownFolders } from './owner.ts'
import type { ObjectStore } from './store.ts'

const recordKey = 'orphans.json'
/** Since when each key is known to be an orphan, in unix milliseconds. */
const Since = z.record(z.string(), z.number())
type Since = z.infer<typeof Since>

export interface SweepOptions extends Owner {
  /** Runs `work` if no other server of the installation has, in this time. */
  oncePer?(name: string, every_ms: number, work: () => Promise<void>): Promise<void>
}

interface Options extends SweepOptions {
  store: ObjectStore
  /** The folder of fetches in progress. */
  staging: string
  log: Logger
}

export const startSweeping = (options: Options) =>
  runPeriodically(hour_ms, async () => {
    const { oncePer = (_name, _every_ms, work) => work() } = options
    try {
      await removeOldStaging(options)
      await oncePer('storage.sweep', hour_ms, async () => void (await sweep(options)))
    } catch (error) {
      options.log.warn({ err: error }, 'the sweep of the storage failed')
    }
  })

/** One sweep of the storage; returns the keys that it removed. */
export async function sweep(options: Options, now = Date.now()): Promise<string[]> {
  const { store, live, log } = options
  try {
    await claimStorage(options, options)
  } catch (error) {
    if (!(error instanceof WrongInstallation)) throw error
    log.error(`${error.message} Nothing is removed there meanwhile.`)
    return []
  }
  // The objects first, then the rows: what got its row in between is named by it.
  const old: string[] = []
  for (const folder of ownFolders)
    for await (const { key, modified_at } of store.list(folder)) if (modified_at < now - orphanAge_ms) old.push(key)
  const named = await live()
  const before = await readRecord(options)
  const since: Since = {}
  const removed: string[] = []
  for (const key of old) {
    if (isNamed(named, key)) continue
    const found_at = before[key] ?? now
    if (found_at > now - setAside_ms) since[key] = found_at
    else {
      await store.remove(key)
      removed.push(key)
    }
  }
  const added = Object.keys(since).filter((key) => before[key] === undefined)
  if (added.length > 0 || Object.keys(before).length > Object.keys(since).length) await writeRecord(options, since)
  await store.removeUnfinished(now - orphanAge_ms)
  if (added.length > 0)
    log.warn(
      { orphans: added.length, first: added[0], storage: store.name },
      `found objects that no row names; they are removed in ${setAside_ms / day_ms} days unless a row names them again`,
    )
  if (removed.length > 0)
    log.warn(
      { orphans: removed.length, first: removed[0], storage: store.name },
      'removed objects that no row has named for a week',
    )
  return removed
}

async function readRecord({ store, staging }: Options): Promise<Since> {
  if (!(await store.head(recordKey))) return {}
  return await withFile(staging, async (file) => {
    try {
      await store.get(recordKey, file)
      return Since.parse(JSON.parse(await readFile(file, 'utf8')))
    } catch (error) {
      // One that a kill has cut: the week begins again.
      if ((error as { code?: string }).code === 'stored_object_damaged' || error instanceof SyntaxError) return {}
      throw error
    }
  })
}

async function writeRecord({ store, staging }: Options, since: Since): Promise<void> {
  if (Object.keys(since).length === 0) return await store.remove(recordKey)
  await withFile(staging, async (file) => {
    await writeFile(file, JSON.stringify(since), { mode: 0o600 })
    await store.put(file, recordKey)
  })
}

async function withFile<T>(staging: string, work: (file: string) => Promise<T>): Promise<T> {
  const file = path.join(staging, randomUUID())
  await mkdir(staging, { recursive: true, mode: 0o700 })
  return await work(file).finally(() => rm(file, { force: true }))
}

/** Removes what killed fetches left: half copies of objects. Younger ones may be those of another process. */
async function removeOldStaging({ staging, log }: Options): Promise<void> {
  const names = await readdir(staging).catch(() => [])
  let removed = 0
  for (const name of names) {
    const target = path.join(staging, name)
    if ((await newestTime(target)) > Date.now() - orphanAge_ms) continue
    await rm(target, { recursive: true, force: true })
    removed++
  }
  if (removed > 0) log.info({ removed, from: staging }, 'removed what killed fetches had left')
}
