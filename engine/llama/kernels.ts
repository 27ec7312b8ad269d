// Our own kernels (engine/kernels) for the library's CPU backend.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import koffi from 'koffi'
import type { LlamaFunctions } from './functions.ts'

type Library = Pick<LlamaFunctions, 'llama_version'> & { dir: string }

/** The version of llama.cpp whose binary interface `engine/kernels/ggml.h` repeats. */
const version = '0.5.0-dev'

/** The instructions that they were compiled for, the fastest first: a file each. */
export const instructionSets = ['avx512', 'avx2'] as const

/** The file of the kernels for these instructions: set-up puts it beside the library. */
export const kernelsFile = (instructions: (typeof instructionSets)[number]) => `libtunery-kernels-${instructions}.so`

/** The installed files of the kernels, the fastest first. */
function kernelFiles(library: Library): string[] {
  // `./tunery bundle` puts them beside their source's place.
  const folders = [library.dir, join(import.meta.dirname, '../kernels')]
  return instructionSets.flatMap((instructions) =>
    folders.map((folder) => join(folder, kernelsFile(instructions))).filter(existsSync),
  )
}

/** Mends a fault of the library's own CPU backend, where the kernels are installed (`engine/kernels/backend.cpp`). */
export function mendBackend(library: Library): void {
  const [file] = kernelFiles(library)
  if (!file || library.llama_version() !== version) return
  try {
    koffi.load(file).func('void tunery_mend_backend()')()
  } catch {
    // Kernels that cannot be loaded, or of an earlier version: `addKernels` tells why.
  }
}

/**
 * Adds the kernels to the CPU backend: for products with quantized weights of models that are loaded from now on, and
 * for attention. Null, or why the library's own are used.
 */
export function addKernels(library: Library): string | null {
  const files = kernelFiles(library)
  if (files.length === 0) return 'they are not installed'
  const found = library.llama_version()
  if (found !== version) return `the library is llama.cpp ${found}, not ${version}`
  let problem: string | null = null
  for (const file of files) {
    problem = addFile(file)
    if (problem === null) return null
  }
  return problem
}

function addFile(file: string): string | null {
  try {
    const kernels = koffi.load(file)
    const problem = kernels.func('const char* tunery_add_kernels()')() as string | null
    if (problem === null) {
      largest = findLargest(kernels)
      exponentials = findExponentials(kernels)
    }
    return problem
  } catch (error) {
    // They may be of another version, or a bundle's may need a newer C library than this machine has.
    return (error as Error).message
  }
}

/**
 * Writes the largest of `numbers` (at most as many as `values` has room for) and their indices, in descending order,
 * and returns how many there are. `mask`: a bit for each number that may be taken; null: all.
 */
export type Largest = (
  numbers: Float32Array,
  mask: Uint32Array | null,
  values: Float64Array,
  indices: Int32Array,
) => number

/** Null where the kernels are not installed, or not for this processor. */
export let largest: Largest | null = null

function findLargest(kernels: ReturnType<typeof koffi.load>): Largest | null {
  const find = kernels.func(
    'int32_t tunery_largest(const float* numbers, int32_t n, const uint32_t* mask, int32_t size, double* values, ' +
      'int32_t* indices)',
  )
  if (find(new Float32Array(), 0, null, 0, new Float64Array(1), new Int32Array(1)) < 0) return null
  return (numbers, mask, values, indices) => find(numbers, numbers.length, mask, values.length, values, indices)
}

/**
 * Writes e^((x - most) * scale) of each of `numbers`, none of which is above `most`, into `out`, in 32 bits, and
 * returns their sum. Not a finite sum where one of the numbers is not finite, but for minus infinity.
 */
export type Exponentials = (numbers: Float32Array, most: number, scale: number, out: Float32Array | null) => number

/** Null where the kernels are not installed, or not for this processor. */
export let exponentials: Exponentials | null = null

function findExponentials(kernels: ReturnType<typeof koffi.load>): Exponentials | null {
  const compute = kernels.func(
    'double tunery_exponentials(const float* numbers, int32_t n, float most, float scale, float* out)',
  )
  if (compute(new Float32Array(), 0, 0, 1, null) < 0) return null
  return (numbers, most, scale, out) => compute(numbers, numbers.length, most, scale, out)
}
