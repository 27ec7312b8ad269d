// Binding of libmtmd, llama.cpp's multimodal part: a projector file, which turns pictures into input vectors of a
// language model. All calls are synchronous, and an encoding takes seconds: engine/vision calls them on its own thread.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import koffi from 'koffi'
import { logCallback } from './library.ts'
import type { Pointer } from './structs.ts'

export const mtmdParamsFields = {
  use_gpu: 'bool',
  device: 'void*',
  print_timings: 'bool',
  n_threads: 'int',
  image_marker: 'void*',
  media_marker: 'void*',
  flash_attn_type: 'int',
  warmup: 'bool',
  image_min_tokens: 'int',
  image_max_tokens: 'int',
  cb_eval: 'void*',
  cb_eval_user_data: 'void*',
  batch_max_tokens: 'int32_t',
  progress_callback: 'void*',
  progress_callback_user_data: 'void*',
} as const
export const mtmdTextFields = {
  text: 'const char*',
  text_len: 'size_t',
  add_special: 'bool',
  parse_special: 'bool',
} as const
export const mtmdPositionFields = { t: 'uint32_t', x: 'uint32_t', y: 'uint32_t', z: 'uint32_t' } as const

export const mtmdStructs = {
  mtmd_context_params: koffi.struct('mtmd_context_params', mtmdParamsFields),
  mtmd_input_text: koffi.struct('mtmd_input_text', mtmdTextFields),
  mtmd_decoder_pos: koffi.struct('mtmd_decoder_pos', mtmdPositionFields),
} as const

// Defaults of the header's version. Reading them back through our struct reveals another layout.
const paramsDefaults = {
  use_gpu: true,
  device: null,
  print_timings: true,
  n_threads: 4,
  image_marker: null,
  flash_attn_type: -1,
  warmup: true,
  image_min_tokens: -1,
  image_max_tokens: -1,
  cb_eval: null,
  cb_eval_user_data: null,
  batch_max_tokens: 1024,
  progress_callback: null,
  progress_callback_user_data: null,
}

/** Width and height in pixels. */
export interface PictureSize {
  width: number
  height: number
}
/** Pixels in rows from the top, 3 bytes each: red, green, blue. */
export interface Rgb extends PictureSize {
  rgb: Uint8Array
}

/**
 * A part of a picture's prompt: text tokens around it or between its tiles, or one tile (or the whole picture) as
 * `n_tokens` vectors. `positions`: for a model with multimodal rotary positions, time, y and x of each vector relative
 * to the part's first position, 3 numbers each; else null. The part takes `n_positions` positions.
 */
export type PicturePart =
  | { kind: 'text'; tokens: number[] }
  | { kind: 'vectors'; n_tokens: number; n_positions: number; positions: Int32Array | null }

export interface PreparedPicture {
  parts: PicturePart[]
  /** The vectors of a part: `n_tokens` times the projector's `vector_length` numbers. Throws if the library fails. */
  encode(part: number): Float32Array
  free(): void
}

export interface Projector {
  /** Numbers of one vector. */
  vector_length: number
  /** All vectors of a part attend to each other, so a part must be decoded at once. */
  is_non_causal: boolean
  /** Resizes and cuts a picture as the model was trained, and says of which parts its prompt is made. */
  prepare(picture: Rgb): PreparedPicture
  /** The parts of a picture of this size, without its pixels. */
  measure(size: PictureSize): PicturePart[]
  free(): void
}

export interface ProjectorOptions {
  path: string
  /** Address of the language model in memory, and the length of its input vectors. */
  model: bigint
  vector_length: number
  threads: number
  use_gpu: boolean
}

export const mtmdFile = (dir: string) => join(dir, 'libmtmd.so')

