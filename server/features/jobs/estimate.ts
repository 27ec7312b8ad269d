// Estimates of a job's time and memory, measured by running a few of its steps in a separate trainer.

import { rm } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { JobEstimate } from '../../../contract/fine-tuning.ts'
import { createFairQueue } from '../../../lib/fair-queue.ts'
import { newId } from '../../../lib/ids.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import type { PreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { malformedHint, runToResult, runTrainer, type TrainerRun } from '../../platform/trainer/trainer.ts'

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

type TrialResult = Omit<JobEstimate, 'price' | 'resolved_config'>

export interface Estimator {
  /**
   * Runs a trial of a spec when it is the account's turn, unless its client leaves. Results are cached by spec. Throws
   * training_not_ready.
   */
  estimate(by: { account_id: string; signal?: AbortSignal | undefined }, spec: TrainerRun['spec']): Promise<TrialResult>
}

export function createEstimator({
  dataDir,
  python,
  prepared,
  trainingSetup,
}: {
  dataDir: string
  python: string
  prepared: PreparedTrainer
  trainingSetup: TrainingSetup
}): Estimator {
  const cache = new Map<string, TrialResult>()
  // One at a time, as concurrent trials would distort each other's measurements.
  const inTurn = createFairQueue()

  async function estimateCached(spec: TrainerRun['spec'], left: AbortSignal | undefined): Promise<TrialResult> {
    const key = JSON.stringify(spec)
    const cached = cache.get(key)
    if (cached) return { ...cached, available_memory_mb: availableMb(), fits: cached.peak_memory_mb <= availableMb() }
    trainingSetup.requireReady()
    const calibration = await calibrate(dataDir, python, prepared, spec, left)
    if (calibration.fits) cache.set(key, calibration)
    if (cache.size > max_cached) cache.delete(cache.keys().next().value!)
    return calibration
  }

  return { estimate: ({ account_id, signal }, spec) => inTurn(account_id, () => estimateCached(spec, signal), signal) }
}

async function calibrate(
  dataDir: string,
  python: string,
  prepared: PreparedTrainer,
  spec: TrainerRun['spec'],
  left: AbortSignal | undefined,
): Promise<TrialResult> {
  const run_dir = runDir(dataDir, newId('est'), 1)
  const run = { run_dir, module: 'trainer.cli.estimate', spec, python, prepared } as const
  const signal = AbortSignal.any([AbortSignal.timeout(timeout_ms), ...(left ? [left] : [])])
  try {
    const { result, malformed, failure } = await runToResult(
      (onEvent) => runTrainer({ ...run, signal, onEvent }),
      Calibration,
    )
    left?.throwIfAborted()
    if (result) return { fits: true, available_memory_mb: availableMb(), ...result }
    const large = TooLarge.safeParse(failure?.data).data
    if (large)
      return {
        fits: false,
        peak_memory_mb: large.predicted_mb,
        available_memory_mb: large.available_mb,
        tokens: null,
        steps: null,
        rows: null,
        cut_rows: null,
        no_learned_rows: null,
        seconds: null,
        tokens_per_second: null,
      }
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
