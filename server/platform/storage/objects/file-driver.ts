// Objects as files of a folder that all machines mount: `objects/<key>`, and the SHA-256 of each in `hashes/<key>`.
import { createHash, randomUUID } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm, rmdir, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { pipeline } from 'node:stream/promises'
import { isFull, syncPath } from '../durable-files.ts'
import { assertKey, awayError, hashError, missingError, type ObjectStore, type StoredObject } from './store.ts'

/** `folder` must exist: an unmounted one must not look like an empty storage. */
export function createFileStore(folder: string): ObjectStore {
  const name = `file://${folder}`
  const incoming = path.join(folder, 'incoming')
  const objectPath = (key: string) => path.join(folder, 'objects', key)
  const hashPath = (key: string) => path.join(folder, 'hashes', key)

  /** Runs `work` on the folder. Its failures are those of the storage, but a full disk and errors of the API. */
  async function using<T>(work: () => Promise<T>): Promise<T> {
    try {
      await stat(folder)
      return await work()
    } catch (error) {
      if (typeof (error as { status?: unknown }).status === 'number' || isFull(error)) throw error
      throw (error as { code?: unknown }).code === undefined ? error : awayError(name, error)
    }
  }

  async function find(key: string): Promise<StoredObject | undefined> {
    assertKey(key)
    const stats = await ignoreMissing(stat(objectPath(key)))
    if (!stats?.isFile()) return undefined
    const sha256 = (await ignoreMissing(readFile(hashPath(key), 'utf8')))?.trim()
    return { size_bytes: stats.size, sha256: sha256 ?? '' }
  }

  /** Moves a finished file to its place, with its folders. */
  async function place(file: string, target: string): Promise<void> {
    await syncPath(file)
    await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
    await rename(file, target)
    await syncPath(path.dirname(target))
  }

  return {
    name,

    async put(file, key) {
      const there = await using(() => find(key))
      if (there) {
        const copied = await copyHashed(file)
        if (copied.sha256 === there.sha256 && copied.size_bytes === there.size_bytes) return copied
      }
      return await using(async () => {
        await mkdir(incoming, { recursive: true, mode: 0o700 })
        const part = path.join(incoming, randomUUID())
        try {
          const stored = await copyHashed(file, part)
          await writeFile(`${part}.sha256`, stored.sha256, { mode: 0o600 })
          // The hash first: an object without one would be damaged.
          await place(`${part}.sha256`, hashPath(key))
          await place(part, objectPath(key))
          // Read it back: some network filesystems report a failed write only later.
          const { sha256 } = await copyHashed(objectPath(key))
          if (sha256 !== stored.sha256) throw hashError(key, sha256, stored.sha256)
          return stored
        } finally {
          for (const file of [part, `${part}.sha256`]) await rm(file, { force: true })
        }
      })
    },

    get: (key, file) =>
      using(async () => {
        const expected = await find(key)
        if (!expected) throw missingError(key)
        try {
          const copied = await copyHashed(objectPath(key), file)
          if (copied.sha256 !== expected.sha256) throw hashError(key, copied.sha256, expected.sha256 || '(not kept)')
          await syncPath(file)
          return copied
        } catch (error) {
          await rm(file, { force: true })
          throw (error as { code?: unknown }).code === 'ENOENT' ? missingError(key) : error
        }
      }),

    head: (key) => using(() => find(key)),

    async *list(prefix) {
      const root = objectPath('')
      const first = path.join(root, prefix.slice(0, prefix.lastIndexOf('/') + 1))
      const entries = await using(
        async () => (await ignoreMissing(readdir(first, { recursive: true, withFileTypes: true }))) ?? [],
      )
      for (const entry of entries) {
        if (!entry.isFile()) continue
        const file = path.join(entry.parentPath, entry.name)
        const key = path.relative(root, file).replaceAll(path.sep, '/')
        const stats = key.startsWith(prefix) ? await ignoreMissing(stat(file)) : undefined
        if (stats) yield { key, size_bytes: stats.size, modified_at: stats.mtimeMs }
      }
    },

    remove: (key) =>
      using(async () => {
        assertKey(key)
        for (const file of [objectPath(key), hashPath(key)]) await rm(file, { force: true })
        // Folders that are now empty go too, up to the first one that is not.
        for (const root of [objectPath(''), hashPath('')])
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
      }),

    presign: async () => undefined,

    removeUnfinished: (before) =>
      using(async () => {
        for (const entry of (await ignoreMissing(readdir(incoming))) ?? []) {
          const file = path.join(incoming, entry)
          if (((await ignoreMissing(stat(file)))?.mtimeMs ?? before) < before) await rm(file, { force: true })
        }
      }),

    check: () => using(async () => void (await readdir(folder))),
    close: () => {},
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
