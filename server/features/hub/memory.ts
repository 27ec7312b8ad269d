// The memory and time that a base needs on a machine, computed from its sizes.
import { z } from 'zod'
import type { Method } from '../../../contract/common.ts'
import type { Model, Need } from '../../../contract/hub.ts'

/** The sizes of a base that decide its memory. */
export interface Shape {
  layers: number
  hidden_size: number
  /** Width of the MLP that computes every token, beside experts. */
  mlp_size: number
  heads: number
  kv_heads: number
  head_size: number
  vocabulary: number
  /** Weights of the part that sees, which training leaves as it is. */
  vision_weights?: number
  /** Embeddings of each layer, beside those of the vocabulary (Gemma 3n, Gemma 4). */
  layer_embeddings?: number
  /** Weights of the head, where it does not share them with the embeddings. */
  head_weights?: number
  /** Width of queries, keys and values together, where the heads of some layers are wider than `head_size`. */
  qkv_size?: number
  /** Weights of the language model, where the base's files have others, too. */
  weights?: number
  experts?: Experts
}

/** The experts of a mixture. */
export interface Experts {
  weights: number
  /** Width of those that compute a token, together, and their count. */
  size: number
  chosen: number
  /** Weights that a rank of adapters of the other linear layers takes, in all layers. */
  linear_lora: number
}

/** The trainer's ModelShape of a base, without the family: it writes it as a base is added. */
export const Sizes = z.object({
  weights: z.number(),
  layers: z.number(),
  hidden_size: z.number(),
  mlp_size: z.number(),
  qkv_size: z.number(),
  vocabulary: z.number(),
  vision_weights: z.number(),
  layer_embeddings: z.number(),
  // Bases that were added before have no count of it.
  head_weights: z.number().default(0),
  expert_weights: z.number(),
  expert_size: z.number(),
  experts_chosen: z.number(),
  linear_lora: z.number(),
})

/** A shape with the trainer's own counts and widths. */
export function withSizes(shape: Shape, sizes: z.infer<typeof Sizes>): Shape {
  const { expert_weights, expert_size, experts_chosen, linear_lora, ...others } = sizes
  const experts = { weights: expert_weights, size: expert_size, chosen: experts_chosen, linear_lora }
  return { ...shape, ...others, ...(experts_chosen > 0 && { experts }) }
}

export interface Sized {
  family: string | undefined
  parameters: number
  /** Weights that compute a token; fewer than `parameters` with experts. */
  active_parameters: number
  shape: Shape
}

/** What trains and serves on a machine: its GPU, or its cores. */
export interface Machine {
  device: 'cpu' | 'gpu'
  /** Whether it multiplies in bfloat16. */
  bf16: boolean
  cores: number
  /** What the smallest GPU has, else the machine or its control group. */
  memory_bytes: number
  /** GPUs that may share the weights of a base; by default one. */
  devices?: number
}

/** The sizes of a run that decide its memory: its rank, and tokens and learned tokens of its largest pass. */
export interface RunSizes {
  rank: number
  tokens: number
  learned: number
  /** Devices that share the weights of its base; the bytes are those of each. */
  devices?: number
}
/** The run that the hub's figures are of. */
const shownRun: RunSizes = { rank: 16, tokens: 2048, learned: 512 }

// The same figures as in trainer/run/memory.py and trainer/model/fast_head.py; a test compares the results.
const program_bytes = { cpu: 480e6, gpu: 600e6 }
const file_bytes = 300e6
const heap_factor = 1.2
const experts_bytes = 200e6
const chunk_tokens = { cpu: 128, gpu: 1024 }
/** Architectures whose layers the trainer computes itself; those of other families save and compute more. */
const fastFamilies = ['llama', 'mistral', 'qwen2', 'qwen2_vl', 'qwen2_5_vl', 'qwen3', 'idefics3', 'smolvlm']
export const hasFastLayers = (family: string | undefined) => family !== undefined && fastFamilies.includes(family)

