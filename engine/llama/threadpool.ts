// One pool of compute threads for every context of the process: two pools on the same cores would spin against each other.
import koffi from 'koffi'
import type { Library } from './library.ts'
import type { Pointer } from './structs.ts'

const threadpoolNew = koffi.proto('void* tunery_threadpool_new(ggml_threadpool_params* params)')

/**
 * Starts `threads` compute threads. `poll` is how long a thread spins for the next graph before it sleeps, in units of 131,072
 * pause instructions (1 is some milliseconds, 50 the library's default): enough to bridge the gap between two steps is enough,
 * and an idle engine uses no processor at all. Lives as long as the process.
 */
export function createThreadpool(library: Library, threads: number, poll = 1): Pointer {
  const create = library.ggml_backend_reg_get_proc_address(library.ggml_backend_reg_by_name('CPU'), 'ggml_threadpool_new')
  if (!create) throw new Error("The library's CPU backend has no ggml_threadpool_new.")
  const pool = koffi.call(create, threadpoolNew, { ...library.ggml_threadpool_params_default(threads), poll }) as Pointer
  if (!pool) throw new Error(`The library could not start ${threads} compute threads.`)
  return pool
}
