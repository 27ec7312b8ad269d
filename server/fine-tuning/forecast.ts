// When a queued job can begin. One job trains at a time, in the order of the queue.
import type { JobMetrics } from '../../contract/tuning.ts'
import type { Db } from '../db/open.ts'
import type { Queue } from '../queue/queue.ts'
import { recipeOf } from './models/lineage.ts'
import * as store from './store.ts'

export interface Forecast {
  /** 1 is the next to begin. */
  queue_position: number
  /** Unix ms; null where nobody can say how long those before it take. */
  estimated_start: number | null
}

/** For each job that waits, whosever it is. */
export async function forecast(
  db: Db,
  queue: Pick<Queue, 'live'>,
  kind: string,
  now: number,
): Promise<Map<string, Forecast>> {
  const jobs = new Map((await store.liveJobs(db)).map((job) => [job.id, job]))
  const speeds = new Map<string, Promise<store.TimedJob[]>>()
  const before = (base: string) => speeds.get(base) ?? speeds.set(base, store.timedJobs(db, base)).get(base)!
  const found = new Map<string, Forecast>()
  let free: number | null = now
  for (const { status, estimated_completion, ...job } of jobs.values()) {
    if (status !== 'running') continue
    const took =
      estimated_completion === null && job.running_since !== null
        ? durationOf(job, await before(job.base_model_id))
        : null
    const end: number | null = estimated_completion ?? (took === null ? null : job.running_since! + took)
    free = end === null || free === null ? null : Math.max(free, end)
  }
  for (const { ref, run_at } of await queue.live(kind)) {
    const job = jobs.get(ref)
    if (job?.status !== 'queued') continue
    const start: number | null = free === null ? null : Math.max(free, run_at)
    found.set(ref, { queue_position: found.size + 1, estimated_start: start })
    const takes = durationOf(job, await before(job.base_model_id))
    free = start === null || takes === null ? null : start + takes
  }
  return found
}

/**
 * How long a job takes from now on, in ms, as the last one of its base and method did: training grows with the data,
 * the rest does not.
 */
function durationOf(job: Pick<store.JobRow, 'recipe_json' | 'progress'>, before: store.TimedJob[]): number | null {
  const { method, ...recipe } = recipeOf(job)
  const amount = amountOf(recipe)
  const last = before.find(
    (each) => recipeOf(each).method === method && amountOf(recipeOf(each)) && trained_ms(each) > 0,
  )
  if (!last || !amount) return null
  const trains = trained_ms(last) * (amount / amountOf(recipeOf(last))!)
  return Math.round(Math.max(0, last.ran_ms - trained_ms(last)) + trains * (1 - job.progress))
}

const trained_ms = ({ metrics_json }: store.TimedJob) =>
  ((JSON.parse(metrics_json) as JobMetrics).train_seconds ?? 0) * 1000
const amountOf = ({ epochs, dataset }: { epochs: number; dataset: { size_mb: number | null } }) =>
  dataset.size_mb && dataset.size_mb * epochs
