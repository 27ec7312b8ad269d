// Queue estimates: when a queued job can start. One job trains at a time, in queue order.
import type { JobMetrics } from '../../contract/fine-tuning.ts'
import type { Db } from '../db/open.ts'
import type { Queue } from '../queue/queue.ts'
import { recipeOf } from './models/lineage.ts'
import * as store from './store.ts'

export interface QueueEstimate {
  /** 1 is the next to start. */
  queue_position: number
  /** Unix ms; null if the duration of an earlier job is unknown. */
  estimated_start: number | null
}

/** Estimates for the queued jobs of all accounts, by job id. */
export async function estimateQueue(
  db: Db,
  queue: Pick<Queue, 'pending'>,
  kind: string,
  now: number,
): Promise<Map<string, QueueEstimate>> {
  const jobs = new Map((await store.liveJobs(db)).map((job) => [job.id, job]))
  const completedByBase = new Map<string, Promise<store.CompletedJob[]>>()
  const completedJobs = (base: string) =>
    completedByBase.get(base) ?? completedByBase.set(base, store.completedJobs(db, base)).get(base)!
  const estimates = new Map<string, QueueEstimate>()
  let free_at: number | null = now
  for (const { status, estimated_completion, ...job } of jobs.values()) {
    if (status !== 'running') continue
    const duration =
      estimated_completion === null && job.running_since !== null
        ? durationOf(job, await completedJobs(job.base_model_id))
        : null
    const end: number | null = estimated_completion ?? (duration === null ? null : job.running_since! + duration)
    free_at = end === null || free_at === null ? null : Math.max(free_at, end)
  }
  for (const { ref, run_at } of await queue.pending(kind)) {
    const job = jobs.get(ref)
    if (job?.status !== 'queued') continue
    const start: number | null = free_at === null ? null : Math.max(free_at, run_at)
    estimates.set(ref, { queue_position: estimates.size + 1, estimated_start: start })
    const duration = durationOf(job, await completedJobs(job.base_model_id))
    free_at = start === null || duration === null ? null : start + duration
  }
  return estimates
}

/**
 * Remaining duration of a job in ms, from the last completed job with its base and method. Training time scales with
 * the data; the rest is constant. Null without such a job.
 */
function durationOf(
  job: Pick<store.JobRow, 'recipe_json' | 'progress'>,
  completed: store.CompletedJob[],
): number | null {
  const { method, objective, ...recipe } = recipeOf(job)
  const volume = trainingVolume(recipe)
  const last = completed.find(
    (each) =>
      recipeOf(each).method === method &&
      recipeOf(each).objective === objective &&
      trainingVolume(recipeOf(each)) &&
      trained_ms(each) > 0,
  )
  if (!last || !volume) return null
  const train_ms = trained_ms(last) * (volume / trainingVolume(recipeOf(last))!)
  return Math.round(Math.max(0, last.ran_ms - trained_ms(last)) + train_ms * (1 - job.progress))
}

const trained_ms = ({ metrics_json }: store.CompletedJob) =>
  ((JSON.parse(metrics_json) as JobMetrics).train_seconds ?? 0) * 1000
/** Megabytes of data times epochs. */
const trainingVolume = ({ epochs, dataset }: { epochs: number; dataset: { size_mb: number | null } }) =>
  dataset.size_mb && dataset.size_mb * epochs
