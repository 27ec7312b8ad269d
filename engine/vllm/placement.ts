// Where a vLLM computes a base, and how much of the memory there it takes.
import { readdirSync } from 'node:fs'
import path from 'node:path'
import { vllmCacheShare, vllmOverhead_bytes } from '../../lib/engine-choice.ts'
import { type NvidiaGpu, readNvidiaGpus } from '../../lib/nvidia-gpus.ts'
import { usableMemory } from '../../lib/usable-memory.ts'
import type { Model } from '../llama/model.ts'
import { DeviceClaims } from './sleep.ts'

const lengthStep = 256
/** What is not enough for a short conversation is not enough for vLLM, which says so. */
const leastTokens = 2048
/** The part of a device's free memory that vLLM may plan with: its own start takes some of it. */
const freeShare = 0.97

/** The files of a checkpoint's weights. */
export const weightFiles = (checkpoint: string): string[] =>
  readdirSync(checkpoint)
    .filter((name) => name.endsWith('.safetensors'))
    .sort()
    .map((name) => path.join(checkpoint, name))

/** Where a base is computed, and the environment of a vLLM that shall compute it there. */
interface Device {
  name: string
  /** As trainings claim it; null: it may be any of several. */
  ids: string[] | null
  total_bytes: number
  free_bytes: number | null
  env: NodeJS.ProcessEnv
}

export const processor = (): Device => ({
  name: 'the processor',
  ids: ['cpu'],
  total_bytes: usableMemory(),
  free_bytes: null,
  env: {},
})

export async function freestGpu(options: readonly string[], claims: DeviceClaims): Promise<Device> {
  return deviceOf((await readNvidiaGpus()) ?? [], process.env.CUDA_VISIBLE_DEVICES, options, claims)
}

/**
 * The GPU with the most free memory that no training has claimed, so that bases spread over several; those that the
 * operator names, by CUDA_VISIBLE_DEVICES or by options for several, are left to vLLM.
 */
export function deviceOf(
  gpus: readonly Pick<NvidiaGpu, 'index' | 'uuid' | 'name' | 'total_bytes' | 'free_bytes'>[],
  visible: string | undefined,
  options: readonly string[],
  claims = new DeviceClaims(),
): Device {
  const idOf = ({ uuid, index }: (typeof gpus)[number]) => uuid || String(index)
  // A training that has just begun has not taken its memory yet.
  const freeOf = (gpu: (typeof gpus)[number]) =>
    gpu.free_bytes === null
      ? null
      : Math.min(gpu.free_bytes, (gpu.total_bytes ?? gpu.free_bytes) - claims.heldOf(idOf(gpu)))
  const rank = (gpu: (typeof gpus)[number]) => (claims.claimOn([idOf(gpu)]) ? 1 : 0)
  const freest = gpus.toSorted((a, b) => rank(a) - rank(b) || (freeOf(b) ?? 0) - (freeOf(a) ?? 0))[0]
  const isSpread = options.some((option) => /^(--[a-z]+-parallel-size|-[a-z]+p)\b/.test(option))
  const named = visible?.split(',')[0]?.trim()
  const isNamed = named !== undefined || isSpread
  const first = gpus.find(({ index }) => String(index) === named) ?? gpus[0]
  const gpu = isNamed ? first : freest
  if (!gpu?.total_bytes) throw new Error('nvidia-smi shows no GPU, which this build of vLLM needs')
  const { name, total_bytes } = gpu
  const free_bytes = freeOf(gpu)
  // CUDA's own order differs from that of nvidia-smi.
  const env = isNamed ? {} : { CUDA_DEVICE_ORDER: 'PCI_BUS_ID', CUDA_VISIBLE_DEVICES: String(gpu.index) }
  return { name, ids: isNamed && gpus.length > 1 ? null : [idOf(gpu)], total_bytes, free_bytes, env }
}

/**
 * A quarter of the device for KV caches, or less where no more could be used or what weights and vLLM leave of its free
 * memory is less. The context is the model's, or as much of it as that holds.
 */
export function memoryShare(
  { context_length, kv_bytes_per_token }: Pick<Model, 'context_length' | 'kv_bytes_per_token'>,
  { total_bytes, free_bytes }: Pick<Device, 'total_bytes' | 'free_bytes'>,
  weight_bytes: number,
  cache_bytes_max: number | null,
  sequences: number,
): { cache_bytes: number; context_length: number } {
  const perToken = Math.max(1, kv_bytes_per_token)
  const most = cache_bytes_max ?? total_bytes * vllmCacheShare
  const used = sequences * context_length * perToken
  const left = Math.max(
    (free_bytes ?? Number.POSITIVE_INFINITY) * freeShare - weight_bytes - vllmOverhead_bytes,
    leastTokens * perToken,
  )
  const cache_bytes = Math.floor(Math.min(most, used, left))
  // A block of each layer is vLLM's own.
  const fits = Math.floor((0.95 * cache_bytes) / perToken / lengthStep) * lengthStep
  return { cache_bytes, context_length: Math.max(lengthStep, Math.min(context_length, fits)) }
}
