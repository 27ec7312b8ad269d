// Weights in the form that the processor multiplies soonest. The library has no kernel on x64 that multiplies weights
// of 4 or 5 bits with a minimum (Q4_1, Q5_1) with several tokens at once, AMX apart; in 8 bits it has.
// docs/decisions/010-weights-in-eight-bits.md has what that gains and costs.
import { randomUUID } from 'node:crypto'
import { open, rename, rm, stat, statfs, utimes } from 'node:fs/promises'
import { dirname } from 'node:path'
import koffi from 'koffi'
import { aside, type Library } from './library.ts'
import { freeModel, loadModel, type Model } from './model.ts'
import type { Pointer } from './structs.ts'

/** Of llama.h's `llama_ftype`: Q4_1 and Q5_1 as a file says them, and what is written. */
const slowTypes: readonly (string | null)[] = ['3', '9']
const q8_0 = 7
/** Larger files stay as they are: what the copy takes beside them on the disk is no longer small. */
const fileBytesMax = 2e9
const freeBytesMin = 1e9
/** With more threads the memory is the bound of single streams, and 8 bits are more to read. */
const threadsMax = 8

/**
 * Loads a GGUF file, or its copy in 8 bits where that is computed sooner; the copy is made beside the file at the first
 * time, and where that fails the file itself is loaded. A copy belongs to a file of exactly its time of change. Throws
 * as `loadModel` does.
 */
export async function loadFastest(library: Library, path: string, threads: number): Promise<Model> {
  if (threads > threadsMax || !gainsFromEightBits(library)) return loadModel(library, path)
  const copy = `${path.replace(/\.gguf$/, '')}.eight-bits.gguf`
  const { mtime, size } = await stat(path)
  if (await belongs(copy, mtime)) {
    try {
      return await loadModel(library, copy)
    } catch {
      await rm(copy, { force: true }).catch(() => {})
    }
  }
  const model = await loadModel(library, path)
  if (size > fileBytesMax || !slowTypes.includes(model.file_type)) return model
  try {
    await write(library, path, copy, mtime, threads, size)
    const faster = await loadModel(library, copy)
    freeModel(library, model)
    return faster
  } catch {
    // A folder that can't be written, or no room: the file itself serves as well, only slower.
    return model
  }
}

async function belongs(copy: string, mtime: Date): Promise<boolean> {
  const found = await stat(copy).catch(() => null)
  return found !== null && Math.abs(found.mtimeMs - mtime.getTime()) < 1
}

/** Whole or not at all, also when several processes write it at once. */
async function write(
  library: Library,
  path: string,
  copy: string,
  mtime: Date,
  threads: number,
  size: number,
): Promise<void> {
  const { bavail, bsize } = await statfs(dirname(copy))
  if (bavail * bsize < 2 * size + freeBytesMin) throw new Error('too little room')
  const part = `${copy}.${randomUUID()}.part`
  try {
    const params = {
      ...library.llama_model_quantize_default_params(),
      nthread: threads,
      ftype: q8_0,
      allow_requantize: true,
    }
    const status = await aside<number>((done) => library.llama_model_quantize.async(path, part, params, done))
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

/** Whether an x64 processor computes without AMX, which multiplies the other forms as well, and without a GPU. */
export function gainsFromEightBits(library: Library): boolean {
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
  return names.has('AVX2') && !names.has('AMX_INT8')
}
