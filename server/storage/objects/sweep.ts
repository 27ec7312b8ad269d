// Removes orphans: objects that no row names, left by a crash between publishing and its transaction, or by a deletion
// while the storage was away.

import { randomUUID } from 'node:crypto'
import { mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { runPeriodically } from '../../../lib/periodic.ts'
import { day_ms, hour_ms } from '../../../lib/utc-day.ts'
import type { Cache } from './cache.ts'
import type { ObjectStore } from './store.ts'

/** The folders that are the service's. Others in the same storage are left alone. */
const folders = ['batches/', 'datasets/', 'drafts/', 'exports/', 'files/', 'models/', 'runs/', 'uploads/']
/** Younger objects may be those of a server that is publishing now, and has no row yet. */
export const orphanAge_ms = day_ms
const ownerKey = 'installation'

export interface SweepOptions {
  /** Names the installation: another one's storage is never swept. */
  owner: string
  /** All keys that rows name. */
  live(): Promise<Set<string>>
  /** Runs `work` if no other server of the installation has, in this time. */
  oncePer?(name: string, every_ms: number, work: () => Promise<void>): Promise<void>
}

interface Options extends SweepOptions {
  store: ObjectStore
  /** The folder of fetches in progress. */
  staging: string
  cache: Pick<Cache, 'entries'>
  removeLocal(key: string): Promise<void>
  log: Logger
}

export const startSweeping = (options: Options) =>
  runPeriodically(hour_ms, async () => {
    const { oncePer = (_name, _every_ms, work) => work() } = options
    try {
      await sweepLocal(options)
      await oncePer('storage.sweep', hour_ms, async () => void (await sweep(options)))
    } catch (error) {
      options.log.warn({ err: error }, 'the sweep of the storage failed')
    }
  })

/** Removes from this machine what killed fetches left, and copies of what another machine has deleted. */
export async function sweepLocal({ store, staging, cache, owner, live, removeLocal }: Options, now = Date.now()) {
  await removeOldStaging(staging, now)
  const old = (await cache.entries()).filter(({ used_at }) => used_at < now - orphanAge_ms)
  if (old.length === 0 || (await ownerOf(store, staging, owner)) !== owner) return
  const named = await live()
  for (const { key } of old) if (!isNamed(named, key)) await removeLocal(key)
}

/** One sweep of the storage; returns the keys that it removed. */
export async function sweep(options: Options, now = Date.now()): Promise<string[]> {
  const { store, staging, owner, live, log } = options
  const found = await ownerOf(store, staging, owner)
  if (found !== owner) {
    log.warn(
      `The storage ${store.name} belongs to another installation (${found}): its objects are never removed by this ` +
        'one. Give each installation its own prefix in TUNERY_STORAGE_URL.',
    )
    return []
  }
  // The objects first, then the rows: what got its row in between is named by it.
  const old: string[] = []
  for (const folder of folders)
    for await (const { key, modified_at } of store.list(folder)) if (modified_at < now - orphanAge_ms) old.push(key)
  const named = await live()
  const removed: string[] = []
  for (const key of old)
    if (!isNamed(named, key)) {
      await store.remove(key)
      removed.push(key)
    }
  await store.removeUnfinished(now - orphanAge_ms)
  if (removed.length > 0) log.info({ objects: removed.length }, 'removed objects that nothing names')
  return removed
}

/** Whether a row names the key, or a folder that it is in. */
export function isNamed(named: Set<string>, key: string): boolean {
  if (named.has(key)) return true
  for (let end = key.indexOf('/'); end >= 0; end = key.indexOf('/', end + 1))
    if (named.has(key.slice(0, end + 1))) return true
  return false
}

/** The installation whose storage this is; `owner` if it was nobody's. */
async function ownerOf(store: ObjectStore, staging: string, owner: string): Promise<string> {
  const file = path.join(staging, randomUUID())
  await mkdir(staging, { recursive: true, mode: 0o700 })
  try {
    if (await store.head(ownerKey)) {
      await store.get(ownerKey, file)
      return (await readFile(file, 'utf8')).trim()
    }
    await writeFile(file, owner, { mode: 0o600 })
    await store.put(file, ownerKey)
    return owner
  } finally {
    await rm(file, { force: true })
  }
}

/** Removes what killed fetches left. Only what is older than an hour: another process may be fetching. */
async function removeOldStaging(staging: string, now: number): Promise<void> {
  for (const name of await readdir(staging).catch(() => [])) {
    const target = path.join(staging, name)
    if ((await newestTime(target)) < now - hour_ms) await rm(target, { recursive: true, force: true })
  }
}

async function newestTime(target: string): Promise<number> {
  const within = await readdir(target, { recursive: true }).catch(() => [])
  let newest = 0
  for (const file of [target, ...within.map((each) => path.join(target, each))])
    newest = Math.max(newest, (await stat(file).catch(() => undefined))?.mtimeMs ?? 0)
  return newest
}