/** Peak bytes of a training by `method`, without adapters of experts: predicted_bytes of trainer/run/memory.py. */
export function trainingBytes(
  base: Sized,
  method: Method,
  { device, bf16 }: Pick<Machine, 'device' | 'bf16'>,
  run: RunSizes = shownRun,
): number {
  const { layers, hidden_size: hidden, mlp_size: mlp, heads, kv_heads, head_size, vocabulary } = base.shape
  const { vision_weights = 0, layer_embeddings = 0, head_weights = 0, experts } = base.shape
  const weights = base.shape.weights ?? base.parameters - vision_weights
  const qkv = base.shape.qkv_size ?? head_size * (heads + 2 * kv_heads)
  const gpu = device === 'gpu'
  const { devices = 1 } = run
  const inChunks = method !== 'full' && hasFastLayers(base.family)
  const fast = inChunks && !gpu && bf16
  let dtype = bf16 ? 2 : 4
  let states: number
  let gradients = 0
  if (method === 'full') {
    states = (bf16 ? 14 : 12) * weights
    gradients = 4 * weights
    if (gpu) dtype = 2
  } else {
    const adapters = run.rank * (experts?.linear_lora ?? layers * 2 * (4 * hidden + qkv + 3 * mlp))
    // Experts and tables are not linear layers, and heads are never quantized, so they stay as they are.
    const whole = vocabulary * hidden + head_weights + layer_embeddings + (experts?.weights ?? 0)
    states = (method === 'qlora' ? 0.55 : dtype) * (weights - whole) + dtype * whole + 16 * adapters
  }
  if (experts && !gpu) states += experts_bytes
  states += (method === 'full' ? 4 : dtype) * vision_weights
  let saved: number
  if (gpu) saved = (2 * hidden * 4 + (3 * hidden + qkv + 3 * mlp) * dtype) * (inChunks ? 1 : 4 / 3)
  else if (fast) {
    const attended = heads * head_size
    const norms = base.family === 'qwen3' ? qkv + attended : 0
    saved = heap_factor * (12 * hidden + 2 * qkv + 2 * attended + 6 * mlp + norms)
  } else saved = (4 * hidden + 3 * qkv) * 4 + (3 * mlp + 2 * hidden) * dtype
  if (experts) {
    const number = method === 'full' ? 4 : dtype
    saved += experts.chosen * hidden * (dtype + 2 * number) + 6 * experts.size * number
  }
  const transient = 8 * hidden * 4 + 6 * mlp * dtype
  let activations = run.tokens * (layers * saved + transient)
  if (devices > 1) {
    const embeddings = vocabulary * hidden
    const layered = weights - embeddings - layer_embeddings
    states += dtype * (layered / devices + (3 * layered) / layers - layered + embeddings)
    activations = run.tokens * (layers * hidden * dtype + saved + transient)
  }
  const learned = inChunks && devices === 1 ? Math.min(run.learned, chunk_tokens[device]) : run.learned
  const file = gpu || fast || method === 'qlora' ? 0 : file_bytes
  return program_bytes[device] + file + states + gradients + activations + learned * vocabulary * (dtype + 12)
}

/** Whether a machine can train a base: on one device or, by lora, on several that share its weights. */
function fitsTraining(base: Sized, method: Method, machine: Machine): boolean {
  const { devices: all = 1, memory_bytes } = machine
  return [1, ...(method === 'lora' && all > 1 ? [all] : [])].some(
    (devices) => trainingBytes(base, method, machine, { ...shownRun, devices }) <= memory_bytes,
  )
}

/** Slots of a base's first context and its compute buffers: engine/batching/slot-sizes.ts and runner-pool.ts. */
const conversations = { count: 4, tokens: 2048 }
const context_bytes = 48 * 1024 * 1024

/** Bytes to answer from weights of `weights_bytes` to the first four conversations. */
export function servingBytes({ layers, kv_heads, head_size }: Shape, weights_bytes: number): number {
  const token_bytes = layers * kv_heads * 2 * head_size * 2
  return weights_bytes + context_bytes + conversations.count * conversations.tokens * token_bytes
}

