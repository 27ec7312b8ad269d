// What a training asks the cluster for: cores, memory, and GPUs of a kind whose memory is enough.
import { mkdtemp, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { z } from 'zod'
import type { RaySubmission } from '../../../platform/ray/client.ts'
import { runToResult, runTrainer } from '../../../platform/trainer/trainer.ts'

/** A kind of GPU by Ray's name of its accelerator type, and its memory. `any`: whatever the cluster has. */
interface GpuKind {
  type: string
  memory_mb: number
}

export interface Resources {
  resources: Pick<
    RaySubmission,
    'entrypoint_num_cpus' | 'entrypoint_num_gpus' | 'entrypoint_memory' | 'entrypoint_resources'
  >
  environment: Record<string, string>
}

/** No machine of the cluster has what the job needs: it fails with this code and message. */
class ClusterTooSmall extends Error {
  readonly code = 'out_of_memory'
}

/** The part of a GPU's memory that the estimate may take. */
const usable = 0.95

/** The smallest kind of GPU with room for a run of `needed_mb`. Throws ClusterTooSmall with the numbers. */
export function gpuFor(needed_mb: number, kinds: readonly GpuKind[]): GpuKind {
  const kind = kinds
    .toSorted((a, b) => a.memory_mb - b.memory_mb)
    .find(({ memory_mb }) => needed_mb <= memory_mb * usable)
  if (kind) return kind
  const largest = Math.max(...kinds.map(({ memory_mb }) => memory_mb))
  throw new ClusterTooSmall(
    `The run would take about ${(needed_mb / 1000).toFixed(1)} GB of a GPU's memory, and the cluster's largest has ` +
      `${(largest / 1000).toFixed(1)} GB. Take qlora, a smaller base, or a smaller max_length.`,
  )
}

interface Layout {
  /** Processes that train together, and the machines that they are spread over evenly. */
  processes: number
  machines: number
  /** Threads of each process. */
  threads: number
}

/**
 * The request for a run. One process with one GPU each; a run over several machines asks for them from within, all at
 * once, so its own request is nothing.
 */
export function resourcesFor({ processes, machines, threads }: Layout, gpu: GpuKind | undefined): Resources {
  const here = processes / machines
  const share = {
    CPU: threads * here,
    ...(gpu && { GPU: here }),
    ...(gpu && gpu.type !== 'any' && { [`accelerator_type:${gpu.type}`]: 0.001 }),
  }
  const environment = {
    TUNERY_RUN_PROCESSES: String(here),
    TUNERY_RUN_NODES: String(machines),
    TUNERY_RUN_RESOURCES: JSON.stringify(share),
  }
  if (machines > 1) return { resources: { entrypoint_num_cpus: 0 }, environment }
  const { CPU, GPU, ...custom } = share
  return {
    resources: {
      entrypoint_num_cpus: CPU,
      ...(GPU !== undefined && { entrypoint_num_gpus: GPU }),
      ...(Object.keys(custom).length > 0 && { entrypoint_resources: custom }),
    },
    environment,
  }
}

const Predicted = z.object({ least_mb: z.number() })

/**
 * The least memory of a GPU, in MB, that a run with this spec needs, by the trainer's own prediction. The trainer fills
 * more with larger passes where there is more.
 */
export async function predictGpuMemory(spec: object, python: string, signal: AbortSignal): Promise<number> {
  const run_dir = await mkdtemp(path.join(os.tmpdir(), 'tunery-predict-'))
  const run = { run_dir, module: 'trainer.cli.predict_memory', spec, python, signal } as const
  try {
    const { result, malformed, failure, exit } = await runToResult(
      (onEvent) => runTrainer({ ...run, onEvent }),
      Predicted,
    )
    if (result) return result.least_mb
    throw new Error(failure?.message ?? malformed ?? `the prediction of memory ended with ${exit.status}`)
  } finally {
    await rm(run_dir, { recursive: true, force: true })
  }
}
