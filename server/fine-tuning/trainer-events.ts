import type { JobMetrics } from '../../contract/tuning.ts'
import type { Trx } from '../db/open.ts'
import type { NewEvent } from '../events/event-streams.ts'
import type { Claim } from '../queue/queue.ts'
import type { Slowed } from './core-share.ts'
import * as store from './store.ts'
import type { TrainerLine } from './trainer.ts'

/** Writes what one line of the trainer says: its event, and the job's fields that it moves. */
export async function record(trx: Trx, job_id: string, claim: Claim, line: TrainerLine, time: number): Promise<void> {
  // Where a checkpoint lies on this machine is nobody's business outside; its attempt and step say it to us.
  const { path: _, ...data } = line.data ?? {}
  const shown = line.type === 'checkpoint' ? { ...data, attempt: claim.attempt } : data
  await store.appendEvents(
    trx,
    job_id,
    [{ type: line.type as NewEvent['type'], message: line.message, data: shown }],
    time,
  )
  const number = (name: string) => (typeof data[name] === 'number' ? (data[name] as number) : undefined)
  if (line.type === 'metrics') {
    const before = JSON.parse((await store.jobById(trx, job_id))?.metrics_json ?? '{}') as JobMetrics
    const tokens = number('tokens')
    const metrics = metricsAfter(before, data)
    await store.updateJob(trx, job_id, {
      metrics_json: JSON.stringify(metrics),
      ...(tokens !== undefined && { trained_tokens: tokens }),
    })
    const { validation_loss, validation_exact, train_loss } = data
    const step = number('step')
    if (step !== undefined && typeof validation_loss === 'number') {
      const data_json = JSON.stringify({ validation_loss, validation_exact, train_loss })
      await store.saveEvaluation(trx, { job_id, step, data_json, created_at: time })
    }
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

const slowing = {
  serving: 'Answers of this service take the processor',
  other_work: 'Other programs of this machine take the processor',
}

/** Writes that something has begun or ceased to slow a running job. */
export async function recordSlowed(trx: Trx, job_id: string, slowed: Slowed, time: number): Promise<void> {
  const job = await store.jobById(trx, job_id)
  if (job?.status !== 'running') return
  const left_ms = Math.max(0, (job.estimated_completion ?? time) - time)
  await store.updateJob(trx, job_id, {
    slowed_by: slowed?.by ?? null,
    // Until the trainer, whose steps are now far between, tells of one at the new pace.
    ...(slowed &&
      job.estimated_completion !== null && {
        estimated_completion: Math.round(time + left_ms / Math.max(slowed.pace, 0.05)),
      }),
  })
  const data = { slowed_by: slowed?.by ?? null }
  const event: NewEvent = slowed
    ? {
        type: 'warning',
        message: `${slowing[slowed.by]}: the training gets ${Math.round(slowed.pace * 100)} % of what it could use, and takes longer.`,
        data: { code: 'slowed', ...data, pace: Number(slowed.pace.toFixed(3)) },
      }
    : { type: 'log', message: 'The training has the processor to itself again.', data }
  await store.appendEvents(trx, job_id, [event], time)
}

const told = [
  'step',
  'steps_total',
  'loss',
  'train_loss',
  'learning_rate',
  'tokens_per_second',
  'validation_loss',
  'validation_exact',
] as const

/** All of one step: what was told of an earlier one does not stay beside what is told of this one. */
export function metricsAfter(before: JobMetrics, data: Record<string, unknown>): JobMetrics {
  const now = Object.fromEntries(
    told.filter((name) => typeof data[name] === 'number').map((name) => [name, data[name]]),
  ) as JobMetrics
  const trained = now.loss === undefined || now.train_loss !== undefined ? now : { ...now, train_loss: now.loss }
  return now.step === undefined || now.step === before.step ? { ...before, ...trained } : trained
}
