// Adapters in memory: an LRU cache with reference counts. Evicted ones are read from their files again when needed.
import { statSync } from 'node:fs'
import { join } from 'node:path'
import type { Library } from '../llama/library.ts'
import { freeAdapter, loadAdapter, type Model } from '../llama/model.ts'
import type { Pointer } from '../llama/structs.ts'
import type { Drafts } from './draft-file.ts'
import { type FileHashes, type LoadedFile, unknownHash } from './file-hashes.ts'

export interface Adapter {
  path: string
  /** The file whose weights are in memory. */
  file: LoadedFile
  model: Model
  /** The path of its draft file, if it has one. */
  drafts_path: string | undefined
  /** Null while not in memory, and without a whole draft file. */
  drafts: Drafts | null
  /** Size of the file, about the same as in memory. */
  bytes: number
  /** Null while not in memory. */
  pointer: Pointer
  /** Number of contexts that use it. */
  ref_count: number
  used_at: number
}

export interface Adapters {
  /**
   * Reads the adapter's file, and its draft file if it has one. Throws an Error with the library's reason: not an
   * adapter, or for another base.
   */
  open(model: Model, path: string, drafts_path?: string): Adapter
  /** An adapter that another server has loaded from the folder `checkpoint`. */
  openElsewhere(model: Model, path: string, checkpoint: string): Adapter
  /** The same adapter for another form of its base's weights; read when it is needed. */
  reopen(adapter: Adapter, model: Model): Adapter
  /** Returns the adapter's weights, loading them again if evicted. Call `release` once for each `acquire`. */
  acquire(adapter: Adapter): Pointer
  release(adapter: Adapter): void
  /** Frees an adapter without references. */
  close(adapter: Adapter): void
  /** Number of adapters in memory. */
  count(): number
  bytes(): number
}

// The library reserves graph nodes in every context for all adapters in memory, not only for its own: with a hundred
// adapters, each context took 120 MB more.
const residentMax = 32

/** Reads a model's draft file; null if there is none, or none to use. */
export type ReadDrafts = (model: Model, path: string | undefined) => Drafts | null

/**
 * Keeps up to `residentMax` adapters and `bytesMax` bytes, without their drafts: 2 MB each at most. Adapters with
 * references are never evicted.
 */
export function createAdapters(
  library: Library,
  bytesMax: number,
  hashes: FileHashes,
  readDrafts: ReadDrafts,
): Adapters {
  const resident = new Set<Adapter>()
  let clock = 0
  const bytes = () => [...resident].reduce((sum, adapter) => sum + adapter.bytes, 0)

  const free = (adapter: Adapter) => {
    if (!resident.delete(adapter)) return
    freeAdapter(library, adapter.pointer)
    adapter.pointer = null
    adapter.drafts = null
  }
  const read = (adapter: Adapter) => {
    const idle = [...resident].filter(({ ref_count: holders }) => holders === 0).sort((a, b) => a.used_at - b.used_at)
    let over = bytes() + adapter.bytes - bytesMax
    for (const other of idle) {
      if (over <= 0 && resident.size < residentMax) break
      over -= other.bytes
      free(other)
    }
    // Its file may be another one than at the last time.
    adapter.file = hashes.of(adapter.path)
    adapter.pointer = loadAdapter(library, adapter.model, adapter.path)
    adapter.drafts = readDrafts(adapter.model, adapter.drafts_path)
    resident.add(adapter)
  }

  return {
    open(model, path, drafts_path) {
      const adapter: Adapter = {
        path,
        file: unknownHash,
        model,
        drafts_path,
        drafts: null,
        bytes: statSync(path).size,
        pointer: null,
        ref_count: 0,
        used_at: ++clock,
      }
      read(adapter)
      return adapter
    },
    openElsewhere: (model, path, checkpoint) => ({
      path,
      file: hashes.of(join(checkpoint, 'adapter_model.safetensors')),
      model,
      drafts_path: undefined,
      drafts: null,
      bytes: statSync(path).size,
      pointer: null,
      ref_count: 0,
      used_at: ++clock,
    }),
    reopen: (adapter, model) => ({ ...adapter, model, drafts: null, pointer: null, ref_count: 0, used_at: ++clock }),
    acquire(adapter) {
      if (!resident.has(adapter)) read(adapter)
      adapter.ref_count++
      adapter.used_at = ++clock
      return adapter.pointer
    },
    release(adapter) {
      adapter.ref_count--
    },
    close: free,
    count: () => resident.size,
    bytes,
  }
}
