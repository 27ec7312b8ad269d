// Reserved disk space for deletions. SQLite writes before it frees: on a completely full disk no row, and so no file of
// it, could be deleted, and the service could never free space again.
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { type FileHandle, open, statfs } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { createMutex } from '../../../lib/mutex.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { isFull } from './durable-files.ts'

export interface Reserve {
  /**
   * Runs work that frees space. If it fails on a full disk, retries it with the reserve reduced step by step, then
   * refills the reserve as far as possible. Work that fails on a full disk must have changed nothing.
   */
  use<T>(work: () => Promise<T>): Promise<T>
  /** Grows it to this many bytes again, as far as there is room. */
  refill(bytes: number): Promise<void>
  /** Refills the reserve periodically until closed. */
  start(): { close(): Promise<void> }
}

const size_bytes = 8 << 20
/** Space is released and written in steps of this size: other writers may take what is released. */
const step_bytes = 1 << 20
const refill_ms = 60_000
/** What a start may write: SQLite's shared memory and log, the lock, `server.json`. */
const start_bytes = 1 << 20

const reserveFile = (dataDir: string) => path.join(dataDir, 'reserve')

async function withFile<T>(file: string, work: (handle: FileHandle, size: number) => Promise<T>): Promise<T> {
  const handle = await open(file, 'a', 0o600)
  try {
    return await work(handle, (await handle.stat()).size)
  } finally {
    await handle.close()
  }
}

/** Grows the file to this size, or until the disk is full. */
const fillFile = (file: string, target_bytes: number) =>
  withFile(file, async (handle, size) => {
    try {
      // Random bytes: a compressing filesystem would reserve no space for zeros.
      for (let left = target_bytes - size; left > 0; left -= step_bytes)
        await handle.appendFile(randomBytes(Math.min(left, step_bytes)))
      await handle.sync()
    } catch (error) {
      if (!isFull(error)) throw error
    }
  })

/** Shrinks the file by one step. `shrunk` is false if it was already empty; `size` is the size before. */
const shrinkFile = (file: string) =>
  withFile(file, async (handle, size) => {
    const left = Math.max(0, size - step_bytes)
    await handle.truncate(left)
    // Some filesystems free the space only after a sync.
    await handle.sync().catch(() => {})
    return { shrunk: size > left, size }
  })

async function freeBytes(dataDir: string): Promise<number> {
  const { bavail, bsize } = await statfs(dataDir)
  return Number(bavail) * Number(bsize)
}

/**
 * Gives up as much of the reserve as a start needs, if the disk is full. Call it with the data folder's lock, and
 * `refill` the bytes that it returns when the service has started.
 */
export async function makeRoomForStart(dataDir: string): Promise<number> {
  const file = reserveFile(dataDir)
  let before = 0
  while (existsSync(file) && (await freeBytes(dataDir)) < start_bytes) {
    const { shrunk, size } = await shrinkFile(file)
    before = Math.max(before, size)
    if (!shrunk) break
  }
  return before
}

export function createReserve(dataDir: string, log: Logger): Reserve {
  const file = reserveFile(dataDir)
  const serialize = createMutex()
  const fill = (target_bytes: number) => fillFile(file, target_bytes)
  const shrink = () => shrinkFile(file)

  async function runGivingUpReserve<T>(work: () => Promise<T>, failure: unknown): Promise<T> {
    let before = 0
    try {
      for (let error = failure; ; ) {
        const { shrunk, size } = await shrink()
        before = Math.max(before, size)
        if (!shrunk) throw error
        try {
          return await work()
        } catch (next) {
          if (!isFull(next)) throw next
          error = next
        }
      }
    } finally {
      await fill(before).catch(logFailure)
    }
  }

  /** Only with much more space free than the reserve: a nearly full disk is left to work that was accepted. */
  async function refill(): Promise<void> {
    if ((await freeBytes(dataDir)) >= 4 * size_bytes) await fill(size_bytes)
  }

  const logFailure = (error: unknown) =>
    log.warn({ err: error }, 'the disk space reserved for deletions could not be refilled')

  return {
    async use(work) {
      try {
        return await work()
      } catch (error) {
        if (!isFull(error)) throw error
        return serialize(() => runGivingUpReserve(work, error))
      }
    },
    refill: (bytes) => serialize(() => fill(bytes)).catch(logFailure),
    start: () => runPeriodically(refill_ms, () => serialize(refill).catch(logFailure)),
  }
}
