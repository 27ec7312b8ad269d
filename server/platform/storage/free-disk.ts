// What is free on a disk besides what running uploads have announced. Each may see the same free space: only together
// can they tell whether all of them fit.
import { stat, statfs } from 'node:fs/promises'
import { ApiError } from '../../../contract/errors.ts'
import { runPeriodically } from '../../../lib/periodic.ts'

/** Bytes that are claimed and not written yet, by device: of this process (incoming-files.ts). */
export const claimed = new Map<number, number>()

const bytesFree = async (folder: string) => {
  const { bavail, bsize } = await statfs(folder)
  return Number(bavail) * Number(bsize)
}

/** Bytes of the disk of `folder` that may be claimed, and its device. */
export async function claimable(folder: string, min_free_mb: number): Promise<{ device: number; bytes: number }> {
  const { dev: device } = await stat(folder)
  // What was written while the disk was asked is in neither figure: the larger claim is on the safe side.
  const before = claimed.get(device) ?? 0
  const free = await bytesFree(folder)
  return { device, bytes: free - min_free_mb * 1e6 - Math.max(before, claimed.get(device) ?? 0) }
}

export const storageFull = (left_bytes: number, min_free_mb: number) => {
  const free_mb = Math.floor(left_bytes / 1e6) + min_free_mb
  return new ApiError(
    'storage_full',
    `The service's disk has ${Math.max(0, free_mb)} MB left besides what running uploads take, less than the ` +
      `${min_free_mb} MB it keeps free and what this needs. Nothing was stored; try again when there is room.`,
    { details: { free_mb, min_free_mb } },
  )
}

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
