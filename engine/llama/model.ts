// Loads base models and adapters into memory.
import { callAsync, type Library, withLogs } from './library.ts'
import type { Pointer } from './structs.ts'
import { openVocab, type Vocab } from './vocab.ts'

export interface Model {
  handle: Pointer
  vocab: Vocab
  /** Jinja chat template of the GGUF file, or null. */
  chat_template: string | null
  /** Parse control tokens in callers' messages as control tokens. False by default; the loader may set it. */
  parse_control_tokens: boolean
  /** Maximum tokens, as the model was trained. */
  context_length: number
  /** Tokens of one request where another server computes the model; null: as many as memory here allows. */
  remote_context_length: number | null
  /** Dimensions of an embedding. */
  embedding_length: number
  /** Numbers of an input vector: of a picture's, where the model reads pictures. */
  vector_length: number
  /** Multimodal rotary positions (M-RoPE): a picture's vectors have time, y and x. */
  uses_mrope: boolean
  /** Whether attention is bidirectional. Such a model has no KV cache. */
  is_bidirectional: boolean
  /** Whether the model was trained for embeddings instead of text generation. */
  is_embedding_model: boolean
  /** KV cache of all layers. */
  kv_bytes_per_token: number
  /** Keys and values of contexts are in eight bits, in 16 otherwise. False by default; `useEightBitCache` sets it. */
  has_eight_bit_cache: boolean
  weight_bytes: number
  /** GGUF's `general.file_type`: quantization of most weights; null if absent. */
  file_type: string | null
  /** The file is the engine's own 8-bit copy of another; its loader sets it. */
  is_eight_bit_copy: boolean
  /** What was merged into the file, as `trainer.cli.merge` wrote it; null if nothing was. */
  merged_from: MergedFrom | null
  /** Whether a sequence's cache can be truncated at any token, which the prefix cache needs. */
  can_truncate_cache: boolean
  /** Whether the cache is just keys and values of every token: no sliding window, no recurrent state. */
  has_plain_cache: boolean
}

/** LLAMA_ROPE_TYPE_MROPE and LLAMA_ROPE_TYPE_IMROPE of llama.h. */
const mropeTypes = [8, 40]

/** The names of the two files that were merged, and their SHA-256 in hex. */
interface MergedFrom {
  base: string
  base_sha256: string
  adapter: string
  adapter_sha256: string
}

/**
 * Loads a GGUF file on another thread, so that streams of other models continue. Throws an Error for the user if the
 * file is not a model that this engine can run. `vocab_only`: another server has the weights.
 */
export async function loadModel(library: Library, path: string, vocab_only = false): Promise<Model> {
  const handle = await callAsync<Pointer>((done) =>
    library.llama_model_load_from_file.async(path, { ...library.llama_model_default_params(), vocab_only }, done),
  )
  if (!handle) throw new Error(`${path} is not a GGUF file of a model that this engine can run, or is damaged.`)
  if (!library.llama_model_has_decoder(handle) || library.llama_model_has_encoder(handle)) {
    library.llama_model_free(handle)
    throw new Error(`${path} is not a decoder-only language model.`)
  }
  const isRecurrent = library.llama_model_is_recurrent(handle) || library.llama_model_is_hybrid(handle)
  return {
    handle,
    vocab: await openVocab(library, library.llama_model_get_vocab(handle)),
    chat_template: library.llama_model_chat_template(handle, null),
    parse_control_tokens: false,
    context_length: vocab_only ? count(library, handle, 'context_length') : library.llama_model_n_ctx_train(handle),
    remote_context_length: null,
    embedding_length: library.llama_model_n_embd(handle),
    vector_length: library.llama_model_n_embd_inp(handle),
    uses_mrope: mropeTypes.includes(library.llama_model_rope_type(handle)),
    is_bidirectional:
      metadata(library, handle, `${metadata(library, handle, 'general.architecture')}.attention.causal`) === 'false',
    is_embedding_model: makesEmbeddings(library, handle),
    kv_bytes_per_token: kvBytesPerToken(library, handle, vocab_only),
    has_eight_bit_cache: false,
    file_type: metadata(library, handle, 'general.file_type') ?? null,
    is_eight_bit_copy: false,
    merged_from: mergedFrom(library, handle),
    weight_bytes: Number(library.llama_model_size(handle)),
    can_truncate_cache: !isRecurrent,
    has_plain_cache: !isRecurrent && library.llama_model_n_swa(handle) === 0,
  }
}

