import type { Job } from '../../contract/tuning.ts'
import type { JobRow } from './store.ts'

const iso = (time: number | null) => (time === null ? null : new Date(time).toISOString())

export const toWire = (job: JobRow): Job => ({
  id: job.id,
  status: job.status,
  paused: job.paused === 1,
  model_id: job.model_id,
  dataset_id: job.dataset_id,
  progress: job.progress,
  current_epoch: job.current_epoch,
  metrics: JSON.parse(job.metrics_json),
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
