// One llama context: the key-value caches of a fixed number of sequences, and the batch that is decoded over them.
import koffi from 'koffi'
import type { Library } from './library.ts'
import type { Model } from './model.ts'
import type { Pointer } from './structs.ts'

export type ContextOptions = {
  sequences: number
  tokens_per_sequence: number
  batch_tokens: number
  threads: number
  threadpool: Pointer
  adapter: Pointer
  outputs?: number
}

export type Context = {
  /** What the library granted; it rounds up. */
  tokens_per_sequence: number
  /** Puts a token into the batch and returns its index there. Sequences must be added in ascending order. */
  add(token: number, position: number, sequence: number, wantsLogits: boolean): number
  batchLength(): number
  /** Computes the batch and empties it. 0 is success, 1 no room in the cache, less than 0 a failure. */
  decode(): number
  /** Samples from the logits of the token at this index of the batch decoded last. */
  sample(sampler: Pointer, index: number): number
  /** The logits of the token at this index of the batch decoded last, in the library's own memory: to be read before the next decode. */
  logits(index: number, vocabSize: number): Float32Array
  /** Forgets a sequence from `position` on. False when the model's memory cannot be cut there; it is unchanged then. */
  truncate(sequence: number, position: number): boolean
  /** Copies the whole cache of one sequence over another's. The copy is made in the next decode. */
  copy(from: number, to: number): void
  /** A second call does nothing. */
  free(): void
}

/** Reserves the memory and attaches adapter and threads. Throws where the library refuses, mostly for want of memory. */
export function createContext(library: Library, model: Model, options: ContextOptions): Context {
  const { sequences, batch_tokens: capacity, threads } = options
  const handle = library.llama_init_from_model(model.handle, {
    ...library.llama_context_default_params(),
    n_ctx: sequences * options.tokens_per_sequence,
    n_batch: capacity,
    n_ubatch: capacity,
    n_seq_max: sequences,
    // Without this the library reserves logits for every token of a batch: a hundred megabytes for a small vocabulary.
    n_outputs_max: options.outputs ?? sequences,
    n_threads: threads,
    n_threads_batch: threads,
    kv_unified: false,
  })
  if (!handle) throw new Error(`No memory for ${sequences} sequences of ${options.tokens_per_sequence} tokens.`)
  library.llama_attach_threadpool(handle, options.threadpool, null)
  if (options.adapter && library.llama_set_adapters_lora(handle, [options.adapter], 1, [1]) !== 0) {
    library.llama_free(handle)
    throw new Error('The library refused to attach the adapter.')
  }
  const memory = library.llama_get_memory(handle)
  const batch = allocateBatch(capacity)
  let length = 0
  let freed = false

  return {
    tokens_per_sequence: library.llama_n_ctx_seq(handle),
    batchLength: () => length,
    add(token, position, sequence, wantsLogits) {
      batch.token[length] = token
      batch.position[length] = position
      batch.sequence[length] = sequence
      batch.logits[length] = wantsLogits ? 1 : 0
      return length++
    },
    decode() {
      const tokens = length
      length = 0
      return library.llama_decode(handle, { ...batch.struct, n_tokens: tokens })
    },
    sample: (sampler, index) => library.llama_sampler_sample(sampler, handle, index),
    logits: (index, vocabSize) => new Float32Array(koffi.view(library.llama_get_logits_ith(handle, index), vocabSize * 4)),
    truncate: (sequence, position) => library.llama_memory_seq_rm(memory, sequence, position, -1),
    copy: (from, to) => library.llama_memory_seq_cp(memory, from, to, -1, -1),
    free() {
      if (freed) return
      freed = true
      library.llama_free(handle)
      batch.free()
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
