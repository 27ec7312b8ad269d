// Files while they come: space on the disk is claimed for what an upload announces, and its bytes are written durably
// and counted towards the claim.
import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { mkdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { ApiError } from '../../../contract/errors.ts'
import { type StoredFile, syncPath } from './durable-files.ts'
import { claimable, claimed, storageFull } from './free-disk.ts'

/** Space on a disk that is kept for a file while it comes. */
export interface DiskClaim {
  /** Bytes that are kept and have not come yet. */
  left(): number
  /**
   * Counts bytes that are about to be written. Beyond what was claimed it claims more, in steps. Throws storage_full.
   */
  count(bytes: number): Promise<void> | undefined
  /** Bytes that were counted are not on the disk after all. */
  giveBack(bytes: number): void
  /** Keeps at most these. */
  shrinkTo(bytes: number): void
  release(): void
}

/** The account whose upload it is. */
export interface Uploader {
  id: string
  /** Throws if its uploads in progress, with this many bytes together, are more than it may store. */
  admit(bytes: number): Promise<void>
}

/** Bytes of uploads in progress, claimed or written, by account: of this process. */
const underWay = new Map<string, number>()
/** More is claimed, and what is free is looked at again, in steps of this size: other programs write too. */
const step_bytes = 8e6

/** Several uploads of an account together leave others as much room as they take; one may take all that is free. */
const shareFull = (free_bytes: number, all: number) =>
  new ApiError(
    'storage_full',
    `The uploads of this account in progress take ${Math.ceil(all / 1e6)} MB; together they may take half of the ` +
      `${Math.floor((free_bytes + all) / 1e6)} MB that are free. Send the files one after the other.`,
  )

/**
 * Keeps space on the disk of `folder` for `bytes` that are announced; 0 if nobody knows. Throws storage_full, also if
 * other uploads of the `uploader` leave it no more, and what its `admit` throws.
 */
export async function claimDisk(
  folder: string,
  min_free_mb: number,
  bytes: number,
  uploader?: Uploader,
): Promise<DiskClaim> {
  let left = 0
  /** Claimed and written. */
  let total = 0
  let unchecked = 0
  let released = false
  let device = 0
  const change = (by: number) => {
    left += by
    claimed.set(device, (claimed.get(device) ?? 0) + by)
  }
  /** Counts bytes of the uploader's that are in progress. Returns those of all its uploads. */
  function grow(by: number): number {
    if (!uploader) return 0
    total += by
    const all = (underWay.get(uploader.id) ?? 0) + by
    if (all > 0) underWay.set(uploader.id, all)
    else underWay.delete(uploader.id)
    return all
  }
  async function claim(more: number): Promise<void> {
    const found = await claimable(folder, min_free_mb)
    if (found.bytes < more) throw storageFull(found.bytes, min_free_mb)
    device = found.device
    if (released) return
    const before = grow(0)
    const isAlone = before === total
    if (!isAlone && more > (found.bytes - before) / 2) throw shareFull(found.bytes, before)
    change(more)
    const all = grow(more)
    await uploader?.admit(all).catch((error) => {
      if (!released) {
        change(-more)
        grow(-more)
      }
      throw error
    })
  }
  await claim(bytes)
  return {
    left: () => left,
    count(bytes) {
      if (released) return undefined
      const missing = Math.max(0, bytes - left)
      change(-Math.min(bytes, left))
      unchecked += bytes
      if (missing === 0 && unchecked < step_bytes) return undefined
      unchecked = 0
      return claim(missing === 0 ? 0 : missing + step_bytes).then(() => change(-Math.min(missing, left)))
    },
    giveBack(bytes) {
      if (!released) change(bytes)
    },
    shrinkTo(bytes) {
      const by = Math.min(left, bytes) - left
      change(by)
      grow(by)
    },
    release() {
      change(-left)
      grow(-total)
      released = true
    },
  }
}

/**
 * Streams `source` durably to `file`, and counts what comes in `claim`. `onChunk` gets each chunk and may throw. A
 * failure leaves nothing behind.
 */
export async function storeStream(
  source: NodeJS.ReadableStream,
  file: string,
  onChunk: (chunk: Buffer) => void = () => {},
  claim?: DiskClaim,
): Promise<StoredFile> {
  await mkdir(path.dirname(file), { recursive: true })
  const part = `${file}.part`
  const hash = createHash('sha256')
  let size_bytes = 0
  const meter = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      try {
        size_bytes += chunk.length
        hash.update(chunk)
        onChunk(chunk)
        const checking = claim?.count(chunk.length)
        if (checking !== undefined) checking.then(() => done(null, chunk), done)
        else done(null, chunk)
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
