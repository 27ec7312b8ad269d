// Files that must be there after a power cut once their row says so: written aside, synced, moved into place, the
// folder synced.
import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, open, rename, rm, statfs } from 'node:fs/promises'
import path from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { ApiError } from '../../contract/errors.ts'

export interface Stored {
  size_bytes: number
  sha256: string
}

/**
 * A file, or a folder with all that is in it, that a row of the database names. It is not changed while that row is
 * there.
 */
export interface Held {
  /** Relative to the data folder. */
  path: string
  /** Of a file, where its row knows it, in hex. */
  sha256?: string
  /** Whose it is, in words. */
  of: string
  /** Whether its row is of no use without it. */
  needed: boolean
}

/** The SHA-256 of a file, in hex. */
export async function hashFile(file: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer)
  return hash.digest('hex')
}

/**
 * Streams `source` to `file` and returns its size and hash. `look` sees each chunk and may throw. Nothing stays behind
 * on a failure.
 */
export async function storeStream(
  source: NodeJS.ReadableStream,
  file: string,
  look: (chunk: Buffer) => void,
): Promise<Stored> {
  await mkdir(path.dirname(file), { recursive: true })
  const part = `${file}.part`
  const hash = createHash('sha256')
  let size_bytes = 0
  const meter = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      try {
        size_bytes += chunk.length
        hash.update(chunk)
        look(chunk)
        done(null, chunk)
      } catch (error) {
        done(error as Error)
      }
    },
  })
  try {
    await pipeline(source, meter, createWriteStream(part, { mode: 0o600 }))
    await syncPath(part)
    await rename(part, file)
    await syncPath(path.dirname(file))
  } catch (error) {
    await rm(part, { force: true })
    throw error
  }
  return { size_bytes, sha256: hash.digest('hex') }
}

/** Makes a file's or a folder's content durable. Returns its size in bytes. */
export async function syncPath(target: string): Promise<number> {
  const handle = await open(target, 'r')
  try {
    await handle.sync()
    return (await handle.stat()).size
  } finally {
    await handle.close()
  }
}

/** Of files, and of SQLite, whose codes may go on after these names (SQLITE_IOERR_WRITE). */
const full = ['ENOSPC', 'EDQUOT', 'SQLITE_FULL', 'SQLITE_IOERR_SHMSIZE']
const unavailable = ['EACCES', 'EPERM', 'EROFS', 'EIO', 'ENOTDIR', 'EEXIST', 'EMFILE', 'ENFILE']
const sqliteUnavailable = /^SQLITE_(BUSY|LOCKED|READONLY|IOERR|CANTOPEN|PROTOCOL)/

/** Whether something failed because the disk is full. */
export const isFull = (error: unknown) => full.includes(String((error as { code?: unknown } | undefined)?.code))

/** What a failure of the disk or the database is to whom it concerns; undefined for any other failure. */
export function storageError(error: unknown): ApiError | undefined {
  const code = (error as { code?: unknown } | undefined)?.code
  if (typeof code !== 'string') return undefined
  if (isFull(error))
    return new ApiError(
      'storage_full',
      'The disk of the service is full. Nothing was stored; try again when there is room.',
    )
  if (unavailable.includes(code) || sqliteUnavailable.test(code))
    return new ApiError(
      'storage_unavailable',
      'The service cannot use its database or its data folder. Try again in a moment; its log has the cause.',
    )
  return undefined
}

/** Throws storage_full while less than `min_free_mb` is free on the disk of `folder`. */
export async function requireFreeDisk(folder: string, min_free_mb: number): Promise<void> {
  const { bavail, bsize } = await statfs(folder)
  const free_mb = Math.floor((Number(bavail) * Number(bsize)) / 1e6)
  if (free_mb < min_free_mb)
    throw new ApiError(
      'storage_full',
      `The service's disk has ${free_mb} MB left, less than the ${min_free_mb} MB it keeps free. Nothing was stored; try again when there is room.`,
      {
        details: { free_mb, min_free_mb },
      },
    )
}
