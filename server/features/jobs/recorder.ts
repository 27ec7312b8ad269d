// Records what a trainer reports, but for its result and its error: the job's event stream, its progress, metrics and
// evaluations. Every write asserts the lease, so a worker that lost it changes nothing.
import type { Logger } from 'pino'
import { type JobMetrics, reinforcementFigures, validationFigures } from '../../../contract/fine-tuning.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Trx } from '../../platform/db/open.ts'
import type { NewEvent } from '../../platform/events/event-streams.ts'
import { createLeaseWrites, type LeaseWrites } from '../../platform/queue/lease-writes.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import type { AbortSignals } from '../../platform/queue/worker.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import { readResolvedConfig } from '../models/index.ts'
import { publishCheckpoints } from './checkpoints.ts'
import type { Slowdown } from './core-share.ts'
import type { Report, StopRequest } from './host.ts'
import type { AttemptObserver } from './observe.ts'
import { type AttemptContext, noRoom, pauseForRoom } from './outcomes.ts'
import { createRepeatFilter, type Fresh } from './reported.ts'
import { HeldOut, KeptRollouts } from './result.ts'
import { checkpointsKept } from './run-files.ts'
import * as store from './store.ts'
import type { Tracking } from './tracking.ts'

interface Options {
  context: AttemptContext
  stopRequests: Pick<AbortSignals, 'abort'>
  artifacts: Artifacts
  /** Sends a job's loss curve to the operator's tracker. */
  track: Tracking
  log: Logger
  now(): number
}

interface Recorder {
  /** The writes of the attempt, in order. */
  writes: LeaseWrites
  report: Report
  /** Resolves when all that the trainer reported is recorded. */
  ended(): Promise<void>
}

export type CreateRecorder = (claim: Claim, job: store.JobRow, observer: AttemptObserver) => Recorder

export const createRecorders =
  ({ context, stopRequests, artifacts, track, log, now }: Options): CreateRecorder =>
  (claim, job, observer) => {
    const writes = createLeaseWrites(context, claim)
    const tracked = track(job, readResolvedConfig(job.resolved_config_json))
    const repeats = createRepeatFilter(job.id)
    const record = (event: TrainerEvent, attempt: number, within?: (trx: Trx) => Promise<void>) =>
      writes.add(async (trx) => {
        const fresh = await repeats.fresh(trx, event)
        if (fresh) await recordTrainerEvent(trx, job.id, attempt, fresh, now())
        if (event.type === 'checkpoint') await pauseWithoutRoom(trx)
        await within?.(trx)
      })
    async function pauseWithoutRoom(trx: Trx) {
      const full = await noRoom(context, trx, job.account_id, 0)
      if (!full || (await store.findJobUnscoped(trx, job.id))?.paused) return
      await pauseForRoom(trx, job, full, now())
      stopRequests.abort(job.id, 'pause' satisfies StopRequest)
    }
    const checkpoints = publishCheckpoints({ db: context.db, artifacts, log, job_id: job.id, record })
    return {
      writes,
      report(event, attempt = claim.attempt, within) {
        if (event.type === 'held_out') {
          const heldOut = HeldOut.safeParse(event.data)
          if (!heldOut.success) log.warn({ ...observer.log_fields, err: heldOut.error }, 'held-out rows cannot be read')
          const rows_json = JSON.stringify(heldOut.data?.rows ?? [])
          writes.add(async (trx) => {
            await store.saveHeldOut(trx, { job_id: job.id, rows_json })
            await within?.(trx)
          })
        } else if (event.type === 'rollouts') {
          const kept = KeptRollouts.safeParse(event.data)
          if (!kept.success) return log.warn({ ...observer.log_fields, err: kept.error }, 'rollouts cannot be read')
          const { step, split, figures, groups } = kept.data
          const row = { figures_json: JSON.stringify(figures), groups_json: JSON.stringify(groups) }
          writes.add(async (trx) => {
            await store.saveRollouts(trx, { job_id: job.id, step, split, ...row })
          })
        } else {
          if (event.type === 'checkpoint' && artifacts.shared) checkpoints.add({ event, attempt, within })
          else record(event, attempt, within)
          tracked.record(event)
        }
      },
      async ended() {
        await checkpoints.ended()
        await writes.ended()
        tracked.end()
        observer.trainerEnded()
      },
    }
  }

/**
 * Appends a trainer event to the job's events, unless it is `silent`, and updates the job's columns from it. `attempt`
 * has written its files.
 */
