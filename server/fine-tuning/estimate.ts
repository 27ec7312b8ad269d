// What a job would take, found by trying a few of its steps in a trainer of its own.
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'
import type { JobEstimate } from '../../contract/tuning.ts'
import { newId } from '../../lib/ids.ts'
import { createMutex } from '../../lib/mutex.ts'
import { runDir } from './artifacts.ts'
import { runTrainer } from './trainer.ts'

const timeout_ms = 180_000
const remembered = 200

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

type Found = Omit<JobEstimate, 'price' | 'resolved_config'>

export interface Estimator {
  /** Tries the spec of a job; what was found for the same one before is remembered. */
  estimate(spec: object): Promise<Found>
}

export function createEstimator({ dataDir, python }: { dataDir: string; python: string }): Estimator {
  const known = new Map<string, Found>()
  // One at a time: two would measure each other.
  const inTurn = createMutex()

  async function tried(spec: object): Promise<Found> {
    const key = JSON.stringify(spec)
    const before = known.get(key)
    if (before) return { ...before, available_memory_mb: availableMb(), fits: before.peak_memory_mb <= availableMb() }
    const found = await calibrate(dataDir, python, spec)
    if (found.fits) known.set(key, found)
    if (known.size > remembered) known.delete(known.keys().next().value!)
    return found
  }

  return {
    estimate: (spec) => inTurn(() => tried(spec)),
  }
}

async function calibrate(dataDir: string, python: string, spec: object): Promise<Found> {
  const run_dir = runDir(dataDir, newId('est'), 1)
  let found: Found | undefined
  let problem: { code: string; message: string } | undefined
  try {
    await runTrainer({
      run_dir,
      module: 'trainer.cli.estimate',
      spec,
      python,
      signal: AbortSignal.timeout(timeout_ms),
      onLine({ type, message, data }) {
        if (type === 'result') found = { fits: true, available_memory_mb: availableMb(), ...Calibration.parse(data) }
        if (type !== 'error') return
        const large = TooLarge.safeParse(data).data
        problem = { code: String(data?.code), message }
        if (large)
          found = {
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
      },
    })
  } finally {
    await rm(path.dirname(run_dir), { recursive: true, force: true })
  }
  if (found) return found
  if (problem?.code === 'dataset_invalid') throw new ApiError('dataset_invalid', problem.message)
  throw new ApiError('internal_error', problem?.message ?? 'Trying a few steps of this job did not come to an end.')
}

const availableMb = () => Math.round(process.availableMemory() / 1e6)
