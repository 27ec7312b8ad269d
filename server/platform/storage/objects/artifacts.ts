// Files that database rows name, wherever they are kept. A key is the path in the data folder, with a slash at its end
// for a folder: `datasets/ds_1.jsonl`, `models/mdl_1/`. Without a shared storage the data folder is all there is. With
// one, it is a cache: rows name only what was published, and what is not here is fetched when it is used.
import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, rm, stat, utimes } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { moveTree, syncPath } from '../durable-files.ts'
import { type Cache, createCache } from './cache.ts'
import {
  type FolderManifest,
  filesOfFolder,
  manifestName,
  readFolderManifest,
  writeFolderManifest,
} from './folder-manifest.ts'
import { claimStorage, type Owner } from './owner.ts'
import { hashError, type ObjectStore } from './store.ts'
import { type SweepOptions, startSweeping } from './sweep.ts'

/** Keeps files in the local folder until it is released. */
export interface Hold {
  release(): void
}

export interface Artifacts {
  /** Whether there is a storage that other machines share. */
  readonly shared: boolean
  /** The local path of a key, whether or not it is there. */
  pathOf(key: string): string
  /**
   * Uploads local files or folders. Call it before the transaction that makes a row name them: a crash in between
   * leaves an orphan, which the sweep removes, and never a row without its bytes. Throws storage_unavailable.
   */
  publish(...keys: string[]): Promise<void>
  /**
   * Fetches what is not here, verified by hash, and resolves with the local path. It stays for some minutes, and for
   * longer while used again or held. A key that is nowhere has a path too: its reader finds no file. Takes the path of
   * a local file too, for the artifact that it is in; other paths, such as those of base models, are left alone.
   */
  ensureLocal(keyOrPath: string): Promise<string>
  /** The same for several keys or paths, which then stay until released. */
  hold(keysOrPaths: string[]): Promise<Hold>
  /** For a folder that grows until it is removed: fetches the published one unless what is here is as large. */
  ensureLargest(key: string): Promise<void>
  /** Removes files or folders, here and in the storage. A storage that is away keeps an orphan until the sweep. */
  remove(...keys: string[]): Promise<void>
  /** Removes the local copy alone, and never what other machines see. */
  removeLocal(...keys: string[]): Promise<void>
  /**
   * A URL for downloading a published file from the storage itself; undefined where downloads go through the service.
   */
  downloadUrl(key: string, filename: string): Promise<string | undefined>
  /** Why the storage cannot be used now; undefined if it can. Asks it every few seconds at most. */
  problem(): Promise<string | undefined>
  /** Names the storage after the installation. Throws WrongInstallation for that of another one. */
  claim(owner: Owner): Promise<void>
  /**
   * Bounds the cache and removes orphans, until closed.
   */
  start(options: SweepOptions): { close(): Promise<void> }
  /** The storage itself; undefined without one. */
  readonly store: ObjectStore | undefined
  close(): void
}

/** Files sent or fetched at once, of one folder. */
const concurrency = 3
const problem_ms = 5000

interface ArtifactOptions {
  dataDir: string
  store: ObjectStore | undefined
  cache_mb: number
  min_free_mb: number
  /** Whether downloads may go to the storage itself. */
  redirect: boolean
  log: Logger
}

export function createArtifacts({ store, ...options }: ArtifactOptions): Artifacts {
  return store ? new SharedArtifacts({ ...options, store }) : new LocalArtifacts(options.dataDir)
}

/** Artifacts of this machine alone: what is published stays where it is. */
class LocalArtifacts implements Artifacts {
  readonly shared: boolean = false
  readonly store: ObjectStore | undefined = undefined
  protected readonly dataDir: string

  constructor(dataDir: string) {
    this.dataDir = dataDir
  }

  pathOf(key: string): string {
    return path.isAbsolute(key) ? key : path.join(this.dataDir, key)
  }

  async publish(..._keys: string[]): Promise<void> {}

  async ensureLocal(keyOrPath: string): Promise<string> {
    return this.pathOf(keyOrPath)
  }

  async hold(_keysOrPaths: string[]): Promise<Hold> {
    return { release() {} }
  }

  async ensureLargest(_key: string): Promise<void> {}

  async remove(...keys: string[]): Promise<void> {
    await this.removeLocal(...keys)
  }

