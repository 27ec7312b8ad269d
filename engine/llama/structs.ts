// Structs of llama.h and ggml.h that the engine passes to C, with fields in the header's order. structs.test.ts
// compares every size and offset with a C program compiled from that header; default-params.ts checks them at each
// start.
import koffi from 'koffi'

export const modelParamsFields = {
  devices: 'void*',
  tensor_buft_overrides: 'void*',
  n_gpu_layers: 'int32_t',
  split_mode: 'int32_t',
  load_mode: 'int32_t',
  lazy_mode: 'int32_t',
  main_gpu: 'int32_t',
  tensor_split: 'void*',
  progress_callback: 'void*',
  progress_callback_user_data: 'void*',
  kv_overrides: 'void*',
  vocab_only: 'bool',
  check_tensors: 'bool',
  use_extra_bufts: 'bool',
  no_host: 'bool',
  no_alloc: 'bool',
  load_mtp: 'bool',
} as const

export const contextParamsFields = {
  n_ctx: 'uint32_t',
  n_batch: 'uint32_t',
  n_ubatch: 'uint32_t',
  n_seq_max: 'uint32_t',
  n_rs_seq: 'uint32_t',
  n_outputs_max: 'uint32_t',
  n_outputs_max_per_seq: 'uint32_t',
  n_threads: 'int32_t',
  n_threads_batch: 'int32_t',
  ctx_type: 'int32_t',
  rope_scaling_type: 'int32_t',
  pooling_type: 'int32_t',
  attention_type: 'int32_t',
  flash_attn_type: 'int32_t',
  rope_freq_base: 'float',
  rope_freq_scale: 'float',
  yarn_ext_factor: 'float',
  yarn_attn_factor: 'float',
  yarn_beta_fast: 'float',
  yarn_beta_slow: 'float',
  yarn_orig_ctx: 'uint32_t',
  defrag_thold: 'float',
  cb_eval: 'void*',
  cb_eval_user_data: 'void*',
  type_k: 'int32_t',
  type_v: 'int32_t',
  abort_callback: 'void*',
  abort_callback_data: 'void*',
  embeddings: 'bool',
  offload_kqv: 'bool',
  no_perf: 'bool',
  op_offload: 'bool',
  swa_full: 'bool',
  kv_unified: 'bool',
  samplers: 'void*',
  n_samplers: 'size_t',
  ctx_other: 'void*',
} as const

export const batchFields = {
  n_tokens: 'int32_t',
  token: 'void*',
  embd: 'void*',
  pos: 'void*',
  n_seq_id: 'void*',
  seq_id: 'void*',
  logits: 'void*',
} as const

const ggmlMaxThreads = 512

export const threadpoolParamsFields = {
  cpumask: koffi.array('bool', ggmlMaxThreads),
  n_threads: 'int32_t',
  prio: 'int32_t',
  poll: 'uint32_t',
  strict_cpu: 'bool',
  paused: 'bool',
} as const

export const quantizeParamsFields = {
  nthread: 'int32_t',
  ftype: 'int32_t',
  output_tensor_type: 'int32_t',
  token_embedding_type: 'int32_t',
  allow_requantize: 'bool',
  quantize_output_tensor: 'bool',
  only_copy: 'bool',
  pure: 'bool',
  keep_split: 'bool',
  dry_run: 'bool',
  imatrix: 'void*',
  kv_overrides: 'void*',
  tt_overrides: 'void*',
  prune_layers: 'void*',
  max_buf_size: 'size_t',
} as const

/** Every struct by its C name. Defined once, as koffi's type names are global to the process. */
export const structs = {
  llama_model_params: koffi.struct('llama_model_params', modelParamsFields),
  llama_context_params: koffi.struct('llama_context_params', contextParamsFields),
  llama_batch: koffi.struct('llama_batch', batchFields),
  llama_model_quantize_params: koffi.struct('llama_model_quantize_params', quantizeParamsFields),
  ggml_threadpool_params: koffi.struct('ggml_threadpool_params', threadpoolParamsFields),
} as const

/** An address in the library's memory; null: NULL. */
export type Pointer = bigint | null

type Value<T> = T extends 'bool' ? boolean : T extends 'void*' ? Pointer : number
type Struct<F> = { [K in keyof F]: Value<F[K]> }
export type ModelParams = Struct<typeof modelParamsFields>
export type ContextParams = Struct<typeof contextParamsFields>
export type QuantizeParams = Struct<typeof quantizeParamsFields>
export type Batch = Struct<typeof batchFields>
export interface ThreadpoolParams extends Omit<Struct<typeof threadpoolParamsFields>, 'cpumask'> {
  cpumask: boolean[]
}
