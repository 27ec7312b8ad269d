// Bindings of the llama.h and ggml functions that the engine calls, with C and TypeScript types.
import type { LibraryHandle } from 'koffi'
import './structs.ts'
import type { Batch, ContextParams, ModelParams, Pointer, QuantizeParams, ThreadpoolParams } from './structs.ts'

type Callback = (error: unknown, result: Pointer) => void
export type LoadModel = ((path: string, params: ModelParams) => Pointer) & {
  async: (path: string, params: ModelParams, done: Callback) => void
}
type InitContext = ((model: Pointer, params: ContextParams) => Pointer) & {
  async: (model: Pointer, params: ContextParams, done: Callback) => void
}
interface Quantize {
  async: (from: string, to: string, params: QuantizeParams, done: (error: unknown, status: number) => void) => void
}
export type Tokenize = (
  vocab: Pointer,
  text: Buffer,
  textBytes: number,
  out: Int32Array,
  max: number,
  addSpecial: boolean,
  parseSpecial: boolean,
) => number

interface Libraries {
  base: LibraryHandle
  ggml: LibraryHandle
  llama: LibraryHandle
}

const bind = <T>(library: LibraryHandle, signature: string): T => library.func(signature) as unknown as T

/** Devices, logs and the library itself. */
const bindBackend = ({ base, ggml, llama }: Libraries) => ({
  ggml_backend_load_all_from_path: bind<(dir: string) => void>(
    ggml,
    'void ggml_backend_load_all_from_path(const char*)',
  ),
  ggml_backend_reg_by_name: bind<(name: string) => Pointer>(ggml, 'void* ggml_backend_reg_by_name(const char*)'),
  ggml_backend_reg_get_proc_address: bind<(reg: Pointer, name: string) => Pointer>(
    base,
    'void* ggml_backend_reg_get_proc_address(void*, const char*)',
  ),
  ggml_threadpool_params_default: bind<(threads: number) => ThreadpoolParams>(
    base,
    'ggml_threadpool_params ggml_threadpool_params_default(int)',
  ),
  llama_log_set: bind<(callback: Pointer, userData: Pointer) => void>(llama, 'void llama_log_set(void*, void*)'),
  llama_backend_init: bind<() => void>(llama, 'void llama_backend_init()'),
  llama_supports_gpu_offload: bind<() => boolean>(llama, 'bool llama_supports_gpu_offload()'),
  llama_version: bind<() => string>(llama, 'const char* llama_version()'),
})

/** A model, its file and what its metadata says. */
const bindModel = (llama: LibraryHandle) => ({
  llama_model_default_params: bind<() => ModelParams>(llama, 'llama_model_params llama_model_default_params()'),
  llama_model_load_from_file: bind<LoadModel>(
    llama,
    'void* llama_model_load_from_file(const char*, llama_model_params)',
  ),
  llama_model_quantize_default_params: bind<() => QuantizeParams>(
    llama,
    'llama_model_quantize_params llama_model_quantize_default_params()',
  ),
  llama_model_quantize: bind<Quantize>(
    llama,
    'uint32_t llama_model_quantize(const char*, const char*, llama_model_quantize_params*)',
  ),
  llama_model_free: bind<(model: Pointer) => void>(llama, 'void llama_model_free(void*)'),
  llama_model_get_vocab: bind<(model: Pointer) => Pointer>(llama, 'void* llama_model_get_vocab(void*)'),
  llama_model_n_ctx_train: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_ctx_train(void*)'),
  llama_model_n_layer: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_layer(void*)'),
  llama_model_n_embd: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_embd(void*)'),
  llama_model_n_embd_inp: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_embd_inp(void*)'),
  llama_model_rope_type: bind<(model: Pointer) => number>(llama, 'int llama_model_rope_type(void*)'),
  llama_model_n_head: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_head(void*)'),
  llama_model_n_head_kv: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_head_kv(void*)'),
  llama_model_n_swa: bind<(model: Pointer) => number>(llama, 'int32_t llama_model_n_swa(void*)'),
  llama_model_size: bind<(model: Pointer) => number | bigint>(llama, 'uint64_t llama_model_size(void*)'),
  llama_model_has_decoder: bind<(model: Pointer) => boolean>(llama, 'bool llama_model_has_decoder(void*)'),
  llama_model_has_encoder: bind<(model: Pointer) => boolean>(llama, 'bool llama_model_has_encoder(void*)'),
  llama_model_is_recurrent: bind<(model: Pointer) => boolean>(llama, 'bool llama_model_is_recurrent(void*)'),
  llama_model_is_hybrid: bind<(model: Pointer) => boolean>(llama, 'bool llama_model_is_hybrid(void*)'),
  llama_model_meta_val_str: bind<(model: Pointer, key: string, out: Buffer | null, bytes: number) => number>(
    llama,
    'int32_t llama_model_meta_val_str(void*, const char*, _Out_ char*, size_t)',
  ),
  llama_model_chat_template: bind<(model: Pointer, name: string | null) => string | null>(
    llama,
    'const char* llama_model_chat_template(void*, const char*)',
  ),
})

