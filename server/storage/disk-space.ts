// Room on the disk that is kept for deletions. SQLite writes before it frees: on a disk without a byte left no row
// could be deleted, so no file of it either, and nothing that the service does could make room again.
import { randomBytes } from 'node:crypto'
import { type FileHandle, open, statfs } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { createMutex } from '../../lib/mutex.ts'
import { nowAndThen } from '../../lib/periodic.ts'
import { isFull } from './durable-files.ts'

export interface Reserve {
  /**
   * Runs what frees room. Where it fails on a full disk, it is run again with ever more of the reserve given up, which
   * is taken back afterwards as far as there is room. What fails on a full disk must have changed nothing.
   */
  use<T>(work: () => Promise<T>): Promise<T>
  /** Keeps the reserve full, until what it returns is closed. */
  start(): { close(): Promise<void> }
}

const size_bytes = 8 << 20
/** What is given up, and written, at a time: others that write may take what is given up. */
const step_bytes = 1 << 20
const refill_ms = 60_000

export function createReserve(dataDir: string, log: Logger): Reserve {
  const file = path.join(dataDir, 'reserve')
  const inTurn = createMutex()

  async function withFile<T>(work: (handle: FileHandle, size: number) => Promise<T>): Promise<T> {
    const handle = await open(file, 'a', 0o600)
    try {
      return await work(handle, (await handle.stat()).size)
    } finally {
      await handle.close()
    }
  }

  /** Writes until it has this size, or the disk is full. */
  const fill = (wanted: number) =>
    withFile(async (handle, size) => {
      try {
        // Random, as a filesystem that compresses would keep no room for zeros.
        for (let left = wanted - size; left > 0; left -= step_bytes)
          await handle.appendFile(randomBytes(Math.min(left, step_bytes)))
        await handle.sync()
      } catch (error) {
        if (!isFull(error)) throw error
      }
    })

  /** Resolves with what is left; 0 where there is none to give up. */
  const shrink = () =>
    withFile(async (handle, size) => {
      const left = Math.max(0, size - step_bytes)
      await handle.truncate(left)
      // Some filesystems give the room to others only then.
      await handle.sync().catch(() => {})
      return { gave: size > left, size }
    })

  async function withLess<T>(work: () => Promise<T>, failure: unknown): Promise<T> {
    let before = 0
    try {
      for (let error = failure; ; ) {
        const { gave, size } = await shrink()
        before = Math.max(before, size)
        if (!gave) throw error
        try {
          return await work()
        } catch (next) {
          if (!isFull(next)) throw next
          error = next
        }
      }
    } finally {
      await fill(before).catch(told)
    }
  }

  /**
   * Only while there is room for much more than the reserve: a disk that is nearly full is left to what was accepted.
   */
  async function refill(): Promise<void> {
    const { bavail, bsize } = await statfs(dataDir)
    if (Number(bavail) * Number(bsize) >= 4 * size_bytes) await fill(size_bytes)
  }

  const told = (error: unknown) =>
    log.warn({ err: error }, 'the room that is kept for deletions on a full disk could not be taken')

  return {
    async use(work) {
      try {
        return await work()
      } catch (error) {
        if (!isFull(error)) throw error
        return inTurn(() => withLess(work, error))
      }
    },
    start: () => nowAndThen(refill_ms, () => inTurn(refill).catch(told)),
  }
}
