// What is free on a disk besides what running uploads have announced. Each may see the same free space: only together
// can they tell whether all of them fit.
import { stat, statfs } from 'node:fs/promises'
import { ApiError } from '../../../contract/errors.ts'
import { runPeriodically } from '../../../lib/periodic.ts'

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

/** Bytes that are claimed and not written yet, by device: of this process. */
const claimed = new Map<number, number>()
/** Bytes of uploads in progress, claimed or written, by account: of this process. */
const underWay = new Map<string, number>()
/** More is claimed, and what is free is looked at again, in steps of this size: other programs write too. */
const step_bytes = 8e6

const bytesFree = async (folder: string) => {
  const { bavail, bsize } = await statfs(folder)
  return Number(bavail) * Number(bsize)
}

/** Bytes of the disk of `folder` that may be claimed, and its device. */
async function claimable(folder: string, min_free_mb: number): Promise<{ device: number; bytes: number }> {
  const { dev: device } = await stat(folder)
  // What was written while the disk was asked is in neither figure: the larger claim is on the safe side.
  const before = claimed.get(device) ?? 0
  const free = await bytesFree(folder)
  return { device, bytes: free - min_free_mb * 1e6 - Math.max(before, claimed.get(device) ?? 0) }
}

const storageFull = (left_bytes: number, min_free_mb: number) => {
  const free_mb = Math.floor(left_bytes / 1e6) + min_free_mb
  return new ApiError(
    'storage_full',
    `The service's disk has ${Math.max(0, free_mb)} MB left besides what running uploads take, less than the ` +
      `${min_free_mb} MB it keeps free and what this needs. Nothing was stored; try again when there is room.`,
    { details: { free_mb, min_free_mb } },
  )
}

/** Several uploads of an account together leave others as much room as they take; one may take all that is free. */
const shareFull = (free_bytes: number, all: number) =>
  new ApiError(
    'storage_full',
    `The uploads of this account in progress take ${Math.ceil(all / 1e6)} MB; together they may take half of the ` +
      `${Math.floor((free_bytes + all) / 1e6)} MB that are free. Send the files one after the other.`,
  )

/** Throws storage_full while less than `min_free_mb` is free on the disk of `folder`, or is claimed by uploads. */
export async function requireFreeDisk(folder: string, min_free_mb: number): Promise<void> {
  const { bytes } = await claimable(folder, min_free_mb)
  if (bytes < 0) throw storageFull(bytes, min_free_mb)
}

/** How often the disk is looked at while something is written. Within it a fast disk takes some 200 MB. */
const watch_ms = 200

interface Writing {
  /** What is written to. */
  folder: string
  min_free_mb: number
  /** What the work will need, about: it does not begin without. */
  needed_bytes?: number
  signal: AbortSignal
}

/**
 * Runs work that writes files, in this process or in children. Once less than `min_free_mb` is free, or is claimed by
 * uploads, the work's signal aborts, and this rejects with storage_full; who called removes what was written.
 */
export async function writeWhileFree<T>(
  { folder, min_free_mb, needed_bytes = 0, signal }: Writing,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  await requireFreeDisk(folder, min_free_mb + Math.ceil(needed_bytes / 1e6))
  const full = new AbortController()
  const watch = runPeriodically(watch_ms, () =>
    requireFreeDisk(folder, min_free_mb).catch((error) => {
      // A disk that cannot be asked is no full one: writing to it fails by itself.
      if (error instanceof ApiError) full.abort(error)
    }),
  )
  try {
    return await work(AbortSignal.any([signal, full.signal]))
  } catch (error) {
    if (!signal.aborted) full.signal.throwIfAborted()
    throw error
  } finally {
    await watch.close()
  }
}

/** Bytes that uploads may still claim on the disk of `folder`. */
export const freeToClaim = async (folder: string, min_free_mb: number) => (await claimable(folder, min_free_mb)).bytes

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
