// Projector files of vision models, loaded beside their language model. Those of adapters are kept in an LRU cache:
// each has a whole vision tower, so evicted ones are read from their files again when needed.
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, statSync } from 'node:fs'
import { isAbsolute } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { microBatchTokensMax } from '../llama/context.ts'
import type { Library } from '../llama/library.ts'
import type { Model } from '../llama/model.ts'
import { mtmdFile, type PicturePart, type ProjectorOptions } from '../llama/mtmd.ts'
import type { Encoder } from './encoder.ts'

/** `sha256`: of its file, in hex. */
export interface LoadedProjector {
  id: number
  path: string
  sha256: string
  vector_length: number
  is_non_causal: boolean
}

export interface Projectors {
  /** Whether the library for pictures is installed, without which nothing can be loaded. */
  isInstalled(): boolean
  /**
   * Throws an Error for the user: not a projector, one of another model, or another file than `sha256` (hex) says: one
   * of another training fits the model too. `evictable`: it is an adapter's.
   */
  load(
    model: Model,
    path: string,
    options?: { sha256?: string | undefined; evictable?: boolean },
  ): Promise<LoadedProjector>
  /**
   * Runs `work` while the projector is in memory. Throws an Error for the user if it was evicted and its file has
   * changed since.
   */
  using: UseProjector
  /** Waits until nothing uses it. */
  unload(projector: LoadedProjector): Promise<void>
  /** Memory of the evictable ones. */
  evictableBytes(): number
}
export type UseProjector = <T>(projector: LoadedProjector, work: () => Promise<T>) => Promise<T>

interface Entry {
  projector: LoadedProjector
  options: ProjectorOptions
  evictable: boolean
  bytes: number
  /** Null while it is evicted. */
  inMemory: Promise<unknown> | null
  users: number
  used_at: number
  onIdle: () => void
}

/** Keeps up to `bytes_max` bytes of evictable projectors. Those in use are never evicted. */
export function createProjectors(library: Library, encoder: Encoder, threads: number, bytes_max: number): Projectors {
  const entries = new Map<number, Entry>()
  let count = 0
  let clock = 0

  const evictable = () => [...entries.values()].filter(({ evictable, inMemory }) => evictable && inMemory !== null)
  const evictableBytes = () => evictable().reduce((sum, { bytes }) => sum + bytes, 0)

  const makeRoom = (bytes: number) => {
    const idle = evictable().filter(({ users }) => users === 0)
    for (const entry of idle.sort((a, b) => a.used_at - b.used_at)) {
      if (evictableBytes() + bytes <= bytes_max) return
      entry.inMemory = null
      void encoder.call({ kind: 'unload', projector: entry.projector.id })
    }
  }

  const readAgain = async (entry: Entry) => {
    const { id, path, sha256 } = entry.projector
    const now = await hashOf(path)
    if (now !== sha256) throw new Error(otherFile(now, sha256))
    await encoder.call({ kind: 'load', projector: id, options: entry.options })
  }

  return {
    isInstalled: () => existsSync(mtmdFile(library.dir)),
    evictableBytes,
    async load(model, path, { sha256: expected, evictable = false } = {}) {
      if (!isAbsolute(path)) throw new Error(`the path of a projector is absolute, not '${path}'`)
      const sha256 = await hashOf(path)
      if (expected !== undefined && sha256 !== expected) throw new Error(otherFile(sha256, expected))
      const id = ++count
      const bytes = statSync(path).size
      if (evictable) makeRoom(bytes)
      const { vector_length } = model
      const options = {
        path,
        model: model.handle as bigint,
        vector_length,
        threads,
        use_gpu: library.llama_supports_gpu_offload(),
      }
      const { is_non_causal, probe } = await encoder.call({ kind: 'load', projector: id, options })
      const projector = { id, path, sha256, vector_length, is_non_causal }
      const problem = problemOf(model, probe, is_non_causal)
      if (problem) {
        await encoder.call({ kind: 'unload', projector: id })
        throw new Error(problem)
      }
      const inMemory = Promise.resolve()
      entries.set(id, { projector, options, evictable, bytes, inMemory, users: 0, used_at: ++clock, onIdle: () => {} })
      return projector
    },
    async using(projector, work) {
      const entry = entries.get(projector.id)
      if (!entry) throw new Error('its projector was unloaded')
      entry.users++
      entry.used_at = ++clock
      try {
        if (!entry.inMemory) {
          makeRoom(entry.bytes)
          const reading = readAgain(entry)
          entry.inMemory = reading
          reading.catch(() => {
            entry.inMemory = null
          })
        }
        await entry.inMemory
        return await work()
      } finally {
        if (--entry.users === 0) entry.onIdle()
      }
    },
    async unload({ id }) {
      const entry = entries.get(id)!
      entries.delete(id)
      if (entry.users > 0)
        await new Promise<void>((resolve) => {
          entry.onIdle = resolve
        })
      if (entry.inMemory) await encoder.call({ kind: 'unload', projector: id })
    },
  }
}

const otherFile = (actual: string, expected: string) =>
  `it is not the file that belongs to the model (SHA-256 ${actual.slice(0, 16)}… instead of ${expected.slice(0, 16)}…)`

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), hash)
  return hash.digest('hex')
}

/** Why the parts of a small picture show that this projector is not the model's; null if they do not. */
function problemOf({ vocab }: Model, parts: readonly PicturePart[], is_non_causal: boolean): string | null {
  const special = new Set(vocab.special_tokens.map(({ token }) => token))
  // The tokens around a picture are special ones of the model's family, or line breaks.
  const isMarker = (token: number) =>
    special.has(token) || (token >= 0 && vocab.bytes(token).toString('utf8').trim() === '')
  for (const part of parts) {
    if (part.kind === 'text' && !part.tokens.every(isMarker))
      return 'the model has no tokens for the marks that it sets around a picture: it belongs to another model'
    if (part.kind === 'vectors' && part.n_positions > part.n_tokens)
      return 'it gives a picture more positions than tokens'
    // Vectors that attend to each other must be in one micro-batch.
    if (part.kind === 'vectors' && is_non_causal && part.n_tokens > microBatchTokensMax)
      return `it makes ${part.n_tokens} vectors at once; this engine takes ${microBatchTokensMax}`
  }
  return null
}
