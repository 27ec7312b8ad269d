// Estimates of a job's time and memory, measured by running a few of its steps in a separate trainer.

import { rm } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { JobEstimate, ResolvedConfig } from '../../../contract/fine-tuning.ts'
import { createFairQueue } from '../../../lib/fair-queue.ts'
import { newId } from '../../../lib/ids.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import type { PreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { malformedHint, runToResult, runTrainer, type TrainerRun } from '../../platform/trainer/trainer.ts'
import type { Devices, Plan } from './devices/index.ts'

const timeout_ms = 180_000
const max_cached = 200

const Calibration = z.object({
  tokens: z.int(),
  steps: z.int(),
  rows: z.int(),
  cut_rows: z.int(),
  no_learned_rows: z.int(),
  seconds: z.number(),
  tokens_per_second: z.number(),
  peak_memory_mb: z.number(),
})
const TooLarge = z.object({ predicted_mb: z.number(), available_mb: z.number() })

type Estimate = Omit<JobEstimate, 'price' | 'resolved_config'>
type TrialResult = Omit<Estimate, 'devices' | 'pauses_serving'>

export interface Estimator {
  /**
   * Runs a trial of a spec when it is the account's turn, unless its client leaves. Results are cached by spec.
   * Nothing is tried of a job whose weights several devices share. Throws training_not_ready.
   */
  estimate(
    by: { account_id: string; signal?: AbortSignal | undefined },
    job: { base_model_id: string; config: ResolvedConfig },
    spec: TrainerRun['spec'],
  ): Promise<Estimate>
}

export function createEstimator({
  dataDir,
  python,
  prepared,
  trainingSetup,
  devices,
}: {
  dataDir: string
  python: string
  prepared: PreparedTrainer
  trainingSetup: TrainingSetup
  devices: Devices | undefined
}): Estimator {
  const cache = new Map<string, TrialResult>()
  // One at a time, as concurrent trials would distort each other's measurements.
  const inTurn = createFairQueue()

  async function estimateCached(spec: TrainerRun['spec'], left: AbortSignal | undefined): Promise<TrialResult> {
    const key = JSON.stringify(spec)
    const cached = cache.get(key)
    const { env, free_mb } = (await devices?.forTrial()) ?? { env: {}, free_mb: null }
    const available_mb = free_mb ?? availableMb()
    if (cached) return { ...cached, available_memory_mb: available_mb, fits: cached.peak_memory_mb <= available_mb }
    trainingSetup.requireReady()
    const calibration = await calibrate({ dataDir, python, prepared, env, available_mb, spec, left })
    if (calibration.fits) cache.set(key, calibration)
    if (cache.size > max_cached) cache.delete(cache.keys().next().value!)
    return calibration
  }

  return {
    async estimate({ account_id, signal }, { base_model_id, config }, spec) {
      const plan = await devices?.plan(base_model_id, config)
      const pauses_serving = plan && 'devices' in plan ? ((await devices?.wouldPause(plan)) ?? false) : false
      if (plan && 'sharded' in plan && plan.sharded) return { ...untried(plan), pauses_serving }
      const trial = await inTurn(account_id, () => estimateCached(spec, signal), signal)
      return { ...trial, devices: plan && 'devices' in plan ? plan.devices : 1, pauses_serving }
    },
  }
}

const unknown = {
  tokens: null,
  steps: null,
  rows: null,
  cut_rows: null,
  no_learned_rows: null,
  seconds: null,
  tokens_per_second: null,
}

const untried = ({ devices, needed_mb, available_mb }: Plan): Omit<Estimate, 'pauses_serving'> => ({
  fits: true,
  devices,
  peak_memory_mb: Math.round(needed_mb ?? 0),
  available_memory_mb: Math.round(available_mb ?? 0),
  ...unknown,
})

interface Trial {
  dataDir: string
  python: string
  prepared: PreparedTrainer
  env: Record<string, string>
  available_mb: number
  spec: TrainerRun['spec']
  left: AbortSignal | undefined
}

async function calibrate({ dataDir, python, prepared, env, available_mb, spec, left }: Trial): Promise<TrialResult> {
  const run_dir = runDir(dataDir, newId('est'), 1)
  const run = { run_dir, module: 'trainer.cli.estimate', spec, python, prepared, env } as const
  const signal = AbortSignal.any([AbortSignal.timeout(timeout_ms), ...(left ? [left] : [])])
  try {
    const { result, malformed, failure } = await runToResult(
      (onEvent) => runTrainer({ ...run, signal, onEvent }),
      Calibration,
    )
    left?.throwIfAborted()
    // The trial knows what the device has, not what the operator leaves to trainings.
    if (result) return { fits: result.peak_memory_mb <= available_mb, available_memory_mb: available_mb, ...result }
    const large = TooLarge.safeParse(failure?.data).data
    if (large)
      return { fits: false, peak_memory_mb: large.predicted_mb, available_memory_mb: large.available_mb, ...unknown }
    if (failure?.code === 'dataset_invalid') throw new ApiError('dataset_invalid', failure.message)
    throw new ApiError(
      'internal_error',
      failure?.message ??
        (malformed ? `${malformed}.${malformedHint}` : 'The trial run of this job ended without a result.'),
    )
  } finally {
    await rm(path.dirname(run_dir), { recursive: true, force: true })
  }
}

const availableMb = () => Math.round(process.availableMemory() / 1e6)