/**
 * Operations a second of a LoRA training, as measured (docs/performance.md): of a core with and without bfloat16, and
 * of an H100. Other GPUs are not measured.
 */
const rates = { core_bf16: 331e9 / 2, core: 139e9 / 2, h100: 36_263 * 4 * 1.54e9 }
const h100_bytes = 79e9
/** How much longer transformers' own layers take; measured on Llama's. */
const slower = 2.5
/** The training whose time is given: tokens of 1,000 examples of 300 tokens. */
export const timed = { tokens: 300_000, text: '1,000 examples of 300 tokens' }

/** Seconds of that training by lora; null on a machine whose rate is not known. */
export function trainingSeconds({ family, active_parameters }: Sized, machine: Machine): number | null {
  const { device, bf16, cores, memory_bytes } = machine
  if (device === 'gpu' && memory_bytes < h100_bytes) return null
  const rate = device === 'gpu' ? rates.h100 : cores * (bf16 ? rates.core_bf16 : rates.core)
  // Forward, and backward to the activations alone: two operations a weight each.
  return ((timed.tokens * 4 * active_parameters) / rate) * (hasFastLayers(family) ? 1 : slower)
}

interface NeedsOptions {
  base: Sized | undefined
  /** Whether it can be trained, given the memory. */
  trainable: boolean
  /** The weights that the engine reads. */
  weights_bytes: number | undefined
  /** What a download and its conversion write; null where the weights are here. */
  download_bytes: number | null
  machine: Machine
  free_disk_bytes: number
}

/** What a base needs for each use. Null where its sizes are not known, or the use is not possible. */
export function needsOf(options: NeedsOptions): Model['needs'] {
  const { base, trainable, weights_bytes, download_bytes, machine, free_disk_bytes } = options
  const need = (bytes: number, available: number): Need => ({ mb: Math.round(bytes / 1e6), fits: bytes <= available })
  const training = (method: Method) =>
    base && trainable
      ? {
          ...need(trainingBytes(base, method, machine), machine.memory_bytes),
          fits: fitsTraining(base, method, machine),
        }
      : null
  return {
    lora: training('lora'),
    qlora: training('qlora'),
    full: training('full'),
    serve:
      base && weights_bytes !== undefined ? need(servingBytes(base.shape, weights_bytes), machine.memory_bytes) : null,
    disk: download_bytes === null ? null : need(download_bytes, free_disk_bytes),
  }
}

/** The shape in a checkpoint's configuration; undefined where it has none of a decoder. */
export function shapeOf(config: Record<string, unknown>): Shape | undefined {
  const text = (config.text_config ?? config) as Record<string, unknown>
  const number = (...names: string[]) => names.map((name) => text[name]).find((value) => typeof value === 'number')
  const layers = number('num_hidden_layers') as number | undefined
  const hidden_size = number('hidden_size') as number | undefined
  const heads = number('num_attention_heads') as number | undefined
  const vocabulary = number('vocab_size') as number | undefined
  const intermediate = number('intermediate_size') as number | undefined
  const expert = number('moe_intermediate_size') as number | undefined
  const experts = number('num_experts_per_tok', 'top_k_experts') as number | undefined
  const mlp_size = expert && experts ? expert * experts : intermediate
  if (!layers || !hidden_size || !heads || !vocabulary || !mlp_size) return undefined
  const kv_heads = (number('num_key_value_heads') as number | undefined) ?? heads
  const head_size = (number('head_dim') as number | undefined) ?? Math.floor(hidden_size / heads)
  const perLayer = number('hidden_size_per_layer_input') as number | undefined
  const table = ((number('vocab_size_per_layer_input') as number | undefined) ?? 0) * (perLayer ?? 0)
  const shape = { layers, hidden_size, mlp_size, heads, kv_heads, head_size, vocabulary }
  return table > 0 ? { ...shape, layer_embeddings: layers * table } : shape
}