/** The functions of libmtmd in the folder of the llama.cpp libraries, which must be open. Throws if it is missing. */
export function openMtmd(dir: string) {
  const file = mtmdFile(dir)
  if (!existsSync(file))
    throw new Error(
      'the library for pictures (libmtmd) is not installed. Run `npm run setup -- --with vision`, which needs g++',
    )
  const library = koffi.load(file, { lazy: true })
  const bind = <T>(signature: string): T => library.func(signature) as unknown as T
  const functions = {
    paramsDefault: bind<() => Record<string, unknown>>('mtmd_context_params mtmd_context_params_default()'),
    defaultMarker: bind<() => string>('const char* mtmd_default_marker()'),
    init: bind<(path: string, model: Pointer, params: object) => Pointer>(
      'void* mtmd_init_from_file(const char*, void*, mtmd_context_params)',
    ),
    free: bind<(context: Pointer) => void>('void mtmd_free(void*)'),
    logSet: bind<(callback: Pointer, userData: Pointer) => void>('void mtmd_log_set(void*, void*)'),
    supportsVision: bind<(context: Pointer) => boolean>('bool mtmd_support_vision(void*)'),
    useMrope: bind<(context: Pointer) => boolean>('bool mtmd_decode_use_mrope(void*)'),
    useNonCausal: bind<(context: Pointer, chunk: Pointer) => boolean>('bool mtmd_decode_use_non_causal(void*, void*)'),
    bitmapInit: bind<(width: number, height: number, rgb: Uint8Array | null) => Pointer>(
      'void* mtmd_bitmap_init(uint32_t, uint32_t, const void*)',
    ),
    bitmapFree: bind<(bitmap: Pointer) => void>('void mtmd_bitmap_free(void*)'),
    chunksInit: bind<() => Pointer>('void* mtmd_input_chunks_init()'),
    chunksFree: bind<(chunks: Pointer) => void>('void mtmd_input_chunks_free(void*)'),
    chunksSize: bind<(chunks: Pointer) => number | bigint>('size_t mtmd_input_chunks_size(void*)'),
    chunksGet: bind<(chunks: Pointer, index: number) => Pointer>('void* mtmd_input_chunks_get(void*, size_t)'),
    tokenize: bind<(context: Pointer, out: Pointer, text: object, bitmaps: Pointer[], count: number) => number>(
      'int32_t mtmd_tokenize(void*, void*, mtmd_input_text*, void**, size_t)',
    ),
    chunkType: bind<(chunk: Pointer) => number>('int mtmd_input_chunk_get_type(void*)'),
    chunkTokens: bind<(chunk: Pointer) => number | bigint>('size_t mtmd_input_chunk_get_n_tokens(void*)'),
    chunkPositions: bind<(chunk: Pointer) => number>('int32_t mtmd_input_chunk_get_n_pos(void*)'),
    chunkText: bind<(chunk: Pointer, count: [number]) => Pointer>(
      'void* mtmd_input_chunk_get_tokens_text(void*, _Out_ size_t*)',
    ),
    chunkImage: bind<(chunk: Pointer) => Pointer>('void* mtmd_input_chunk_get_tokens_image(void*)'),
    decoderPosition: bind<(image: Pointer, first: number, index: number) => { t: number; x: number; y: number }>(
      'mtmd_decoder_pos mtmd_image_tokens_get_decoder_pos(void*, int32_t, size_t)',
    ),
    encode: bind<(context: Pointer, chunk: Pointer) => number>('int32_t mtmd_encode_chunk(void*, void*)'),
    output: bind<(context: Pointer) => Pointer>('void* mtmd_get_output_embd(void*)'),
    /** A C function that does nothing, as log callback. */
    silentLogger: library.symbol('mtmd_default_marker') as unknown as Pointer,
  }
  const actual = functions.paramsDefault()
  for (const [field, value] of Object.entries(paramsDefaults))
    if ((actual[field] ?? null) !== value)
      throw new Error(
        `libmtmd is of another version (its ${field} is ${actual[field]}). Run \`npm run setup -- --force\``,
      )
  return functions
}
export type Mtmd = ReturnType<typeof openMtmd>

const chunkTypes = { text: 0, image: 1 }
const logLevels = { error: 4 }

/**
 * Runs `work` with the errors that the library logged. The process may run this on one thread only: the library's log
 * callback is global.
 */
function withErrors<T>(mtmd: Mtmd, work: () => T): { result: T; errors: string } {
  const lines: string[] = []
  const callback = koffi.register((level: number, text: string) => {
    if (level === logLevels.error) lines.push(text.trim())
  }, koffi.pointer(logCallback))
  mtmd.logSet(callback as Pointer, null)
  try {
    const result = work()
    return { result, errors: lines.join(' ') }
  } finally {
    mtmd.logSet(mtmd.silentLogger, null)
    koffi.unregister(callback)
  }
}