/** Lengths of a head that our kernels read in eight bits. */
const eightBitHeadLengths = [64, 96, 128, 192, 256]
/** Bytes of a block of 32 numbers in eight bits, and in 16. */
const eightBitShare = 34 / 64

/**
 * Keeps keys and values of the model's future contexts in eight bits, if our kernels compute its attention to them: the
 * library's take ten times as long for prompts.
 */
export function useEightBitCache(library: Library, model: Model): void {
  const { handle } = model
  const lengths = [keyLength(library, handle), valueLength(library, handle)]
  const isPlain = !attentionExtras.some((key) => count(library, handle, key) > 0)
  const hasSinks = metadata(library, handle, 'general.architecture') === 'gpt-oss'
  if (model.is_embedding_model || lengths[0] !== lengths[1] || !eightBitHeadLengths.includes(lengths[0]!)) return
  if (!isPlain || hasSinks) return
  model.has_eight_bit_cache = true
  model.kv_bytes_per_token *= eightBitShare
}

export function freeModel(library: Library, model: Model): void {
  library.llama_model_free(model.handle)
}

/** Loads a GGUF adapter for `model`. Throws an Error with the library's reason: not an adapter, or for another base. */
export function loadAdapter(library: Library, model: Model, path: string): Pointer {
  const { result, logged } = withLogs(library, () => library.llama_adapter_lora_init(model.handle, path))
  if (result) return result
  throw new Error(logged.replace(/^.*failed to apply lora adapter: /s, '') || 'not a LoRA adapter in GGUF')
}

export function freeAdapter(library: Library, adapter: Pointer): void {
  library.llama_adapter_lora_free(adapter)
}

/** Attention with these is the library's: a bias by distance, a bound on scores, and a latent instead of keys. */
const attentionExtras = ['attention.max_alibi_bias', 'attn_logit_softcapping', 'attention.kv_lora_rank']

const headLength = (library: Library, handle: Pointer) =>
  library.llama_model_n_embd(handle) / Math.max(1, library.llama_model_n_head(handle))
const keyLength = (library: Library, handle: Pointer) =>
  count(library, handle, 'attention.key_length') || headLength(library, handle)
const valueLength = (library: Library, handle: Pointer) =>
  count(library, handle, 'attention.value_length') || headLength(library, handle)

/** `vocab_only`: the library aborts where it is asked for counts that it has not read. */
function kvBytesPerToken(library: Library, handle: Pointer, vocab_only: boolean): number {
  const read = (counted: (handle: Pointer) => number, key: string) =>
    vocab_only ? count(library, handle, key) : counted(handle)
  const heads = Math.max(1, read(library.llama_model_n_head, 'attention.head_count'))
  const headLength = read(library.llama_model_n_embd, 'embedding_length') / heads
  const keyLength = count(library, handle, 'attention.key_length') || headLength
  const valueLength = count(library, handle, 'attention.value_length') || headLength
  const bytesPerValue = 2
  return (
    read(library.llama_model_n_layer, 'block_count') *
    Math.max(1, read(library.llama_model_n_head_kv, 'attention.head_count_kv')) *
    (keyLength + valueLength) *
    bytesPerValue
  )
}

function mergedFrom(library: Library, handle: Pointer): MergedFrom | null {
  const read = (name: string) => metadata(library, handle, `tunery.merged.${name}`)
  const [base, base_sha256] = [read('base'), read('base_sha256')]
  const [adapter, adapter_sha256] = [read('adapter'), read('adapter_sha256')]
  if (!base || !base_sha256 || !adapter || !adapter_sha256) return null
  return { base, base_sha256, adapter, adapter_sha256 }
}

/** Pooling types that make one vector per text: mean, first token, last token. */
const embeddingPoolings = ['1', '2', '3']

function makesEmbeddings(library: Library, handle: Pointer): boolean {
  const pooling = metadata(library, handle, `${metadata(library, handle, 'general.architecture')}.pooling_type`)
  return pooling !== undefined && embeddingPoolings.includes(pooling)
}

/** A number of the model's architecture; 0 if the file has none. */
function count(library: Library, handle: Pointer, key: string): number {
  const architecture = metadata(library, handle, 'general.architecture')
  return Number(metadata(library, handle, `${architecture}.${key}`)) || 0
}

function metadata(library: Library, handle: Pointer, key: string): string | undefined {
  const out = Buffer.alloc(256)
  const length = library.llama_model_meta_val_str(handle, key, out, out.length)
  return length < 0 ? undefined : out.toString('utf8', 0, Math.min(length, out.length - 1))
}
