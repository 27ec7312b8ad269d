// SHA-256 of the weights files that are in memory, for the header x-weights. A worker thread reads the files, so that
// neither loading nor answers wait for it.
import { type BigIntStats, statSync } from 'node:fs'
import { Worker } from 'node:worker_threads'

/** A file in memory. */
export interface LoadedFile {
  /**
   * `sha256:` and the first 16 hex digits; `sha256:pending` until it is computed; `sha256:unknown` if the file changed
   * or was removed before it was read.
   */
  hash: string
}

export interface FileHashes {
  /** The file at this path as it is now. Call it right before the file is loaded. */
  of(path: string): LoadedFile
}

export interface HashJob {
  path: string
  stamp: string
}
/** Null: the file is not the one with that stamp any more, or cannot be read. */
export interface HashResult {
  sha256: string | null
}

export const unknownHash: LoadedFile = { hash: 'sha256:unknown' }
/** Files whose hashes are remembered. */
const knownMax = 1000

export function createFileHashes(): FileHashes {
  const cached = new Map<string, { stamp: string; file: LoadedFile }>()
  const jobs: { path: string; stamp: string; file: LoadedFile }[] = []
  let thread: Worker | null = null

  function startNext(): void {
    const job = jobs[0]
    if (!job) {
      // Ended when idle: it is needed only at loads.
      void thread?.terminate()
      thread = null
      return
    }
    thread ??= startThread()
    thread.postMessage({ path: job.path, stamp: job.stamp } satisfies HashJob)
  }
  function finish(hash: string | null): void {
    const { path, stamp, file } = jobs.shift()!
    file.hash = hash ? `sha256:${hash.slice(0, 16)}` : unknownHash.hash
    // The next load reads it again.
    if (!hash && cached.get(path)?.stamp === stamp) cached.delete(path)
    startNext()
  }
  function startThread(): Worker {
    const worker = new Worker(new URL('./hash-thread.ts', import.meta.url))
    worker.unref()
    worker.on('message', ({ sha256 }: HashResult) => finish(sha256))
    const onEnd = () => {
      // Not the end of an idle one, and of a failed one only once.
      if (thread !== worker) return
      thread = null
      finish(null)
    }
    worker.on('error', onEnd).on('exit', onEnd)
    return worker
  }

  return {
    of(path) {
      let stamp: string
      try {
        stamp = stampOf(statSync(path, { bigint: true }))
      } catch {
        return unknownHash
      }
      const existing = cached.get(path)
      if (existing?.stamp === stamp) return existing.file
      const file: LoadedFile = { hash: 'sha256:pending' }
      if (cached.size >= knownMax) cached.delete(cached.keys().next().value!)
      cached.set(path, { stamp, file })
      if (jobs.push({ path, stamp, file }) === 1) startNext()
      return file
    },
  }
}

/** Equal for one file that was not written in between. */
export const stampOf = ({ dev, ino, size, mtimeNs }: BigIntStats) => `${dev} ${ino} ${size} ${mtimeNs}`
