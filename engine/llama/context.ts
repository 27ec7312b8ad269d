// A llama.cpp context: the KV cache of a fixed number of sequences, and the batch that is decoded over them.
import koffi from 'koffi'
import type { ComputeThreads } from './compute-threads.ts'
import { callAsync, type Library } from './library.ts'
import type { Model } from './model.ts'
import type { Batch, ContextParams, Pointer } from './structs.ts'

export interface ContextOptions {
  sequences: number
  tokens_per_sequence: number
  batch_tokens: number
  threads: ComputeThreads
  adapter: Pointer
  outputs?: number
  /** Computes one embedding per sequence instead of logits. */
  embeddings?: boolean
  /** Called once, when the context is freed or could not be created. */
  onFree?: () => void
}

export interface Context {
  /** As the library granted it, rounded up. */
  tokens_per_sequence: number
  /** Adds a token to the batch and returns its index. Sequences must be added in ascending order. */
  add(token: number, position: number, sequence: number, wantsLogits: boolean): number
  batchLength(): number
  /**
   * Adds input vectors, such as a picture's, to a batch of their own: the library takes tokens or vectors. Sequences
   * must be added in ascending order.
   */
  addVectors(run: VectorRun, sequence: number): void
  /**
   * Computes the batch of vectors, without logits, and empties it. Not `is_causal`: each vector attends to all of its
   * sequence in the batch. Returns what `decode` returns.
   */
  decodeVectors(is_causal: boolean): number
  /** Computes the batch and empties it. 0: success; 1: the KV cache is full; negative: failure. */
  decode(): number
  /**
   * Logits of the token at this index of the last decoded batch, in the library's own memory. Use (and change) them
   * before the next decode.
   */
  logits(index: number, vocabSize: number): Float32Array
  /** A copy of the embedding of a sequence in the last decoded batch. */
  embedding(sequence: number): Float32Array
  /** Removes a sequence's cache from `position` on. False, and unchanged, if the model cannot truncate there. */
  truncate(sequence: number, position: number): boolean
  /** Copies the whole cache of one sequence to another. The library does it in the next decode. */
  copy(from: number, to: number): void
  /**
   * Copies the cache of a sequence, to restore in any context of the same model and adapter. Null if the model's cache
   * cannot be moved.
   */
  save(sequence: number): SavedSequence | null
  /** False if it does not fit; the sequence is then empty. */
  restore(sequence: number, saved: SavedSequence): boolean
  /**
   * Empties it and attaches another adapter, which is faster than a new context. Releases the former one by its
   * `onFree`. Throws if the library refuses.
   */
  attach(adapter: Pointer, onFree: () => void): void
  /** A second call does nothing. */
  free(): void
}

/**
 * Consecutive input vectors of one sequence. `positions` has time, y and x of each, relative to `first_position`; null
 * for one position after the other.
 */
interface VectorRun {
  n_tokens: number
  vectors: Float32Array
  positions: Int32Array | null
  first_position: number
}

/** Most vectors in a batch of vectors: they are computed at once. */
export const microBatchTokensMax = 512

/** Allocates the memory and attaches adapter and threads. Throws if the library refuses, mostly for lack of memory. */
export function createContext(library: Library, model: Model, options: ContextOptions): Context {
  return wrap(library, model, options, library.llama_init_from_model(model.handle, paramsOf(library, model, options)))
}

/** The same on another thread: clearing two gigabytes takes a second, during which streams continue. */
export async function createContextAsync(library: Library, model: Model, options: ContextOptions): Promise<Context> {
  const handle = await callAsync<Pointer>((done) =>
    library.llama_init_from_model.async(model.handle, paramsOf(library, model, options), done),
  )
  return wrap(library, model, options, handle)
}

/** GGML_TYPE_Q8_0 of ggml.h. */
const q8_0 = 8

function paramsOf(library: Library, { has_eight_bit_cache }: Model, options: ContextOptions): ContextParams {
  const { sequences, batch_tokens: capacity, threads } = options
  return {
    ...library.llama_context_default_params(),
    n_ctx: sequences * options.tokens_per_sequence,
    n_batch: capacity,
    // A larger micro-batch needs more memory. The whole text of an embedding must fit into one.
    n_ubatch: options.embeddings ? capacity : Math.min(capacity, microBatchTokensMax),
    n_seq_max: sequences,
    // Otherwise the library reserves logits for every token of a batch: 100 MB even for a small vocabulary.
    n_outputs_max: options.embeddings ? capacity : (options.outputs ?? sequences),
    embeddings: options.embeddings ?? false,
    n_threads: threads.count,
    n_threads_batch: threads.count,
    kv_unified: false,
    ...(has_eight_bit_cache && { type_k: q8_0, type_v: q8_0 }),
  }
}

