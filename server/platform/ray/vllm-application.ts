// vLLM on GPUs of the cluster as an application of Serve, by Ray's own integration (Ray Serve LLM).
import { createHash } from 'node:crypto'
import { root } from '../../../lib/root.ts'
import { type Application, doorDeployment, ownPrefix, routeOf } from './applications.ts'
import { autoscalingConfig, type ReplicaPolicy } from './autoscaling-config.ts'
import { type CodePackage, packFolders } from './package.ts'

/** A file that each replica fetches before it takes requests, and compares with its hash. */
export interface VllmFile {
  /** Below `base/` or `adapter/`. */
  path: string
  sha256: string
  size_bytes: number
  /** Whether the machine keeps it for later replicas: weights that everybody may have. */
  cache: boolean
}

interface VllmApplication {
  /** Name of the deployment: unique, letters, digits and dashes. */
  id: string
  /** Made by `packVllm`. */
  working_dir: string
  /** Where replicas fetch files and have their scores judged, and what opens it. */
  service: { url: string; token: string }
  files: VllmFile[]
  /** The rank of the adapter; undefined: none. */
  lora_rank: number | undefined
  /** Ray's name of the GPU, such as H100; undefined: any. */
  accelerator_type: string | undefined
  /** Fields of Ray's LLMConfig that are put over ours; null removes one. */
  overrides: Record<string, unknown>
  policy: ReplicaPolicy
  /** What requests must bring; only its hash goes to the cluster. */
  token: string
  /** The header x-weights of its answers. */
  weights: string
  /** When it was first written, in milliseconds. */
  written_at: number
}

/** The names that engine/ray/vllm_replica.py serves base and adapter under. */
export const vllmName = (hasAdapter: boolean) => (hasAdapter ? 'base:adapter' : 'base')

/** What vLLM takes as `max_lora_rank`. */
const ranks = [8, 16, 32, 64, 128, 256, 320, 512]

export function vllmApplication({ id, working_dir, policy, ...app }: VllmApplication): Application {
  const scaling = autoscalingConfig(policy)
  return {
    name: `${ownPrefix}${id}`,
    route_prefix: routeOf(id),
    import_path: 'engine.ray.vllm_replica:build',
    // All weights are on the machine: a model hub is never asked.
    runtime_env: { working_dir, env_vars: { HF_HUB_OFFLINE: '1', VLLM_NO_USAGE_STATS: '1' } },
    args: {
      config: llmConfig(app),
      model: { ...app.service, files: app.files },
      token_sha256: createHash('sha256').update(app.token).digest('hex'),
      weights: app.weights,
      written_at: app.written_at,
    },
    // Here and not in LLMConfig: Serve changes these without a new start.
    deployments: [
      {
        name: 'Vllm',
        autoscaling_config: scaling,
        // vLLM batches: requests beyond the target wait in the router, for a replica that is about to start.
        max_ongoing_requests: Math.max(policy.target_requests_per_replica * 2, 8),
        health_check_period_s: 5,
        health_check_timeout_s: 10,
        graceful_shutdown_timeout_s: 60,
      },
      {
        name: doorDeployment,
        autoscaling_config: { ...scaling, target_ongoing_requests: doorRequests },
        max_ongoing_requests: 10 * doorRequests,
        graceful_shutdown_timeout_s: 60,
      },
    ],
  }
}

/** Requests in progress that one door should have. */
const doorRequests = 100

/** Ray's LLMConfig, without the place of the weights, which each replica knows when it has fetched them. */
function llmConfig({
  lora_rank,
  accelerator_type,
  overrides,
}: Pick<VllmApplication, 'lora_rank' | 'accelerator_type' | 'overrides'>): Record<string, unknown> {
  const { engine_kwargs, ...others } = overrides
  const max_lora_rank = lora_rank && (ranks.find((rank) => rank >= lora_rank) ?? lora_rank)
  const config = {
    ...(accelerator_type && { accelerator_type }),
    ...(max_lora_rank && { lora_config: { max_num_adapters_per_replica: 1 } }),
    ...others,
    engine_kwargs: {
      // The service sends all sampling parameters: a checkpoint's own defaults would make replicas differ.
      generation_config: 'vllm',
      ...(max_lora_rank && { enable_lora: true, max_loras: 1, max_lora_rank }),
      ...(engine_kwargs as object | undefined),
    },
  }
  return Object.fromEntries(Object.entries(config).filter(([, value]) => value !== null))
}

/** The code of the replica, with that which fetches files. */
export const packVllm = (): Promise<CodePackage> =>
  packFolders([{ folder: root, patterns: ['engine/ray/*.py', 'trainer/__init__.py', 'trainer/remote/*.py'], to: '' }])
