// Finds and opens the llama.cpp libraries. ggml chooses the kernels for this machine's CPU when it loads its backends.
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import koffi, { type LibraryHandle } from 'koffi'
import { assertDefaultParams } from './default-params.ts'
import { bindFunctions, type LlamaFunctions } from './functions.ts'
import { mendBackend } from './kernels.ts'

export interface Library extends LlamaFunctions {
  dir: string
  handles: { base: LibraryHandle; ggml: LibraryHandle; llama: LibraryHandle }
}

const suffix = process.platform === 'darwin' ? 'dylib' : process.platform === 'win32' ? 'dll' : 'so'

/**
 * Opens the libraries in `dir`, silences their logs, checks the structs and starts the backends.
 * Throws if a library is missing or has another version than the structs.
 */
export function openLibrary(dir: string): Library {
  const base = load(dir, 'ggml-base')
  const ggml = load(dir, 'ggml')
  const llama = load(dir, 'llama')
  const functions = bindFunctions({ base, ggml, llama })
  const library = { ...functions, dir, handles: { base, ggml, llama } }
  silenceLogs(library)
  assertDefaultParams(library)
  library.ggml_backend_load_all_from_path(dir)
  library.llama_backend_init()
  if (!library.ggml_backend_reg_by_name('CPU'))
    throw new Error(`No CPU backend of ${dir} runs on this machine's processor.`)
  mendBackend(library)
  return library
}

function load(dir: string, name: string): LibraryHandle {
  if (!existsSync(dir))
    throw new Error(
      `The folder of the llama.cpp libraries, ${dir}, does not exist. Run 'npm run setup', or give --lib.`,
    )
  const pattern = new RegExp(`^(lib)?${name}(\\.cuda)?(\\.v?[0-9.]+)?\\.${suffix}$`)
  // A folder may hold a CPU and a GPU build. The shorter name, without `.cuda`, loads the GPU kernels too.
  const [file] = readdirSync(dir)
    .filter((entry) => pattern.test(entry))
    .sort((one, other) => one.length - other.length)
  if (!file) throw new Error(`lib${name}.${suffix} is missing in ${dir}. Run 'npm run setup', or give --lib.`)
  // Global, so that dependent libraries find it although this folder is not on the search path.
  return koffi.load(join(dir, file), { global: true, lazy: true })
}

/**
 * Sets a C function that does nothing as log callback. A JavaScript callback could deadlock: the library's threads
 * would wait for the main thread, which waits in a decode.
 */
export function silenceLogs(library: Library): void {
  library.llama_log_set(library.handles.llama.symbol('llama_supports_mmap'), null)
}

export const logCallback = koffi.proto('void tunery_log_callback(int32_t level, const char* text, void* user_data)')

/** Calls in progress on other threads. Their logs must not reach a JavaScript callback. */
let asyncCalls = 0

/** Makes a koffi `async` call, which runs on another thread, and counts it. */
export function callAsync<T>(start: (done: (error: unknown, result: T) => void) => void): Promise<T> {
  asyncCalls++
  return new Promise<T>((resolve, reject) =>
    start((error, result) => (error ? reject(error) : resolve(result))),
  ).finally(() => {
    asyncCalls--
  })
}

/**
 * Runs `work` and returns its result with the warnings and errors that the library logged. Only for calls that work
 * entirely on the calling thread. `logged` is empty while calls on other threads are in progress.
 */
export function withLogs<T>(library: Library, work: () => T): { result: T; logged: string } {
  if (asyncCalls > 0) return { result: work(), logged: '' }
  const lines: string[] = []
  const callback = koffi.register((level: number, text: string) => {
    if (level === 3 || level === 4) lines.push(text.trim())
  }, koffi.pointer(logCallback))
  library.llama_log_set(callback, null)
  try {
    return { result: work(), logged: lines.join(' ') }
  } finally {
    silenceLogs(library)
    koffi.unregister(callback)
  }
}

// M_MMAP_THRESHOLD of glibc's <malloc.h>.
const mmapThreshold = -3
const blockBytes = 1024 * 1024

/**
 * Makes glibc return freed blocks of a megabyte and more to the system at once. By default glibc raises this threshold
 * up to 32 MB and keeps freed contexts: with hundreds of adapters, the process grew to several times the memory in use.
 * Does nothing with another C library.
 */
export function returnFreedBlocks(): void {
  if (process.platform !== 'linux') return
  try {
    koffi.load('libc.so.6').func('int mallopt(int parameter, int value)')(mmapThreshold, blockBytes)
  } catch {
    // Not glibc. Other C libraries return large blocks anyway.
  }
}
