// One GGUF file made of another, by the library's own quantization.
import koffi from 'koffi'
import { fileTypes } from './file-types.ts'
import type { ImportanceMatrix } from './importance.ts'
import { aside, type Library, logCallback, silenceLogs } from './library.ts'

/** Rows of a tensor that are held at once: the memory stays small whatever the model. */
const bufferBytes = 128 * 2 ** 20

export class NotQuantized extends Error {}

interface Quantizing {
  source: string
  out: string
  type: keyof typeof fileTypes
  threads: number
  /** Undefined: all inputs weigh the same. */
  importance: ImportanceMatrix | undefined
  onProgress(done: number): void
}

/** Of the library's log: the tensor that is now being written, and of how many. */
const place = /^\[\s*(\d+)\/\s*(\d+)\]/

/**
 * Writes `out`, which is whole only when this resolves. `onProgress` gets the share that is done. Rejects with
 * NotQuantized and the library's reason where the file cannot be made so.
 */
export async function quantize(
  library: Library,
  { source, out, type, threads, importance, onProgress }: Quantizing,
): Promise<void> {
  const problems: string[] = []
  // The library logs from the thread of the call, which waits until this one has heard it.
  const callback = koffi.register((level: number, text: string) => {
    const [, tensor, tensors] = place.exec(text) ?? []
    if (tensor) onProgress((Number(tensor) - 1) / Number(tensors))
    else if (level === logLevels.error) problems.push(text.trim())
  }, koffi.pointer(logCallback))
  library.llama_log_set(callback, null)
  try {
    // What comes in is in full precision; only types of less are made of it.
    const params = {
      ...library.llama_model_quantize_default_params(),
      nthread: threads,
      ftype: fileTypes[type],
      imatrix: importance?.address ?? null,
      max_buf_size: bufferBytes,
    }
    const status = await aside<number>((done) => library.llama_model_quantize.async(source, out, params, done))
    if (status !== 0)
      throw new NotQuantized(
        problems.map((each) => each.replace(/^\w+: failed to quantize: /, '')).join(' ') ||
          `the library answered ${status}`,
      )
  } finally {
    // The library's thread has read it by now; what nobody names any more may be gone before.
    void importance?.memory
    silenceLogs(library)
    koffi.unregister(callback)
  }
}

const logLevels = { error: 4 }