function wrap(library: Library, model: Model, options: ContextOptions, handle: Pointer): Context {
  const { sequences } = options
  if (!handle) {
    options.onFree?.()
    throw new Error(`No memory for ${sequences} sequences of ${options.tokens_per_sequence} tokens.`)
  }
  let { onFree } = options
  const attach = (adapter: Pointer) => {
    if (library.llama_set_adapters_lora(handle, [adapter], 1, [1]) !== 0)
      throw new Error('The library refused to attach the adapter.')
  }
  try {
    if (options.adapter) attach(options.adapter)
  } catch (error) {
    library.llama_free(handle)
    onFree?.()
    throw error
  }
  const memory = library.llama_get_memory(handle)
  const decodeBatch = (struct: Batch) => options.threads.step(handle, () => library.llama_decode(handle, struct))
  const batch = allocateBatch(options.batch_tokens)
  let length = 0
  let freed = false
  // Most contexts never see a picture.
  let vectorBatch: VectorBatch | null = null
  // Row of logits of each token in the batch, or -1.
  const rowOf = new Int32Array(options.batch_tokens)
  let rows = 0
  // Reuse one view of the library's logits buffer, which moves only when it grows. V8 counts each view as that much
  // memory: a new one per step would trigger garbage collection twice a second, on the cores that compute.
  let view = { address: 0n, logits: new Float32Array() }
  let batchLogits: Float32Array | null = null
  const viewLogits = (numbers: number): Float32Array => {
    const pointer = library.llama_get_logits(handle)
    const address = koffi.address(pointer)
    if (address !== view.address || numbers > view.logits.length)
      view = { address, logits: new Float32Array(koffi.view(pointer, numbers * 4)) }
    return view.logits
  }

  return {
    tokens_per_sequence: library.llama_n_ctx_seq(handle),
    batchLength: () => length,
    add(token, position, sequence, wantsLogits) {
      batch.token[length] = token
      batch.position[length] = position
      batch.sequence[length] = sequence
      batch.logits[length] = wantsLogits ? 1 : 0
      if (length === 0) rows = 0
      rowOf[length] = wantsLogits ? rows++ : -1
      return length++
    },
    decode() {
      const tokens = length
      length = 0
      batchLogits = null
      return decodeBatch({ ...batch.struct, n_tokens: tokens })
    },
    addVectors(run, sequence) {
      vectorBatch ??= allocateVectorBatch(Math.min(options.batch_tokens, microBatchTokensMax), model)
      vectorBatch.add(run, sequence)
    },
    decodeVectors(is_causal) {
      const struct = vectorBatch!.take()
      if (is_causal) return decodeBatch(struct)
      library.llama_set_causal_attn(handle, false)
      try {
        return decodeBatch(struct)
      } finally {
        library.llama_set_causal_attn(handle, true)
      }
    },
    logits(index, vocabSize) {
      batchLogits ??= viewLogits(rows * vocabSize)
      return batchLogits.subarray(rowOf[index]! * vocabSize, (rowOf[index]! + 1) * vocabSize)
    },
    embedding(sequence) {
      const vector = library.llama_get_embeddings_seq(handle, sequence)
      if (!vector) throw new Error('The library made no embedding of this sequence.')
      return new Float32Array(koffi.view(vector, model.embedding_length * 4)).slice()
    },
    truncate: (sequence, position) => library.llama_memory_seq_rm(memory, sequence, position, -1),
    copy: (from, to) => library.llama_memory_seq_cp(memory, from, to, -1, -1),
    save(sequence) {
      if (!model.has_plain_cache) return null
      const state = Buffer.allocUnsafe(Number(library.llama_state_seq_get_size(handle, sequence)))
      library.llama_state_seq_get_data(handle, state, state.length, sequence)
      return parseSequenceState(state)
    },
    restore(sequence, saved) {
      const state = toSequenceState(saved, sequence, sequences)
      if (Number(library.llama_state_seq_set_data(handle, state, state.length, sequence)) > 0) return true
      library.llama_memory_seq_rm(memory, sequence, -1, -1)
      return false
    },
    attach(adapter, releaseNext) {
      for (let sequence = 0; sequence < sequences; sequence++) library.llama_memory_seq_rm(memory, sequence, -1, -1)
      const releaseFormer = onFree
      onFree = releaseNext
      try {
        attach(adapter)
      } finally {
        releaseFormer?.()
      }
    },
    free() {
      if (freed) return
      freed = true
      library.llama_free(handle)
      batch.free()
      vectorBatch?.free()
      onFree?.()
    },
  }
}

