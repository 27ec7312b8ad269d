import type { Job } from '../../contract/tuning.ts'
import type { Forecast } from './forecast.ts'
import { labelsOf } from './labels.ts'
import type { JobRow } from './store.ts'

const iso = (time: number | null) => (time === null ? null : new Date(time).toISOString())

/** A job that waits until it is told to go on is paused; one that runs still is until its trainer has saved its progress. */
export const statusOf = ({ status, paused }: Pick<JobRow, 'status' | 'paused'>) => (status === 'queued' && paused ? 'paused' : status)

export const toWire = (job: JobRow, forecast?: Forecast): Job => ({
  id: job.id,
  ...labelsOf(job),
  status: statusOf(job),
  paused: job.paused === 1,
  model_id: job.model_id,
  dataset_id: job.dataset_id,
  progress: job.progress,
  current_epoch: job.current_epoch,
  metrics: JSON.parse(job.metrics_json),
  slowed_by: job.status === 'running' ? job.slowed_by : null,
  queue_position: forecast?.queue_position ?? null,
  estimated_start: iso(forecast?.estimated_start ?? null),
  estimated_completion: iso(job.estimated_completion),
  created_at: new Date(job.created_at).toISOString(),
  started_at: iso(job.started_at),
  finished_at: iso(job.finished_at),
  error: job.error_json ? JSON.parse(job.error_json) : null,
  config: JSON.parse(job.config_json),
  resolved_config: JSON.parse(job.resolved_config_json),
  trained_tokens: job.trained_tokens,
  model: job.model,
})
