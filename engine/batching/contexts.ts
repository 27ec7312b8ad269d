// The contexts of served models: all compute on the same threads, and each keeps its adapter in memory.
import type { Mutex } from '../../lib/mutex.ts'
import type { ComputeThreads } from '../llama/compute-threads.ts'
import { type Context, type ContextOptions, createContext, createContextAsync } from '../llama/context.ts'
import type { Library } from '../llama/library.ts'
import type { Adapter, Adapters } from '../models/adapters.ts'
import type { ServedModel } from '../models/models.ts'

type Sizes = Omit<ContextOptions, 'threads' | 'adapter' | 'onFree'>

export class Contexts {
  private readonly library: Library
  private readonly threads: ComputeThreads
  private readonly adapters: Adapters
  private readonly nativeMutex: Mutex

  /** `nativeMutex`: loading or freeing an adapter changes a list of the model that `makeAsync` reads. */
  constructor(library: Library, threads: ComputeThreads, adapters: Adapters, nativeMutex: Mutex) {
    this.library = library
    this.threads = threads
    this.adapters = adapters
    this.nativeMutex = nativeMutex
  }

  make(served: ServedModel, sizes: Sizes): Context {
    return createContext(this.library, served.model, this.optionsFor(served, sizes))
  }

  /** The same on another thread, so that decoding continues. */
  makeAsync(served: ServedModel, sizes: Sizes): Promise<Context> {
    return this.nativeMutex(() => createContextAsync(this.library, served.model, this.optionsFor(served, sizes)))
  }

  /** Attaches another adapter of the same base. Rejects, and frees the context, if that is not possible. */
  pass(context: Context, adapter: Adapter): Promise<Context> {
    return this.nativeMutex(async () => {
      try {
        context.attach(this.adapters.acquire(adapter), () => this.adapters.release(adapter))
      } catch (error) {
        context.free()
        throw error
      }
      return context
    })
  }

  private optionsFor({ adapter }: ServedModel, sizes: Sizes): ContextOptions {
    return {
      ...sizes,
      threads: this.threads,
      adapter: adapter ? this.adapters.acquire(adapter) : null,
      onFree: () => adapter && this.adapters.release(adapter),
    }
  }
}