/** Adapters of a context. */
const bindAdapter = (llama: LibraryHandle) => ({
  llama_adapter_lora_init: bind<(model: Pointer, path: string) => Pointer>(
    llama,
    'void* llama_adapter_lora_init(void*, const char*)',
  ),
  llama_adapter_lora_free: bind<(adapter: Pointer) => void>(llama, 'void llama_adapter_lora_free(void*)'),
  llama_set_adapters_lora: bind<(context: Pointer, adapters: Pointer[], count: number, scales: number[]) => number>(
    llama,
    'int32_t llama_set_adapters_lora(void*, void**, size_t, float*)',
  ),
})

/** The vocabulary of a model, and its tokenizer. */
const bindVocab = (llama: LibraryHandle) => ({
  llama_vocab_n_tokens: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_n_tokens(void*)'),
  llama_vocab_is_eog: bind<(vocab: Pointer, token: number) => boolean>(
    llama,
    'bool llama_vocab_is_eog(void*, int32_t)',
  ),
  llama_vocab_bos: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_bos(void*)'),
  llama_vocab_eos: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_eos(void*)'),
  llama_vocab_fim_pre: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_fim_pre(void*)'),
  llama_vocab_fim_suf: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_fim_suf(void*)'),
  llama_vocab_fim_mid: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_fim_mid(void*)'),
  llama_vocab_get_add_bos: bind<(vocab: Pointer) => boolean>(llama, 'bool llama_vocab_get_add_bos(void*)'),
  llama_vocab_get_attr: bind<(vocab: Pointer, token: number) => number>(
    llama,
    'int32_t llama_vocab_get_attr(void*, int32_t)',
  ),
  llama_vocab_type: bind<(vocab: Pointer) => number>(llama, 'int32_t llama_vocab_type(void*)'),
  llama_vocab_get_text: bind<(vocab: Pointer, token: number) => string>(
    llama,
    'const char* llama_vocab_get_text(void*, int32_t)',
  ),
  llama_tokenize: bind<Tokenize>(
    llama,
    'int32_t llama_tokenize(void*, const void*, int32_t, _Out_ int32_t*, int32_t, bool, bool)',
  ),
  llama_token_to_piece: bind<
    (vocab: Pointer, token: number, out: Buffer, bytes: number, lstrip: number, special: boolean) => number
  >(llama, 'int32_t llama_token_to_piece(void*, int32_t, _Out_ char*, int32_t, int32_t, bool)'),
})

/** A context: threads, memory, computing and what came out. */
const bindContext = (llama: LibraryHandle) => ({
  llama_context_default_params: bind<() => ContextParams>(llama, 'llama_context_params llama_context_default_params()'),
  llama_init_from_model: bind<InitContext>(llama, 'void* llama_init_from_model(void*, llama_context_params)'),
  llama_free: bind<(context: Pointer) => void>(llama, 'void llama_free(void*)'),
  llama_attach_threadpool: bind<(context: Pointer, pool: Pointer, batchPool: Pointer) => void>(
    llama,
    'void llama_attach_threadpool(void*, void*, void*)',
  ),
  llama_set_n_threads: bind<(context: Pointer, threads: number, batchThreads: number) => void>(
    llama,
    'void llama_set_n_threads(void*, int32_t, int32_t)',
  ),
  llama_n_ctx_seq: bind<(context: Pointer) => number>(llama, 'uint32_t llama_n_ctx_seq(void*)'),
  llama_get_memory: bind<(context: Pointer) => Pointer>(llama, 'void* llama_get_memory(void*)'),
  llama_memory_seq_rm: bind<(memory: Pointer, seq: number, from: number, to: number) => boolean>(
    llama,
    'bool llama_memory_seq_rm(void*, int32_t, int32_t, int32_t)',
  ),
  llama_memory_seq_cp: bind<(memory: Pointer, from: number, to: number, p0: number, p1: number) => void>(
    llama,
    'void llama_memory_seq_cp(void*, int32_t, int32_t, int32_t, int32_t)',
  ),
  llama_state_seq_get_size: bind<(context: Pointer, seq: number) => number | bigint>(
    llama,
    'size_t llama_state_seq_get_size(void*, int32_t)',
  ),
  llama_state_seq_get_data: bind<(context: Pointer, out: Buffer, bytes: number, seq: number) => number | bigint>(
    llama,
    'size_t llama_state_seq_get_data(void*, void*, size_t, int32_t)',
  ),
  llama_state_seq_set_data: bind<(context: Pointer, data: Buffer, bytes: number, seq: number) => number | bigint>(
    llama,
    'size_t llama_state_seq_set_data(void*, const void*, size_t, int32_t)',
  ),
  llama_set_causal_attn: bind<(context: Pointer, causal: boolean) => void>(
    llama,
    'void llama_set_causal_attn(void*, bool)',
  ),
  llama_decode: bind<(context: Pointer, batch: Batch) => number>(llama, 'int32_t llama_decode(void*, llama_batch)'),
  llama_get_logits: bind<(context: Pointer) => Pointer>(llama, 'void* llama_get_logits(void*)'),
  llama_get_embeddings_seq: bind<(context: Pointer, sequence: number) => Pointer>(
    llama,
    'void* llama_get_embeddings_seq(void*, int32_t)',
  ),
})

/** Binds each C function once. A missing symbol throws here, at start, not in the middle of a request. */
export const bindFunctions = (libraries: Libraries) => ({
  ...bindBackend(libraries),
  ...bindModel(libraries.llama),
  ...bindAdapter(libraries.llama),
  ...bindVocab(libraries.llama),
  ...bindContext(libraries.llama),
})
export type LlamaFunctions = ReturnType<typeof bindFunctions>
