import type { JobMetrics } from '../../contract/tuning.ts'
import type { Trx } from '../db/open.ts'
import type { NewEvent } from '../event-log.ts'
import type { Claim } from '../queue/queue.ts'
import * as store from './store.ts'
import type { TrainerLine } from './trainer.ts'

/** Writes what one line of the trainer says: its event, and the job's fields that it moves. */
export async function record(trx: Trx, job_id: string, claim: Claim, line: TrainerLine, time: number): Promise<void> {
  // Where a checkpoint lies on this machine is nobody's business outside; its attempt and step say it to us.
  const { path: _, ...data } = line.data ?? {}
  const shown = line.type === 'checkpoint' ? { ...data, attempt: claim.attempt } : data
  await store.appendEvents(trx, job_id, [{ type: line.type as NewEvent['type'], message: line.message, data: shown }], time)
  const number = (name: string) => (typeof data[name] === 'number' ? (data[name] as number) : undefined)
  if (line.type === 'metrics') {
    const names = ['step', 'steps_total', 'loss', 'learning_rate', 'tokens_per_second', 'validation_loss', 'validation_exact'] as const
    const told = Object.fromEntries(names.map((name) => [name, number(name)]).filter(([, value]) => value !== undefined)) as JobMetrics
    const before = JSON.parse((await store.jobById(trx, job_id))?.metrics_json ?? '{}') as JobMetrics
    const metrics: JobMetrics = { ...before, ...told, ...(told.loss !== undefined && { train_loss: told.loss }) }
    const tokens = number('tokens')
    await store.updateJob(trx, job_id, { metrics_json: JSON.stringify(metrics), ...(tokens !== undefined && { trained_tokens: tokens }) })
  }
  if (line.type === 'progress') {
    const seconds_left = number('seconds_left')
    await store.updateJob(trx, job_id, {
      progress: Math.min(1, Math.max(0, number('progress') ?? 0)),
      current_epoch: number('current_epoch') ?? 0,
      estimated_completion: seconds_left === undefined ? null : Math.round(time + seconds_left * 1000),
    })
  }
  if (line.type === 'checkpoint') await store.updateJob(trx, job_id, { crashes: 0 })
}
