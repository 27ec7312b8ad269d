// Jobs as the API shows them: with their place in the queue, and when they start and end.

import { ApiError } from '../../../contract/errors.ts'
import type { Job } from '../../../contract/fine-tuning.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Queryable } from '../../platform/db/open.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { labelsOf, readResolvedConfig } from '../models/index.ts'
import { waitsForDevices } from './outcomes.ts'
import { estimateQueue, type QueueEstimate, type Turns } from './queue-estimate.ts'
import * as store from './store.ts'
import { statusOf } from './store.ts'

/** How old the estimates of the queue may be. */
const estimates_ms = 1000

interface Options {
  db: Db
  queue: Pick<Queue, 'pending'>
  trainingSetup: TrainingSetup
  /** Why no device of this machine is free; undefined if one is. */
  devicesBusy(): string | undefined
  turns: Turns
  now(): number
}

export type JobResponses = ReturnType<typeof createJobResponses>

export function createJobResponses({ db, queue, trainingSetup, devicesBusy, turns, now }: Options) {
  const estimates = createTtlCache<Map<string, QueueEstimate>>(estimates_ms)
  /** The estimates of all accounts' jobs. They are recomputed if they lack one of these. */
  async function estimatesWith(ids: string[]): Promise<Map<string, QueueEstimate>> {
    const load = () => estimateQueue(db, queue, store.queueKind, now(), turns)
    const cached = (await estimates.getOrLoad('', load))!
    if (ids.every((id) => cached.has(id))) return cached
    estimates.clear()
    return (await estimates.getOrLoad('', load))!
  }

  /**
   * The estimate of a job for its response: the queue's for a queued one, with the turns of others for a running one.
   */
  function estimateOf(job: store.JobRow, estimate: QueueEstimate | undefined): QueueEstimate | undefined {
    const status = statusOf(job)
    if (!estimate || (status === 'running' && job.estimated_completion === null)) return undefined
    if (status === 'running') return { ...estimate, queue_position: null, estimated_start: null }
    // Nobody knows when set-up ends.
    return trainingSetup.ready() ? estimate : { ...estimate, estimated_start: null, estimated_end: null }
  }

  /** Serializes jobs with their estimates. */
  async function toResponses(jobs: store.JobRow[]): Promise<Job[]> {
    const live = jobs.filter((job) => ['queued', 'running'].includes(statusOf(job)))
    if (live.length === 0) return jobs.map((job) => toJobResponse(job))
    const queued = live.filter((job) => statusOf(job) === 'queued').map(({ id }) => id)
    const awaited = queued.length > 0 ? await store.awaitedBy(db, queued) : new Map<string, string>()
    const devices = await store.waitingEvents(db, queued, waitsForDevices)
    const estimates = await estimatesWith(queued.filter((id) => !awaited.has(id)))
    const waitsFor = (id: string) => {
      if (!queued.includes(id)) return null
      if (!trainingSetup.ready()) return trainingSetup.describe()
      return awaited.has(id)
        ? `The weights of ${awaited.get(id)} are on their way.`
        : (devices.get(id) ?? devicesBusy() ?? null)
    }
    return jobs.map((job) => toJobResponse(job, estimateOf(job, estimates.get(job.id)), waitsFor(job.id)))
  }

  return {
    toResponses,
    toResponse: async (job: store.JobRow) => (await toResponses([job]))[0]!,
    /** A job of this process has changed: the next estimates are computed anew. */
    outdated: estimates.clear,
  }
}

/** The row of an account's job. Throws job_not_found. */
export async function requireJob(from: Queryable, account_id: string, id: string): Promise<store.JobRow> {
  const job = await store.findJob(from, account_id, id)
  if (!job) throw new ApiError('job_not_found', `There is no job '${id}'.`)
  return job
}

const toJobResponse = (job: store.JobRow, estimate?: QueueEstimate, waits_for: string | null = null): Job => ({
  id: job.id,
  ...labelsOf(job),
  status: statusOf(job),
  paused: job.paused === 1,
  model_id: job.model_id,
  dataset_id: job.dataset_id,
  progress: job.progress,
  current_epoch: job.current_epoch,
  metrics: fromJson(job.metrics_json),
  slowed_by: job.status === 'running' ? job.slowed_by : null,
  evaluation: job.evaluation_id,
  result_evaluation: job.result_evaluation_id,
  waits_for,
  queue_position: estimate?.queue_position ?? null,
  estimated_start: isoTime(estimate?.estimated_start ?? null),
  estimated_completion: isoTime(estimate?.estimated_end ?? job.estimated_completion),
  created_at: isoTime(job.created_at),
  started_at: isoTime(job.started_at),
  finished_at: isoTime(job.finished_at),
  error: fromJson(job.error_json),
  config: fromJson(job.config_json),
  resolved_config: readResolvedConfig(job.resolved_config_json),
  trained_tokens: job.trained_tokens,
  model: job.model,
})
