// The bound of the local folder: what was used least recently leaves, but never what is in use or not yet published.
import { renameSync, statSync } from 'node:fs'
import { readdir, rm, stat, statfs, utimes } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { createMutex } from '../../../../lib/mutex.ts'
import { runPeriodically } from '../../../../lib/periodic.ts'

export interface Cache {
  /** Keeps a key here until the function that it returns is called. */
  hold(key: string): () => void
  /** Makes room for bytes that are about to be fetched. */
  makeRoom(bytes: number): Promise<void>
  /** What is here, least recently used first. */
  entries(): Promise<CacheEntry[]>
  /** Something was added: bounds the cache soon. */
  changed(): void
  /** Bounds the cache every minute until closed. */
  start(): { close(): Promise<void> }
}

/** What was used in these minutes may be about to be opened; processes that hold something renew its time. */
const minute_ms = 60_000
const inUse_ms = 5 * minute_ms
const folders = ['datasets', 'drafts', 'files', 'models', 'exports', 'tinker-checkpoints']
/** Names of files that are still being written. */
const unfinished = /\.(part|upload|fetched|evicted)$/

interface Options {
  dataDir: string
  max_mb: number
  min_free_mb: number
  /** Whether a key is complete in the storage. Asked for each entry right before it leaves. */
  isStored(key: string): Promise<boolean>
  log: Logger
  now?: () => number
}

interface CacheEntry {
  key: string
  file: string
  size_bytes: number
  used_at: number
}

export function createCache({ dataDir, max_mb, min_free_mb, isStored, log, now = Date.now }: Options): Cache {
  const held = new Map<string, number>()
  const serialize = createMutex()
  let scheduled = false

  async function entries(): Promise<CacheEntry[]> {
    const entries: CacheEntry[] = []
    for (const folder of folders)
      for (const entry of await readdir(path.join(dataDir, folder), { withFileTypes: true }).catch(() => [])) {
        if (unfinished.test(entry.name) || !(entry.isFile() || entry.isDirectory())) continue
        const file = path.join(dataDir, folder, entry.name)
        const stats = await stat(file).catch(() => undefined)
        if (!stats) continue
        const key = `${folder}/${entry.name}${entry.isDirectory() ? '/' : ''}`
        const size_bytes = entry.isDirectory() ? await sizeOf(file) : stats.size
        entries.push({ key, file, size_bytes, used_at: lastUse(stats) })
      }
    return entries.sort((a, b) => a.used_at - b.used_at)
  }

  /** Bytes that the disk lacks to keep its free space after `coming` more. */
  async function lacking(coming: number): Promise<number> {
    const { bavail, bsize } = await statfs(dataDir)
    return min_free_mb * 1e6 + coming - Number(bavail) * Number(bsize)
  }

  /** Removes what a killed server was evicting; a live one, on the same data folder, does no more. */
  async function endEvictions(): Promise<void> {
    for (const folder of folders)
      for (const name of await readdir(path.join(dataDir, folder)).catch(() => []))
        if (name.endsWith('.evicted')) await rm(path.join(dataDir, folder, name), { recursive: true, force: true })
  }

  async function evict(coming: number): Promise<void> {
    await endEvictions()
    const all = await entries()
    const used = all.reduce((sum, { size_bytes }) => sum + size_bytes, 0)
    let excess = Math.max(used + coming - max_mb * 1e6, await lacking(coming))
    for (const { key, file, size_bytes, used_at } of all) {
      if (excess <= 0) return
      if (held.has(key) || used_at > now() - inUse_ms) continue
      if (!(await isStored(key))) continue
      const leaving = `${file}.evicted`
      // It may have been used meanwhile. Nothing waits between this look and its new name, so nobody finds half a
      // folder.
      if (held.has(key) || !renameUnless(file, leaving, now() - inUse_ms)) continue
      await rm(leaving, { recursive: true, force: true })
      excess -= size_bytes
      log.debug({ key, size_bytes }, 'a file left the cache; the storage has it')
    }
  }

  const bound = (coming = 0) =>
    serialize(() => evict(coming)).catch((error: Error) => log.warn({ err: error }, 'the cache could not be bounded'))

  async function renewHolds(): Promise<void> {
    const time = new Date(now())
    for (const key of held.keys()) {
      const file = path.join(dataDir, key)
      const stats = await stat(file).catch(() => undefined)
      if (stats) await utimes(file, time, stats.mtime).catch(() => {})
    }
  }

  return {
    hold(key) {
      held.set(key, (held.get(key) ?? 0) + 1)
      let released = false
      return () => {
        if (released) return
        released = true
        const left = held.get(key)! - 1
        if (left > 0) held.set(key, left)
        else held.delete(key)
      }
    },
    entries,
    makeRoom: (bytes) => bound(bytes),
    changed() {
      if (scheduled) return
      scheduled = true
      setTimeout(() => {
        scheduled = false
        void bound()
      }, 1000).unref()
    },
    start: () =>
      runPeriodically(minute_ms, async () => {
        await renewHolds()
        await bound()
      }),
  }
}

/** Renames what was last used before `since`. */
function renameUnless(file: string, to: string, since: number): boolean {
  const stats = statSync(file, { throwIfNoEntry: false })
  if (!stats || lastUse(stats) > since) return false
  renameSync(file, to)
  return true
}

const lastUse = ({ atimeMs, mtimeMs }: { atimeMs: number; mtimeMs: number }) => Math.max(atimeMs, mtimeMs)

async function sizeOf(folder: string): Promise<number> {
  let bytes = 0
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []))
    if (entry.isFile()) bytes += (await stat(path.join(entry.parentPath, entry.name)).catch(() => undefined))?.size ?? 0
  return bytes
}
