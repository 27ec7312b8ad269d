// Finding and opening the C libraries. Kernels are not linked: ggml picks the set for this machine's CPU when they are
// loaded.
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import koffi, { type LibraryHandle } from 'koffi'
import { assertDefaultParams } from './default-params.ts'
import { bindFunctions, type LlamaFunctions } from './functions.ts'

export type Library = LlamaFunctions & {
  dir: string
  handles: { base: LibraryHandle; ggml: LibraryHandle; llama: LibraryHandle }
}

const suffix = process.platform === 'darwin' ? 'dylib' : process.platform === 'win32' ? 'dll' : 'so'

/**
 * Opens the libraries in `dir`, silences their logs, checks the structs and starts the backends.
 * Throws when a library is missing or when it is of another version than the structs here describe.
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
  return library
}

function load(dir: string, name: string): LibraryHandle {
  if (!existsSync(dir))
    throw new Error(
      `The folder of the llama.cpp libraries, ${dir}, does not exist. Run 'npm run setup', or give --lib.`,
    )
  const pattern = new RegExp(`^(lib)?${name}(\\.cuda)?(\\.v?[0-9.]+)?\\.${suffix}$`)
  // A folder may hold two builds, one over the other: the one without a GPU in its name finds the GPU's kernels as
  // well.
  const [file] = readdirSync(dir)
    .filter((entry) => pattern.test(entry))
    .sort((one, other) => one.length - other.length)
  if (!file) throw new Error(`lib${name}.${suffix} is missing in ${dir}. Run 'npm run setup', or give --lib.`)
  // Global, so that the libraries which need this one find it although no search path names this folder.
  return koffi.load(join(dir, file), { global: true, lazy: true })
}

/**
 * Points the library's log at a function that does nothing. Its log lines may come from its own threads, where calling
 * into JavaScript would wait for a main thread that is itself waiting in a decode; a C function that ignores its
 * arguments cannot hang.
 */
export function silenceLogs(library: Library): void {
  library.llama_log_set(library.handles.llama.symbol('llama_supports_mmap'), null)
}

export const logCallback = koffi.proto('void tunery_log_callback(int32_t level, const char* text, void* user_data)')

/** Calls into the library on other threads that are under way. Their logs must not come to a function of JavaScript. */
let callsAside = 0

/** Makes a call of koffi's `async` kind, and counts it. */
export function aside<T>(start: (done: (error: unknown, result: T) => void) => void): Promise<T> {
  callsAside++
  return new Promise<T>((resolve, reject) =>
    start((error, result) => (error ? reject(error) : resolve(result))),
  ).finally(() => {
    callsAside--
  })
}

/**
 * Runs `work` and returns what it returned beside the warnings and errors that the library logged meanwhile. Only for
 * calls that do all of their work on the calling thread. Nothing is logged while calls on other threads are under way.
 */
export function withLogs<T>(library: Library, work: () => T): { result: T; logged: string } {
  if (callsAside > 0) return { result: work(), logged: '' }
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

// How the C library's memory goes back to the system.

// Of glibc's <malloc.h>.
const mmapThreshold = -3
const blockBytes = 1024 * 1024

/**
 * Gives blocks of a megabyte and more back as soon as they are freed. glibc raises that bound by itself to what was
 * freed last, up to 32 MB, and keeps contexts that were given up: with hundreds of adapters in turn, the memory of the
 * process grew to several times what is in use. Does nothing where the C library is another.
 */
export function returnLargeBlocks(): void {
  if (process.platform !== 'linux') return
  try {
    koffi.load('libc.so.6').func('int mallopt(int parameter, int value)')(mmapThreshold, blockBytes)
  } catch {
    // Not glibc: others give large blocks back anyway.
  }
}
