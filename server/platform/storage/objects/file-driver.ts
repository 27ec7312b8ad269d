// Objects as files of a folder that all machines mount: `objects/<key>`, and the SHA-256 of each in `hashes/<key>`.
import { createHash, randomUUID } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm, rmdir, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { pipeline } from 'node:stream/promises'
import { isFull, syncPath } from '../durable-files.ts'
import {
  assertKey,
  awayError,
  hashError,
  type ListedObject,
  missingError,
  type ObjectStore,
  type StoredObject,
} from './store.ts'

export class FileStore implements ObjectStore {
  readonly name: string
  private readonly folder: string
  private readonly incoming: string

  /** `folder` must exist: an unmounted one must not look like an empty storage. */
  constructor(folder: string) {
    this.name = `file://${folder}`
    this.folder = folder
    this.incoming = path.join(folder, 'incoming')
  }

  async put(file: string, key: string): Promise<StoredObject> {
    const there = await this.using(() => this.find(key))
    if (there) {
      const copied = await copyHashed(file)
      if (copied.sha256 === there.sha256 && copied.size_bytes === there.size_bytes) return copied
    }
    return await this.using(async () => {
      await mkdir(this.incoming, { recursive: true, mode: 0o700 })
      const part = path.join(this.incoming, randomUUID())
      try {
        const stored = await copyHashed(file, part)
        await writeFile(`${part}.sha256`, stored.sha256, { mode: 0o600 })
        // The hash first: an object without one would be damaged.
        await this.place(`${part}.sha256`, this.hashPath(key))
        await this.place(part, this.objectPath(key))
        // Read it back: some network filesystems report a failed write only later.
        const { sha256 } = await copyHashed(this.objectPath(key))
        if (sha256 !== stored.sha256) throw hashError(key, sha256, stored.sha256)
        return stored
      } finally {
        for (const file of [part, `${part}.sha256`]) await rm(file, { force: true })
      }
    })
  }

  get(key: string, file: string): Promise<StoredObject> {
    return this.using(async () => {
      const expected = await this.find(key)
      if (!expected) throw missingError(key)
      try {
        const copied = await copyHashed(this.objectPath(key), file)
        if (copied.sha256 !== expected.sha256) throw hashError(key, copied.sha256, expected.sha256 || '(not kept)')
        await syncPath(file)
        return copied
      } catch (error) {
        await rm(file, { force: true })
        throw (error as { code?: unknown }).code === 'ENOENT' ? missingError(key) : error
      }
    })
  }

  head(key: string): Promise<StoredObject | undefined> {
    return this.using(() => this.find(key))
  }

  async *list(prefix: string): AsyncGenerator<ListedObject> {
    const root = this.objectPath('')
    const first = path.join(root, prefix.slice(0, prefix.lastIndexOf('/') + 1))
    const entries = await this.using(
      async () => (await ignoreMissing(readdir(first, { recursive: true, withFileTypes: true }))) ?? [],
    )
    for (const entry of entries) {
      if (!entry.isFile()) continue
      const file = path.join(entry.parentPath, entry.name)
      const key = path.relative(root, file).replaceAll(path.sep, '/')
      const stats = key.startsWith(prefix) ? await ignoreMissing(stat(file)) : undefined
      if (stats) yield { key, size_bytes: stats.size, modified_at: stats.mtimeMs }
    }
  }

  remove(key: string): Promise<void> {
    return this.using(async () => {
      assertKey(key)
      for (const file of [this.objectPath(key), this.hashPath(key)]) await rm(file, { force: true })
      // Folders that are now empty go too, up to the first one that is not.
      for (const root of [this.objectPath(''), this.hashPath('')])
        for (
          let folder = path.dirname(path.join(root, key));
          folder.length > root.length;
          folder = path.dirname(folder)
        )
          if (
            !(await rmdir(folder).then(
              () => true,
              () => false,
            ))
          )
            break
    })
  }

  async presign(): Promise<string | undefined> {
    return undefined
  }

  removeUnfinished(before: number): Promise<void> {
    return this.using(async () => {
      for (const entry of (await ignoreMissing(readdir(this.incoming))) ?? []) {
        const file = path.join(this.incoming, entry)
        if (((await ignoreMissing(stat(file)))?.mtimeMs ?? before) < before) await rm(file, { force: true })
      }
    })
  }

  check(): Promise<void> {
    return this.using(async () => void (await readdir(this.folder)))
  }

  close(): void {}

  private objectPath(key: string) {
    return path.join(this.folder, 'objects', key)
  }

  private hashPath(key: string) {
    return path.join(this.folder, 'hashes', key)
  }

  /** Runs `work` on the folder. Its failures are those of the storage, but a full disk and errors of the API. */
  private async using<T>(work: () => Promise<T>): Promise<T> {
    try {
      await stat(this.folder)
      return await work()
    } catch (error) {
      if (typeof (error as { status?: unknown }).status === 'number' || isFull(error)) throw error
      throw (error as { code?: unknown }).code === undefined ? error : awayError(this.name, error)
    }
  }

  private async find(key: string): Promise<StoredObject | undefined> {
    assertKey(key)
    const stats = await ignoreMissing(stat(this.objectPath(key)))
    if (!stats?.isFile()) return undefined
    const sha256 = (await ignoreMissing(readFile(this.hashPath(key), 'utf8')))?.trim()
    return { size_bytes: stats.size, sha256: sha256 ?? '' }
  }

  /** Moves a finished file to its place, with its folders. */
  private async place(file: string, target: string): Promise<void> {
    await syncPath(file)
    await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
    await rename(file, target)
    await syncPath(path.dirname(target))
  }
}

/** Hashes a file, and copies it to `target` on the way if one is given. */
async function copyHashed(file: string, target?: string): Promise<StoredObject> {
  const hash = createHash('sha256')
  let size_bytes = 0
  async function* metered(chunks: AsyncIterable<Buffer>) {
    for await (const chunk of chunks) {
      hash.update(chunk)
      size_bytes += chunk.length
      if (target !== undefined) yield chunk
    }
  }
  const source = createReadStream(file, { highWaterMark: 1 << 20 })
  if (target === undefined) for await (const _ of metered(source));
  else await pipeline(source, metered, createWriteStream(target, { flags: 'wx', mode: 0o600 }))
  return { size_bytes, sha256: hash.digest('hex') }
}

const ignoreMissing = <T>(work: Promise<T>): Promise<T | undefined> =>
  work.catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined
    throw error
  })
