// The memory of adapters. Hundreds may be served; those that were not asked for lately are read from their files again.
import { statSync } from 'node:fs'
import type { Library } from '../llama/library.ts'
import { freeAdapter, loadAdapter, type Model } from '../llama/model.ts'
import type { Pointer } from '../llama/structs.ts'

export type Adapter = {
  path: string
  model: Model
  /** Of the file, which is about what it takes in memory. */
  bytes: number
  /** Null while it is not in memory. */
  pointer: Pointer
  /** Contexts that compute with it. */
  holders: number
  used_at: number
}

export type Adapters = {
  /**
   * Reads the adapter's file. Throws an Error with the library's own reason: not an adapter, or one of another base.
   */
  open(model: Model, path: string): Adapter
  /** The adapter's weights, read again where they had to go. To be let go once for each hold. */
  hold(adapter: Adapter): Pointer
  letGo(adapter: Adapter): void
  /** Frees one that nobody holds. */
  close(adapter: Adapter): void
  /** How many are in memory. */
  count(): number
  bytes(): number
}

// The library lays out every context for the nodes of all adapters that are in memory, and not of its own alone: with a
// hundred of them, each context took 120 MB more.
const residentMax = 32

/** Keeps those used last, `residentMax` of them and up to `bytesMax`; what is held stays whatever it takes. */
export function createAdapters(library: Library, bytesMax: number): Adapters {
  const resident = new Set<Adapter>()
  let clock = 0
  const bytes = () => [...resident].reduce((sum, adapter) => sum + adapter.bytes, 0)

  const free = (adapter: Adapter) => {
    if (!resident.delete(adapter)) return
    freeAdapter(library, adapter.pointer)
    adapter.pointer = null
  }
  const read = (adapter: Adapter) => {
    const idle = [...resident].filter(({ holders }) => holders === 0).sort((a, b) => a.used_at - b.used_at)
    let over = bytes() + adapter.bytes - bytesMax
    for (const other of idle) {
      if (over <= 0 && resident.size < residentMax) break
      over -= other.bytes
      free(other)
    }
    adapter.pointer = loadAdapter(library, adapter.model, adapter.path)
    resident.add(adapter)
  }

  return {
    open(model, path) {
      const adapter: Adapter = { path, model, bytes: statSync(path).size, pointer: null, holders: 0, used_at: ++clock }
      read(adapter)
      return adapter
    },
    hold(adapter) {
      if (!resident.has(adapter)) read(adapter)
      adapter.holders++
      adapter.used_at = ++clock
      return adapter.pointer
    },
    letGo(adapter) {
      adapter.holders--
    },
    close: free,
    count: () => resident.size,
    bytes,
  }
}
