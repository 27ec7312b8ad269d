// Quantizes a GGUF file with the library.
import koffi from 'koffi'
import { fileTypes } from './file-types.ts'
import type { ImportanceMatrix } from './importance.ts'
import { callAsync, type Library, logCallback, silenceLogs } from './library.ts'

/** Bytes of a tensor in memory at once. Keeps memory small for any model. */
const bufferBytes = 128 * 2 ** 20

export class QuantizationFailed extends Error {}

interface QuantizeOptions {
  source: string
  out: string
  type: keyof typeof fileTypes
  threads: number
  /** Undefined: all inputs matter equally. */
  importance: ImportanceMatrix | undefined
  onProgress(done: number): void
}

/** Log line of a tensor being written: its number, and the number of tensors. */
const tensorLine = /^\[\s*(\d+)\/\s*(\d+)\]/

/**
 * Writes `out`, which is complete only when this resolves. `onProgress` gets the fraction done, 0 to 1. Rejects with
 * QuantizationFailed and the library's reason if it cannot make this file.
 */
export async function quantize(
  library: Library,
  { source, out, type, threads, importance, onProgress }: QuantizeOptions,
): Promise<void> {
  const problems: string[] = []
  // The library logs from the thread of the call, which waits until this thread has run the callback.
  const callback = koffi.register((level: number, text: string) => {
    const [, tensor, tensors] = tensorLine.exec(text) ?? []
    if (tensor) onProgress((Number(tensor) - 1) / Number(tensors))
    else if (level === logLevels.error) problems.push(text.trim())
  }, koffi.pointer(logCallback))
  library.llama_log_set(callback, null)
  try {
    const params = {
      ...library.llama_model_quantize_default_params(),
      nthread: threads,
      ftype: fileTypes[type],
      imatrix: importance?.address ?? null,
      max_buf_size: bufferBytes,
    }
    const status = await callAsync<number>((done) => library.llama_model_quantize.async(source, out, params, done))
    if (status !== 0)
      throw new QuantizationFailed(
        problems.map((problem) => problem.replace(/^\w+: failed to quantize: /, '')).join(' ') ||
          `the library answered ${status}`,
      )
  } finally {
    // Keeps the memory referenced, so that it is not collected while the library's thread reads it.
    void importance?.memory
    silenceLogs(library)
    koffi.unregister(callback)
  }
}

const logLevels = { error: 4 }