/** Loads a projector for a model. Throws an Error for the user: no projector, or one of another model. */
export function loadProjector(mtmd: Mtmd, options: ProjectorOptions): Projector {
  const { path, model, vector_length, threads, use_gpu } = options
  const params = {
    ...mtmd.paramsDefault(),
    n_threads: threads,
    use_gpu,
    print_timings: false,
    // It computes a picture of the largest size, which takes seconds.
    warmup: false,
  }
  const { result: handle, errors } = withErrors(mtmd, () => mtmd.init(path, model, params))
  if (!handle) throw new Error(reasonOf(errors))
  if (!mtmd.supportsVision(handle)) {
    mtmd.free(handle)
    throw new Error('it is a projector for sounds, not for pictures')
  }
  const uses_mrope = mtmd.useMrope(handle)
  const marker = mtmd.defaultMarker()

  const readPart = (chunk: Pointer): PicturePart => {
    const n_tokens = Number(mtmd.chunkTokens(chunk))
    if (mtmd.chunkType(chunk) === chunkTypes.text) {
      const address = mtmd.chunkText(chunk, [0])
      return { kind: 'text', tokens: [...new Int32Array(koffi.view(address, n_tokens * 4))] }
    }
    const positions = uses_mrope ? new Int32Array(3 * n_tokens) : null
    if (positions) {
      const image = mtmd.chunkImage(chunk)
      for (let index = 0; index < n_tokens; index++) {
        const { t, x, y } = mtmd.decoderPosition(image, 0, index)
        positions.set([t, y, x], 3 * index)
      }
    }
    return { kind: 'vectors', n_tokens, n_positions: mtmd.chunkPositions(chunk), positions }
  }

  /** Without pixels, the library only counts. */
  const divide = (
    { width, height }: PictureSize,
    rgb: Uint8Array | null,
  ): { chunks: Pointer; parts: PicturePart[] } => {
    const bitmap = mtmd.bitmapInit(width, height, rgb)
    const chunks = mtmd.chunksInit()
    const text = { text: marker, text_len: marker.length, add_special: false, parse_special: true }
    const { result: status, errors } = withErrors(mtmd, () => mtmd.tokenize(handle, chunks, text, [bitmap], 1))
    mtmd.bitmapFree(bitmap)
    if (status !== 0) {
      mtmd.chunksFree(chunks)
      throw new Error(errors || `the library answered ${status}`)
    }
    const count = Number(mtmd.chunksSize(chunks))
    return { chunks, parts: Array.from({ length: count }, (_, index) => readPart(mtmd.chunksGet(chunks, index))) }
  }

  return {
    vector_length,
    is_non_causal: mtmd.useNonCausal(handle, null),
    measure(size) {
      const { chunks, parts } = divide(size, null)
      mtmd.chunksFree(chunks)
      return parts
    },
    prepare(picture) {
      const { chunks, parts } = divide(picture, picture.rgb)
      return {
        parts,
        encode(index) {
          const part = parts[index]
          if (part?.kind !== 'vectors') throw new Error(`part ${index} of the picture has no vectors`)
          const { result, errors } = withErrors(mtmd, () => mtmd.encode(handle, mtmd.chunksGet(chunks, index)))
          if (result !== 0) throw new Error(errors || `the library answered ${result}`)
          const numbers = part.n_tokens * vector_length
          return new Float32Array(koffi.view(mtmd.output(handle), numbers * 4)).slice()
        },
        free: () => mtmd.chunksFree(chunks),
      }
    },
    free: () => mtmd.free(handle),
  }
}

/** The library's reason for refusing a projector, for the user. */
function reasonOf(errors: string): string {
  const [, ofModel, ofProjector] = /text model \(n_embd = (\d+)\) and mmproj \(n_embd = (\d+)\)/.exec(errors) ?? []
  if (ofModel)
    return `it makes vectors of ${ofProjector} numbers, and the model reads ${ofModel}: it belongs to another model`
  return errors.replaceAll(/\b\w+: (error: )?/g, '').trim() || 'it is not a projector that this engine can run'
}