interface VectorBatch {
  add(run: VectorRun, sequence: number): void
  take(): Batch
  free(): void
}

function allocateVectorBatch(capacity: number, { vector_length, uses_mrope }: Model): VectorBatch {
  const batch = allocateBatch(capacity)
  const vectorsPointer = koffi.alloc('float', capacity * vector_length) as Pointer
  const vectors = new Float32Array(koffi.view(vectorsPointer, capacity * vector_length * 4))
  // The library wants all times, then all y, all x, and zeros.
  const dimensions = uses_mrope ? 4 : 1
  const positionsPointer = koffi.alloc('int32_t', capacity * dimensions) as Pointer
  const positions = new Int32Array(koffi.view(positionsPointer, capacity * dimensions * 4))
  let taken: [t: number, y: number, x: number][] = []
  return {
    add({ n_tokens, vectors: added, positions: relative, first_position }, sequence) {
      if (taken.length + n_tokens > capacity) throw new Error(`A batch takes ${capacity} vectors.`)
      vectors.set(added, taken.length * vector_length)
      for (let index = 0; index < n_tokens; index++) {
        batch.sequence[taken.length] = sequence
        batch.logits[taken.length] = 0
        const at = (dimension: number) => first_position + (relative ? relative[3 * index + dimension]! : index)
        taken.push([at(0), at(1), at(2)])
      }
    },
    take() {
      const n_tokens = taken.length
      for (const [index, position] of taken.entries())
        for (let dimension = 0; dimension < dimensions; dimension++)
          positions[dimension * n_tokens + index] = position[dimension] ?? 0
      taken = []
      return { ...batch.struct, n_tokens, token: null, embd: vectorsPointer, pos: positionsPointer }
    },
    free() {
      batch.free()
      koffi.free(vectorsPointer)
      koffi.free(positionsPointer)
    },
  }
}

function allocateBatch(capacity: number) {
  const allocate = (type: string, bytes: number): { pointer: Pointer; buffer: ArrayBuffer } => {
    const pointer = koffi.alloc(type, capacity) as Pointer
    return { pointer, buffer: koffi.view(pointer, capacity * bytes) }
  }
  const token = allocate('int32_t', 4)
  const position = allocate('int32_t', 4)
  const sequence = allocate('int32_t', 4)
  const sequenceCount = allocate('int32_t', 4)
  const sequencePointers = allocate('int64_t', 8)
  const logits = allocate('int8_t', 1)
  new Int32Array(sequenceCount.buffer).fill(1)
  const firstSequence = koffi.address(sequence.pointer)
  new BigInt64Array(sequencePointers.buffer).forEach((_, index, pointers) => {
    pointers[index] = firstSequence + BigInt(4 * index)
  })
  return {
    struct: {
      token: token.pointer,
      embd: null,
      pos: position.pointer,
      n_seq_id: sequenceCount.pointer,
      seq_id: sequencePointers.pointer,
      logits: logits.pointer,
    },
    token: new Int32Array(token.buffer),
    position: new Int32Array(position.buffer),
    sequence: new Int32Array(sequence.buffer),
    logits: new Int8Array(logits.buffer),
    free: () => {
      for (const part of [token, position, sequence, sequenceCount, sequencePointers, logits]) koffi.free(part.pointer)
    },
  }
}

/** The saved cache of one sequence, without the fields that belong to the context it came from. */
export interface SavedSequence {
  magic: number
  cells: Buffer
}

// The library's format of a sequence state, 32-bit numbers: magic, sequence number, number of sequences of the context,
// then the cells of each sequence (a single zero for a sequence not saved). The library restores a state only into a
// context with the same number of sequences, so the zeros are rewritten. Only plain caches have this format; others are
// not moved.
const bytes = 4
const headBytes = 3 * bytes

function parseSequenceState(state: Buffer): SavedSequence {
  const sequence = state.readInt32LE(bytes)
  const sequences = state.readUInt32LE(2 * bytes)
  return {
    magic: state.readUInt32LE(0),
    cells: state.subarray(headBytes + bytes * sequence, state.length - bytes * (sequences - 1 - sequence)),
  }
}

/** The state in the library's format, for sequence `sequence` of a context with `sequences` sequences. */
function toSequenceState({ magic, cells }: SavedSequence, sequence: number, sequences: number): Buffer {
  const head = Buffer.alloc(headBytes + bytes * sequence)
  head.writeUInt32LE(magic, 0)
  head.writeInt32LE(sequence, bytes)
  head.writeUInt32LE(sequences, 2 * bytes)
  return Buffer.concat([head, cells, Buffer.alloc(bytes * (sequences - 1 - sequence))])
}
