// Our own kernels (engine/kernels) for the library's CPU backend.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import koffi from 'koffi'
import type { Library } from './library.ts'

/** The version of llama.cpp whose binary interface `engine/kernels/ggml.h` repeats. */
const version = '0.5.0-dev'

/**
 * Adds the kernels to the CPU backend: for products with eight-bit weights of models that are loaded from now on, and for
 * attention. Null, or why the library's own are used.
 */
export function addKernels(library: Library): string | null {
  const file = join(library.dir, 'libtunery-kernels.so')
  if (!existsSync(file)) return 'they are not installed'
  const found = library.llama_version()
  if (found !== version) return `the library is llama.cpp ${found}, not ${version}`
  return koffi.load(file).func('const char* tunery_add_kernels()')() as string | null
}
