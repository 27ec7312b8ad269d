// The threads that compute steps, one pool of them for all contexts: two at work on the same cores would spin against
// each other. Each step may use fewer threads, and holds them on cores of their own while it uses every core.
import { readdirSync } from 'node:fs'
import koffi from 'koffi'
import type { Library } from './library.ts'
import './structs.ts'
import type { Pointer } from './structs.ts'

/** Decides how many threads compute a step; see engine/batching/step-threads.ts. */
export interface ThreadChoice {
  /** For the next step; 1 to all. */
  threads(): number
  /** A step with so many threads took `ms`, up to now. */
  record(threads: number, ms: number): void
}

export interface ComputeThreads {
  /** The most. */
  count: number
  /**
   * The kernel's ids of the threads of a step with so many, the thread that calls the library first. Empty where the
   * system does not tell them.
   */
  ids(count: number): readonly number[]
  /** From now on this decides how many threads compute; until then all do. */
  choose(choice: ThreadChoice): void
  /** How many computed the latest step. */
  latest(): number
  /** Calls `decode`, which computes a step in this context, with the threads that were chosen. */
  step(context: Pointer, decode: () => number): number
}

/** The threads of steps with so many; those of other pools sleep meanwhile. */
interface Pool {
  pointer: Pointer
  ids: readonly number[]
  /** Where each is held: its own core and all cores; empty while they are free. */
  held: string
}

const threadpoolNew = koffi.proto('void* tunery_threadpool_new(ggml_threadpool_params* params)')

/**
 * Starts `count` compute threads for the life of the process. `poll` is how long a thread spins for the next graph
 * before it sleeps, in units of 131,072 pause instructions (1 is some milliseconds, 50 the library's default). 1
 * bridges the gap between two steps and lets an idle engine use no CPU.
 */
export function createComputeThreads(library: Library, count: number, poll = 1): ComputeThreads {
  const create = library.ggml_backend_reg_get_proc_address(
    library.ggml_backend_reg_by_name('CPU'),
    'ggml_threadpool_new',
  )
  if (!create) throw new Error("The library's CPU backend has no ggml_threadpool_new.")
  // A pool of each size that was used, as unused threads of a larger one spin too. Never freed: contexts refer to the
  // last one that they were computed with.
  const pools = new Map<number, Pool>()
  const poolOf = (threads: number): Pool => {
    const pool = pools.get(threads) ?? start(threads)
    pools.set(threads, pool)
    return pool
  }
  function start(threads: number): Pool {
    const before = new Set(threadIds())
    const params = { ...library.ggml_threadpool_params_default(threads), poll }
    const pointer = koffi.call(create, threadpoolNew, params) as Pointer
    if (!pointer) throw new Error(`The library could not start ${threads} compute threads.`)
    const started = threadIds().filter((id) => !before.has(id))
    return { pointer, ids: started.length === threads - 1 ? [process.pid, ...started] : [], held: '' }
  }
  const pins = createPins()
  let choice: ThreadChoice | null = null
  let latest = count
  poolOf(count)
  return {
    count,
    ids: (threads) => poolOf(threads).ids,
    choose(chosen) {
      choice = chosen
    },
    latest: () => latest,
    step(context, decode) {
      const threads = Math.min(choice?.threads() ?? count, pins?.cores() ?? count)
      latest = threads
      const pool = poolOf(threads)
      library.llama_attach_threadpool(context, pool.pointer, null)
      library.llama_set_n_threads(context, threads, threads)
      const release = pins?.hold(pool)
      const began_ms = performance.now()
      try {
        return decode()
      } finally {
        const ms = performance.now() - began_ms
        release?.()
        choice?.record(threads, ms)
      }
    },
  }
}

/** In the order in which they were started. */
function threadIds(): number[] {
  try {
    return readdirSync('/proc/self/task')
      .map(Number)
      .sort((a, b) => a - b)
  } catch {
    return []
  }
}

// A step waits for its threads hundreds of times, and a thread that waits does not leave its core. So where a step uses
// every core and another program comes, the kernel may put two of its threads on one core: each of these waits then
// takes a time slice, and a step a second instead of milliseconds.

interface Pins {
  /** How many cores this process may use; operators may change it at any time. */
  cores(): number
  /**
   * Holds each thread of the pool on a core of its own if they are as many as the cores. The returned function lets the
   * calling thread go: threads and processes that it starts would inherit the core. The others are only used by steps.
   */
  hold(pool: Pool): (() => void) | undefined
}

/** Bits for 1,024 cores, as in the C library's cpu_set_t. */
const maskBytes = 128

function createPins(): Pins | null {
  const affinity = bindAffinity()
  if (!affinity) return null
  const allowed = new Uint8Array(maskBytes)
  const now = new Uint8Array(maskBytes)
  const read = () => (affinity.get(0, maskBytes, allowed) === 0 ? coresIn(allowed) : [])
  let cores = read()
  // More cores than the mask has bits for: nothing is held.
  if (cores.length === 0) return null

  return {
    cores() {
      cores = read()
      return Math.max(1, cores.length)
    },
    hold(pool) {
      const [, ...others] = pool.ids
      if (others.length === 0 || pool.ids.length < cores.length) {
        if (pool.held) for (const id of others) affinity.set(id, maskBytes, allowed)
        pool.held = ''
        return undefined
      }
      const core = affinity.core()
      const held = `${core} of ${cores}`
      if (held !== pool.held) {
        const rest = cores.filter((other) => other !== core)
        for (const [index, id] of others.entries()) affinity.set(id, maskBytes, maskOf(rest[index]!))
        pool.held = held
      }
      affinity.set(0, maskBytes, maskOf(core))
      return () => {
        // Unless somebody has moved it meanwhile.
        if (affinity.get(0, maskBytes, now) === 0 && now.every((byte, index) => byte === maskOf(core)[index]))
          affinity.set(0, maskBytes, allowed)
      }
    },
  }
}

/** Null where the C library has no such functions: not Linux. */
function bindAffinity() {
  if (process.platform !== 'linux') return null
  for (const name of ['libc.so.6', `libc.musl-${process.arch === 'x64' ? 'x86_64' : 'aarch64'}.so.1`])
    try {
      const libc = koffi.load(name)
      const bind = <T>(signature: string): T => libc.func(signature) as unknown as T
      return {
        get: bind<(id: number, bytes: number, mask: Uint8Array) => number>(
          'int sched_getaffinity(int id, size_t bytes, _Out_ uint8_t* mask)',
        ),
        set: bind<(id: number, bytes: number, mask: Uint8Array) => number>(
          'int sched_setaffinity(int id, size_t bytes, const uint8_t* mask)',
        ),
        core: bind<() => number>('int sched_getcpu()'),
      }
    } catch {
      // Another C library.
    }
  return null
}

function coresIn(mask: Uint8Array): number[] {
  const cores: number[] = []
  for (const [index, byte] of mask.entries())
    for (let bit = 0; byte >> bit > 0; bit++) if ((byte >> bit) & 1) cores.push(8 * index + bit)
  return cores
}

const masks = new Map<number, Uint8Array>()
function maskOf(core: number): Uint8Array {
  const mask = masks.get(core) ?? new Uint8Array(maskBytes)
  mask[core >> 3] = 1 << (core & 7)
  masks.set(core, mask)
  return mask
}