async function recordTrainerEvent(
  trx: Trx,
  job_id: string,
  attempt: number,
  { event, silent = false }: NonNullable<Fresh>,
  time: number,
): Promise<void> {
  // Clients do not get paths of this machine; attempt and step identify a checkpoint's folder.
  const { path: _, ...data } = event.data ?? {}
  const eventData = event.type === 'checkpoint' ? { ...data, attempt } : data
  const { message } = event
  if (!silent)
    await store.appendEvents(trx, job_id, [{ type: event.type as NewEvent['type'], message, data: eventData }], time)
  const number = (name: string) => (typeof data[name] === 'number' ? (data[name] as number) : undefined)
  if (event.type === 'metrics') {
    const before = fromJson((await store.findJobUnscoped(trx, job_id))?.metrics_json ?? '{}')
    const tokens = number('tokens')
    const metrics = metricsAfter(before, data)
    await store.updateJob(trx, job_id, {
      metrics_json: JSON.stringify(metrics),
      ...(tokens !== undefined && { trained_tokens: tokens }),
    })
    const { validation_loss, train_loss } = data
    const step = number('step')
    if (step !== undefined && (number('validation_loss') ?? number('validation_reward')) !== undefined) {
      const figures = Object.fromEntries(figureNames.map((name) => [name, data[name]]))
      const data_json = JSON.stringify({ validation_loss, ...figures, train_loss })
      await store.saveEvaluation(trx, { job_id, step, data_json, created_at: time })
    }
  }
  if (event.type === 'progress') {
    const seconds_left = number('seconds_left')
    await store.updateJob(trx, job_id, {
      progress: Math.min(1, Math.max(0, number('progress') ?? 0)),
      current_epoch: number('current_epoch') ?? 0,
      estimated_completion: seconds_left === undefined ? null : Math.round(time + seconds_left * 1000),
    })
  }
  if (event.type === 'checkpoint')
    await store.updateJob(trx, job_id, {
      crashes: 0,
      checkpoint_bytes: Math.round(Math.max(0, number('size_mb') ?? 0) * 1e6) * checkpointsKept,
    })
}

const figureNames = Object.keys(validationFigures)

const slowdownMessages = {
  serving: 'Answers of this service take the processor',
  other_work: 'Other programs of this machine take the processor',
}

/** Records that something started or stopped slowing a running job. */
export async function recordSlowdown(trx: Trx, job_id: string, slowdown: Slowdown, time: number): Promise<void> {
  const job = await store.findJobUnscoped(trx, job_id)
  if (job?.status !== 'running') return
  const left_ms = Math.max(0, (job.estimated_completion ?? time) - time)
  await store.updateJob(trx, job_id, {
    slowed_by: slowdown?.by ?? null,
    // An estimate until the trainer, whose steps now take longer, reports its next progress.
    ...(slowdown &&
      job.estimated_completion !== null && {
        estimated_completion: Math.round(time + left_ms / Math.max(slowdown.cpu_share, 0.05)),
      }),
  })
  const data = { slowed_by: slowdown?.by ?? null }
  const event: NewEvent = slowdown
    ? {
        type: 'warning',
        message:
          `${slowdownMessages[slowdown.by]}: the training gets ${Math.round(slowdown.cpu_share * 100)} % ` +
          'of what it could use, and takes longer.',
        data: { code: 'slowed', ...data, pace: Number(slowdown.cpu_share.toFixed(3)) },
      }
    : { type: 'log', message: 'The training has the processor to itself again.', data }
  await store.appendEvents(trx, job_id, [event], time)
}

const metricNames = [
  'step',
  'steps_total',
  'loss',
  'train_loss',
  'learning_rate',
  'tokens_per_second',
  'reward_margin',
  'reward_accuracy',
  ...Object.keys(reinforcementFigures),
  'validation_loss',
  ...figureNames,
]

/** Merges new values into the metrics of the same step. Values of an earlier step are dropped. */
export function metricsAfter(before: JobMetrics, data: Record<string, unknown>): JobMetrics {
  const now = Object.fromEntries(
    metricNames.filter((name) => Number.isFinite(data[name])).map((name) => [name, data[name]]),
  ) as JobMetrics
  const withTrainLoss = now.loss === undefined || now.train_loss !== undefined ? now : { ...now, train_loss: now.loss }
  return now.step === undefined || now.step === before.step ? { ...before, ...withTrainLoss } : withTrainLoss
}
