// Which weights are served as an eight-bit copy (Q8_0), as that is faster: those in 16 and 32 bits, which are twice and
// four times as much to read, and some of 4 and 5 bits on x64. Gains and costs:
// docs/decisions/010-weights-in-eight-bits.md.
import { readdirSync, rmSync } from 'node:fs'
import { open, rename, rm, stat, statfs, utimes } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import koffi, { type KoffiFunc } from 'koffi'
import { eightBitsFile, hasEightBitsFile, wideTypes } from '../../lib/eight-bits.ts'
import { fileTypes } from './file-types.ts'
import { callAsync, type Library } from './library.ts'
import { freeModel, type Model } from './model.ts'
import type { Pointer } from './structs.ts'

const named = (names: readonly (keyof typeof fileTypes)[]) => new Set(names.map((name) => String(fileTypes[name])))
/** Types with twice the bytes or more. */
const wide = named(wideTypes)
/** Without AMX the library has no kernel that multiplies these with several tokens. */
const slowTypes = named(['Q4_1', 'Q5_1'])
/** With more threads, memory bandwidth limits single streams, and eight bits are more to read than four. */
const threadsMax = 8
/** Below, there is little to gain. */
const wideBytesMin = 32e6
/** Larger files of few bits get no copy: it takes half as much memory and disk again. */
const slowBytesMax = 2e9
/** Smaller files of few bits are copied while they are loaded, in a second: they answer several times as fast then. */
const atLoadBytesMax = 256e6

/** Bytes of an eight-bit copy for each of the original. */
const growth = (type: string | null) => (type === String(fileTypes.F32) ? 0.27 : wide.has(type ?? '') ? 0.54 : 1.7)

/** What this machine computes with. */
export interface Processor {
  threads: number
  has_own_kernels: boolean
}

/** Whether an eight-bit copy of a model's file is faster here than the file. */
export function gainsFromEightBits(
  library: Library,
  { threads, has_own_kernels }: Processor,
  { file_type, is_embedding_model }: Pick<Model, 'file_type' | 'is_embedding_model'>,
  bytes: number,
): boolean {
  // Vectors that somebody has stored must stay comparable to the bit.
  if (library.llama_supports_gpu_offload() || is_embedding_model) return false
  if (wide.has(file_type ?? '')) return bytes >= wideBytesMin
  if (!slowTypes.has(file_type ?? '') || bytes > slowBytesMax || threads > threadsMax) return false
  const features = cpuFeatures(library)
  return features.has('AVX2') && (has_own_kernels || !features.has('AMX_INT8'))
}

/**
 * Loads a GGUF file, or its eight-bit copy if there is one. Of a small file of few bits the first load writes it; of
 * others the result `gains`, and somebody makes it beside the answers (engine/models/eight-bits.ts). `open` reads one
 * file with `loadModel`. Throws like it.
 */
export async function loadFastestFormat<Opened extends { model: Model }>(
  library: Library,
  path: string,
  processor: Processor,
  min_free_bytes: number,
  open: (path: string) => Promise<Opened>,
): Promise<{ opened: Opened; gains: boolean }> {
  if (!library.llama_supports_gpu_offload() && hasEightBitsFile(path)) {
    const copy = await openCopy(path, open)
    if (copy) return { opened: copy, gains: true }
    await rm(eightBitsFile(path), { force: true }).catch(() => {})
  }
  const { size } = await stat(path)
  const opened = await open(path)
  const gains = gainsFromEightBits(library, processor, opened.model, size)
  if (!gains || size > atLoadBytesMax || wide.has(opened.model.file_type ?? '')) return { opened, gains }
  try {
    await writeEightBits(library, path, opened.model.file_type, processor.threads, min_free_bytes)
    const copy = await openCopy(path, open)
    if (!copy) return { opened, gains: false }
    freeModel(library, opened.model)
    return { opened: copy, gains }
  } catch {
    // The folder is read-only or the disk is full: serve the file itself, only slower. Who makes copies says why.
    return { opened, gains }
  }
}

/** Reads the eight-bit copy; null if it is damaged. */
export async function openCopy<Opened extends { model: Model }>(
  path: string,
  open: (path: string) => Promise<Opened>,
): Promise<Opened | null> {
  try {
    const opened = await open(eightBitsFile(path))
    opened.model.is_eight_bit_copy = true
    return opened
  } catch {
    return null
  }
}

/** Not enough disk space for a copy. */
export class DiskTooFull extends Error {}

let copies = 0

/**
 * Writes the eight-bit copy beside its file, atomically. One process at a time: others wait, and then find it. Throws
 * DiskTooFull, or an Error if the library or the disk fails.
 */
export async function writeEightBits(
  library: Library,
  path: string,
  type: string | null,
  threads: number,
  min_free_bytes: number,
): Promise<void> {
  const copy = eightBitsFile(path)
  const source = await open(path, 'r')
  try {
    await lock(source.fd)
    if (hasEightBitsFile(path)) return
    removeParts(copy)
    const { mtime, size } = await source.stat()
    const { bavail, bsize } = await statfs(dirname(copy))
    const needed = growth(type) * size + min_free_bytes
    if (bavail * bsize < needed)
      throw new DiskTooFull(
        `Its eight-bit form needs ${megabytes(needed)} MB of free disk space, with what stays free, and ` +
          `${megabytes(bavail * bsize)} MB are. Free more: it is made when the model is loaded next.`,
      )
    const part = `${copy}.${process.pid}-${++copies}.part`
    try {
      const params = {
        ...library.llama_model_quantize_default_params(),
        nthread: threads,
        ftype: fileTypes.Q8_0,
        allow_requantize: true,
      }
      const status = await callAsync<number>((done) => library.llama_model_quantize.async(path, part, params, done))
      if (status !== 0) throw new Error('the library could not write its eight-bit form')
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
  } finally {
    await source.close()
  }
}

const megabytes = (bytes: number) => Math.round(bytes / 1e6)

/** Removes what killed processes have left. */
function removeParts(copy: string): void {
  for (const name of readdirSync(dirname(copy)))
    if (name.startsWith(`${basename(copy)}.`) && name.endsWith('.part'))
      rmSync(join(dirname(copy), name), { force: true })
}

const lockExclusively = 2
let flock: KoffiFunc<(fd: number, operation: number) => number> | null = null

/** Waits for the lock of an open file, which its closing and the end of this process give back. */
async function lock(fd: number): Promise<void> {
  if (process.platform !== 'linux') return
  flock ??= koffi.load('libc.so.6').func('int flock(int fd, int operation)')
  // A file system without locks refuses: then two may write, each its own part.
  await new Promise((resolve) => flock!.async(fd, lockExclusively, resolve))
}

const feature = koffi.struct('ggml_backend_feature', { name: 'const char*', value: 'const char*' })
const getFeatures = koffi.proto('void* tunery_get_features(void* reg)')

/** What the library's CPU backend says that it was compiled for. */
function cpuFeatures(library: Library): Set<string> {
  const registered = library.ggml_backend_reg_by_name('CPU')
  const address = library.ggml_backend_reg_get_proc_address(registered, 'ggml_backend_get_features')
  const names = new Set<string>()
  if (!address) return names
  const list = koffi.call(address, getFeatures, registered) as Pointer
  for (let at = 0; ; at++) {
    const { name } = koffi.decode(list, at * koffi.sizeof(feature), feature) as { name: string | null }
    if (name === null) return names
    names.add(name)
  }
}
