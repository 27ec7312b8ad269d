// Checks the struct layouts at start. Structs of another version's header would pass wrong numbers to C without an
// error. The library's default parameters have known values, so reading them back through our structs reveals a shift.
import type { LlamaFunctions } from './functions.ts'
import type { ContextParams, ModelParams, QuantizeParams, ThreadpoolParams } from './structs.ts'

const modelDefaults: ModelParams = {
  devices: null,
  tensor_buft_overrides: null,
  n_gpu_layers: -1,
  split_mode: 1,
  load_mode: -1,
  lazy_mode: 1,
  main_gpu: 0,
  tensor_split: null,
  progress_callback: null,
  progress_callback_user_data: null,
  kv_overrides: null,
  vocab_only: false,
  check_tensors: false,
  use_extra_bufts: true,
  no_host: false,
  no_alloc: false,
  load_mtp: false,
}

const contextDefaults: ContextParams = {
  n_ctx: 512,
  n_batch: 2048,
  n_ubatch: 512,
  n_seq_max: 1,
  n_rs_seq: 0,
  n_outputs_max: 0,
  n_outputs_max_per_seq: 1,
  n_threads: 4,
  n_threads_batch: 4,
  ctx_type: 0,
  rope_scaling_type: -1,
  pooling_type: -1,
  attention_type: -1,
  flash_attn_type: -1,
  rope_freq_base: 0,
  rope_freq_scale: 0,
  yarn_ext_factor: -1,
  yarn_attn_factor: -1,
  yarn_beta_fast: -1,
  yarn_beta_slow: -1,
  yarn_orig_ctx: 0,
  defrag_thold: -1,
  cb_eval: null,
  cb_eval_user_data: null,
  type_k: 1,
  type_v: 1,
  abort_callback: null,
  abort_callback_data: null,
  embeddings: false,
  offload_kqv: true,
  no_perf: true,
  op_offload: true,
  swa_full: true,
  kv_unified: false,
  samplers: null,
  n_samplers: 0,
  ctx_other: null,
}

const quantizeDefaults: QuantizeParams = {
  nthread: 0,
  ftype: 7,
  output_tensor_type: 43,
  token_embedding_type: 43,
  allow_requantize: false,
  quantize_output_tensor: true,
  only_copy: false,
  pure: false,
  keep_split: false,
  dry_run: false,
  imatrix: null,
  kv_overrides: null,
  tt_overrides: null,
  prune_layers: null,
  max_buf_size: 8 * 2 ** 30,
}

const threadpoolDefaults: Omit<ThreadpoolParams, 'cpumask'> = {
  n_threads: 3,
  prio: 0,
  poll: 50,
  strict_cpu: false,
  paused: false,
}

/** Throws, naming each field, if the library's defaults differ from those of our header version. */
export function assertDefaultParams(library: LlamaFunctions): void {
  const wrong = [
    ...differences('llama_model_params', modelDefaults, library.llama_model_default_params()),
    ...differences('llama_context_params', contextDefaults, library.llama_context_default_params()),
    ...differences('llama_model_quantize_params', quantizeDefaults, library.llama_model_quantize_default_params()),
    ...differences('ggml_threadpool_params', threadpoolDefaults, library.ggml_threadpool_params_default(3)),
  ]
  if (wrong.length > 0)
    throw new Error(
      'The llama.cpp library does not match the structs of this engine (another version?). ' +
        `Run 'npm run setup'. ${wrong.join('; ')}`,
    )
}

function differences(struct: string, expected: object, actual: object): string[] {
  const values = actual as Record<string, unknown>
  return Object.entries(expected)
    .filter(([field, value]) => (values[field] ?? null) !== value)
    .map(([field, value]) => `${struct}.${field} is ${values[field]}, not ${value}`)
}