  async removeLocal(...keys: string[]): Promise<void> {
    for (const key of keys) await rm(this.pathOf(key), { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
  }

  async downloadUrl(_key: string, _filename: string): Promise<string | undefined> {
    return undefined
  }

  async problem(): Promise<string | undefined> {
    return undefined
  }

  async claim(_owner: Owner): Promise<void> {}

  start(_options: SweepOptions): { close(): Promise<void> } {
    return { close: async () => {} }
  }

  close(): void {}
}

/** Artifacts in a storage that several machines share, with the data folder as their cache. */
class SharedArtifacts extends LocalArtifacts {
  override readonly shared = true
  override readonly store: ObjectStore
  private readonly options: Omit<ArtifactOptions, 'store'>
  private readonly cache: Cache
  /** Fetches in progress, so that two readers share one. */
  private readonly fetching = new Map<string, Promise<void>>()
  private readonly staging: string
  private asked = { at: 0, problem: Promise.resolve<string | undefined>(undefined) }

  constructor({ store, ...options }: ArtifactOptions & { store: ObjectStore }) {
    super(options.dataDir)
    const { dataDir, cache_mb: max_mb, min_free_mb, log } = options
    this.store = store
    this.options = options
    this.cache = createCache({ dataDir, max_mb, min_free_mb, isStored: (key) => this.isStored(key), log })
    this.staging = path.join(dataDir, 'fetching')
  }

  override async publish(...keys: string[]): Promise<void> {
    const releases = keys.map(this.cache.hold)
    try {
      for (const key of keys) await this.publishOne(key)
    } finally {
      for (const release of releases) release()
    }
    this.cache.changed()
  }

  override async ensureLocal(keyOrPath: string): Promise<string> {
    const key = keyOf(keyOrPath, this.dataDir)
    if (key === undefined) return keyOrPath
    const target = this.pathOf(key)
    const release = this.cache.hold(key)
    try {
      const now = new Date()
      // The time of its last use, which other processes on this data folder see too.
      const isHere = await stat(target).catch(() => undefined)
      if (isHere) await utimes(target, now, isHere.mtime).catch(() => {})
      else {
        if (!this.fetching.has(key))
          this.fetching.set(
            key,
            this.fetch(key).finally(() => this.fetching.delete(key)),
          )
        await this.fetching.get(key)
        this.cache.changed()
      }
      return this.pathOf(keyOrPath)
    } finally {
      release()
    }
  }

  override async ensureLargest(key: string): Promise<void> {
    if (!(await this.isStored(key))) return
    const { files } = await this.withStaging((folder) => this.readManifest(key, folder))
    const stored = files.reduce((sum, { size_bytes }) => sum + size_bytes, 0)
    const names = await filesOfFolder(this.pathOf(key)).catch(() => [])
    const sizes = await Promise.all(names.map(async (name) => (await stat(path.join(this.pathOf(key), name))).size))
    if (sizes.reduce((sum, size) => sum + size, 0) >= stored) return
    await this.removeLocal(key)
    await this.ensureLocal(key)
  }

  override async hold(keysOrPaths: string[]): Promise<Hold> {
    const keys = keysOrPaths.flatMap((keyOrPath) => keyOf(keyOrPath, this.dataDir) ?? [])
    const releases = keys.map(this.cache.hold)
    const release = () => {
      for (const release of releases.splice(0)) release()
    }
    try {
      for (const key of keys) await this.ensureLocal(key)
      return { release }
    } catch (error) {
      release()
      throw error
    }
  }

  override async remove(...keys: string[]): Promise<void> {
    const { log } = this.options
    await this.removeLocal(...keys)
    for (const key of keys)
      await this.removeStored(key).catch((error: Error) =>
        log.warn({ err: error, key }, 'an object could not be removed; the sweep of orphans removes it'),
      )
  }

  override async downloadUrl(key: string, filename: string): Promise<string | undefined> {
    return this.options.redirect ? await this.store.presign(key, filename) : undefined
  }

  override async problem(): Promise<string | undefined> {
    const now = performance.now()
    if (this.asked.at === 0 || now - this.asked.at > problem_ms) this.asked = { at: now, problem: this.ask() }
    return this.asked.problem
  }

  override async claim(owner: Owner): Promise<void> {
    await claimStorage({ store: this.store, staging: this.staging }, owner)
  }

  override start(options: SweepOptions): { close(): Promise<void> } {
    const { log } = this.options
    const running = [this.cache.start(), startSweeping({ ...options, store: this.store, staging: this.staging, log })]
    return { close: async () => void (await Promise.all(running.map((worker) => worker.close()))) }
  }

  override close(): void {
    this.store.close()
  }

  /** Whether a key is complete in the storage. */
  private async isStored(key: string): Promise<boolean> {
    return (await this.store.head(key.endsWith('/') ? key + manifestName : key)) !== undefined
  }

  private async publishOne(key: string): Promise<void> {
    const local = this.pathOf(key)
    if (!key.endsWith('/')) return void (await this.store.put(local, key))
    const names = (await filesOfFolder(local)).filter((name) => name !== manifestName)
    const files = await inParallel(names, async (name) => ({
      path: name,
      ...(await this.store.put(path.join(local, name), key + name)),
    }))
    await this.withStaging(async (folder) => {
      const manifest = path.join(folder, 'manifest')
      await writeFolderManifest(manifest, files)
      await this.store.put(manifest, key + manifestName)
    })
  }

  /** Runs `work` with a temporary folder on the disk of the data folder. */
  private async withStaging<T>(work: (folder: string) => Promise<T>): Promise<T> {
    const folder = path.join(this.staging, randomUUID())
    await mkdir(folder, { recursive: true, mode: 0o700 })
    try {
      return await work(folder)
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  }

  /** Fetches a key that is not here. It gets its name when all of it is there and has the right hash. */
  private async fetch(key: string): Promise<void> {
    const target = this.pathOf(key).replace(/\/$/, '')
    await this.withStaging(async (folder) => {
      const part = path.join(folder, 'part')
      if (key.endsWith('/')) await this.fetchFolder(key, part, folder)
      else {
        const object = await this.store.head(key)
        if (!object) return
        await this.cache.makeRoom(object.size_bytes)
        await this.store.get(key, part)
      }
      if (!existsSync(part)) return
      await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
      try {
        await moveTree(part, target)
      } catch (error) {
        // Another process has just fetched the same folder.
        if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
      }
      await syncPath(path.dirname(target))
    })
  }

  private async readManifest(key: string, folder: string): Promise<FolderManifest> {
    const manifest = path.join(folder, 'manifest')
    await this.store.get(key + manifestName, manifest)
    return readFolderManifest(manifest, key + manifestName)
  }

  private async fetchFolder(key: string, part: string, folder: string): Promise<void> {
    if (!(await this.isStored(key))) return
    const { files } = await this.readManifest(key, folder)
    await this.cache.makeRoom(files.reduce((sum, { size_bytes }) => sum + size_bytes, 0))
    await mkdir(part, { mode: 0o700 })
    await inParallel(files, async ({ path: name, sha256 }) => {
      const file = path.join(part, name)
      await mkdir(path.dirname(file), { recursive: true, mode: 0o700 })
      const object = await this.store.get(key + name, file)
      if (object.sha256 !== sha256) throw hashError(key + name, object.sha256, sha256)
    })
  }

  private async removeStored(key: string): Promise<void> {
    if (!key.endsWith('/')) return await this.store.remove(key)
    // The manifest first: without it the folder is gone.
    await this.store.remove(key + manifestName)
    for await (const object of this.store.list(key)) await this.store.remove(object.key)
  }

  private async ask(): Promise<string | undefined> {
    const { log } = this.options
    try {
      await this.store.check()
      return undefined
    } catch (error) {
      log.warn({ err: error }, 'the shared storage does not answer')
      // Without its name: health routes need no key.
      return 'the shared storage (TUNERY_STORAGE_URL) is away; the log has the cause'
    }
  }
}

/** The key of an artifact, given it or the path of a file in it; undefined for files that are in none. */
function keyOf(keyOrPath: string, dataDir: string): string | undefined {
  if (!path.isAbsolute(keyOrPath)) return keyOrPath
  const within = path.relative(dataDir, keyOrPath).replaceAll(path.sep, '/')
  const folder = /^((models|exports)\/[^/]+|runs\/[^/]+\/[^/]+\/checkpoints\/[^/]+)(\/|$)/.exec(within)
  if (folder) return `${folder[1]}/`
  return /^(datasets|drafts|files)\/[^/]+$|^uploads\/[^/]+\/[^/]+$/.test(within) ? within : undefined
}

async function inParallel<T, R>(items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = []
  let next = 0
  let failed = false
  const run = async () => {
    while (next < items.length && !failed) {
      const index = next++
      try {
        results[index] = await work(items[index]!)
      } catch (error) {
        failed = true
        throw error
      }
    }
  }
  const settled = await Promise.allSettled(Array.from({ length: concurrency }, run))
  for (const result of settled) if (result.status === 'rejected') throw result.reason
  return results
}
