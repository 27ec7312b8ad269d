// Serves 4- and 5-bit weights (Q4_1, Q5_1) as an 8-bit copy (Q8_0) on x64, where that is faster: our own kernels have
// eight bits, and without AMX the library has none that multiplies Q4_1 or Q5_1 with several tokens. Gains and costs:
// docs/decisions/010-weights-in-eight-bits.md.
import { randomUUID } from 'node:crypto'
import { open, rename, rm, stat, statfs, utimes } from 'node:fs/promises'
import { dirname } from 'node:path'
import koffi from 'koffi'
import { callAsync, type Library } from './library.ts'
import { freeModel, type Model } from './model.ts'
import type { Pointer } from './structs.ts'

/** Numbers of llama.h's `llama_ftype`: Q4_1 and Q5_1, as strings in the file's metadata. */
const slowTypes: readonly (string | null)[] = ['3', '9']
const q8_0 = 7
/** Larger files get no copy, as it would take too much disk space. */
const fileBytesMax = 2e9
const freeBytesMin = 1e9
/** With more threads, memory bandwidth limits single streams, and 8-bit weights are more to read. */
const threadsMax = 8

/**
 * Loads a GGUF file, or its 8-bit copy if that is faster. The first load writes the copy next to the file; if that
 * fails, it loads the file itself. A copy is valid only with the modification time of its file. `open` reads one file
 * with `loadModel`. Throws like it.
 */
export async function loadFastestFormat<Opened extends { model: Model }>(
  library: Library,
  path: string,
  threads: number,
  hasOwnKernels: boolean,
  open: (path: string) => Promise<Opened>,
): Promise<Opened> {
  if (threads > threadsMax || !gainsFromEightBits(library, hasOwnKernels)) return open(path)
  const copy = `${path.replace(/\.gguf$/, '')}.eight-bits.gguf`
  const { mtime, size } = await stat(path)
  if (await isCopyOf(copy, mtime)) {
    try {
      return asCopy(await open(copy))
    } catch {
      await rm(copy, { force: true }).catch(() => {})
    }
  }
  const opened = await open(path)
  if (size > fileBytesMax || !slowTypes.includes(opened.model.file_type)) return opened
  try {
    await writeCopy(library, path, copy, mtime, threads, size)
    const faster = asCopy(await open(copy))
    freeModel(library, opened.model)
    return faster
  } catch {
    // The folder is read-only or the disk is full: serve the file itself, only slower.
    return opened
  }
}

function asCopy<Opened extends { model: Model }>(opened: Opened): Opened {
  opened.model.is_eight_bit_copy = true
  return opened
}

async function isCopyOf(copy: string, mtime: Date): Promise<boolean> {
  const found = await stat(copy).catch(() => null)
  return found !== null && Math.abs(found.mtimeMs - mtime.getTime()) < 1
}

/** Atomic, even if several processes write it at once. */
async function writeCopy(
  library: Library,
  path: string,
  copy: string,
  mtime: Date,
  threads: number,
  size: number,
): Promise<void> {
  const { bavail, bsize } = await statfs(dirname(copy))
  if (bavail * bsize < 2 * size + freeBytesMin) throw new Error('not enough disk space')
  const part = `${copy}.${randomUUID()}.part`
  try {
    const params = {
      ...library.llama_model_quantize_default_params(),
      nthread: threads,
      ftype: q8_0,
      allow_requantize: true,
    }
    const status = await callAsync<number>((done) => library.llama_model_quantize.async(path, part, params, done))
    if (status !== 0) throw new Error('the library could not write it')
    const file = await open(part, 'r+')
    try {
      await file.datasync()
    } finally {
      await file.close()
    }
    await utimes(part, mtime, mtime)
    await rename(part, copy)
  } finally {
    await rm(part, { force: true })
  }
}

const feature = koffi.struct('ggml_backend_feature', { name: 'const char*', value: 'const char*' })
const getFeatures = koffi.proto('void* tunery_get_features(void* reg)')

/** Whether this is an x64 CPU, without a GPU, on which the library has no faster kernels for fewer bits (AMX) than ours. */
export function gainsFromEightBits(library: Library, hasOwnKernels: boolean): boolean {
  if (library.llama_supports_gpu_offload()) return false
  const registered = library.ggml_backend_reg_by_name('CPU')
  const address = library.ggml_backend_reg_get_proc_address(registered, 'ggml_backend_get_features')
  if (!address) return false
  const list = koffi.call(address, getFeatures, registered) as Pointer
  const names = new Set<string>()
  for (let at = 0; ; at++) {
    const { name } = koffi.decode(list, at * koffi.sizeof(feature), feature) as { name: string | null }
    if (name === null) break
    names.add(name)
  }
  return names.has('AVX2') && (hasOwnKernels || !names.has('AMX_INT8'))
}
