// The outcomes of an attempt without a result: failed, paused, or requeued to resume later.
import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import type { Trx } from '../../platform/db/open.ts'
import { type NewEvent, statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import { nextLook } from '../../platform/queue/account-slots.ts'
import { type LeaseContext, withLease } from '../../platform/queue/lease-writes.ts'
import type { Claim, TurnEnd } from '../../platform/queue/queue.ts'
import { createRetryPolicy, diskFullRule, linearDelay, requeueAfter } from '../../platform/queue/retry-policy.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { stoppedStatus, type TrainerExit } from '../../platform/trainer/trainer.ts'
import type { TurnOver } from './host.ts'
import { type JobMeter, settleClock, stopClock } from './metering.ts'
import * as store from './store.ts'

const retries = createRetryPolicy({
  /** Crashes in a row without a new checkpoint. The first is retried at once, so that nobody takes the job's turn. */
  crash: { max: 3, delay_ms: (count) => 1000 * (count - 1) },
  disk_full: diskFullRule,
  /** A cluster that loses runs is the operator's to mend, and no fault of the job. */
  cluster_loss: { delay_ms: linearDelay(1000, 60_000) },
})

/** What every step of an attempt uses. */
export interface AttemptContext extends LeaseContext {
  artifacts: Artifacts
  meter: JobMeter
  quota: Pick<StorageQuota, 'require'>
  now(): number
}

/** Marks a job as failed, in the transaction that ends its queue entry. */
export async function endAsFailed(
  trx: Trx,
  meter: JobMeter,
  job: store.JobRow,
  error: { code: string; message: string },
  time: number,
): Promise<void> {
  await store.updateJob(trx, job.id, {
    status: 'failed',
    error_json: JSON.stringify(error),
    estimated_completion: null,
    finished_at: time,
  })
  await meter.end(trx, job.id, 'failed', time)
  const events: NewEvent[] = [
    { type: 'error', message: error.message, data: { code: error.code } },
    statusEvent('failed', 'The job failed.'),
  ]
  await store.appendEvents(trx, job.id, events, time)
  await recordEvent(trx, job.account_id, 'training.failed', { job_id: job.id, error }, time)
}

export async function fail(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  error: { code: string; message: string },
): Promise<void> {
  await withLease(context, claim, async (trx) => {
    await endAsFailed(trx, context.meter, job, error, context.now())
    await context.queue.finish(trx, claim, 'dead')
  })
  // Keep the logs for the operator, remove the checkpoints.
  for (let attempt = 1; attempt <= claim.attempt; attempt++)
    await context.artifacts.remove(`${path.join(runDir('', job.id, attempt), 'checkpoints')}/`)
}

/** Ends an attempt whose job continues later, from its last checkpoint. */
const requeue = (
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  events: NewEvent[],
  delay_ms: number,
  values: Partial<store.JobRow> = {},
  turn?: TurnEnd,
) =>
  requeueAfter(
    context,
    claim,
    delay_ms,
    async (trx, time) => {
      await stopClock(trx, job.id, time)
      await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null, ...values })
      await store.appendEvents(trx, job.id, events, time)
    },
    turn,
  )

const retryEvents = (message: string, data: { code: string; [key: string]: unknown }): NewEvent[] => [
  { type: 'warning', message, data },
  statusEvent('queued', 'The job waits to be tried again.'),
]

/** Requeues a job because the service stops. The next start resumes it from its checkpoint, if there is one. */
export async function requeueOnShutdown(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  exit: TrainerExit,
): Promise<void> {
  const isSaved = exit.status === stoppedStatus && (await store.checkpoints(context.db, job.id, 1)).length > 0
  const saved = isSaved ? ' Its progress is saved.' : ''
  const message = `The service is stopping; the job resumes when it starts again.${saved}`
  await requeue(context, claim, job, [statusEvent('queued', message)], 0)
}

/** Requeues a job because its account's turn is over and another account waits, or its account is suspended. */
export async function passTurn(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  why: TurnOver = 'passed',
): Promise<void> {
  const [last] = await store.checkpoints(context.db, job.id, 1)
  const resumes = last ? `; it resumes after step ${last.step}` : ''
  const [code, what] = {
    passed: ['turn_passed', "The job gave its turn to another account's job"] as const,
    suspended: ['account_suspended', 'The account is suspended, so the job waits'] as const,
  }[why]
  const message = `${what}${resumes}.`
  const data = { code, ...(last && { step: last.step }) }
  await requeue(context, claim, job, [statusEvent('queued', message, data)], 0, {}, 'passed')
}

/** The code of the event that tells why a queued job waits for devices. */
export const waitsForDevices = 'waits_for_devices'

/** Puts a job back that finds no devices free. It did not begin: its turn and its attempt are still to come. */
export async function waitForDevices(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  { waits, outdated }: { waits: string; outdated(): boolean },
): Promise<void> {
  const { queue, now } = context
  await withLease(context, claim, async (trx) => {
    if (job.status === 'running') {
      // Its server was killed, and the next one has no room for it.
      await settleClock(trx, job)
      await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    } else if (sameWords((await store.waitingEvents(trx, [job.id], waitsForDevices)).get(job.id), waits)) return
    await store.appendEvents(trx, job.id, [statusEvent('queued', waits, { code: waitsForDevices })], now())
  })
  await queue.defer(claim, nextLook(job.created_at, now()), 'unused')
  if (outdated()) await queue.recall(store.queueKind, [job.id])
}

/** Whether two messages differ in figures alone, such as of memory: each look has others. */
const sameWords = (one: string | undefined, other: string) =>
  one !== undefined && one.replace(/[\d.]+/g, '') === other.replace(/[\d.]+/g, '')

/** Pauses a job because its account stores as much as it may. Who has made room resumes it. */
export async function pauseForRoom(trx: Trx, job: store.JobRow, { code, message }: ApiError, time: number) {
  await store.updateJob(trx, job.id, { paused: 1 })
  const warning = `The job is paused. ${message} Then resume the job.`
  await store.appendEvents(trx, job.id, [{ type: 'warning', message: warning, data: { code } }], time)
}

/** Why an account may not store so much more; undefined if it may. */
export const noRoom = (
  { quota }: Pick<AttemptContext, 'quota'>,
  trx: Trx,
  account_id: string,
  more: number,
): Promise<ApiError | undefined> =>
  quota.require(trx, account_id, more).then(
    () => undefined,
    (error) => {
      if (error instanceof ApiError) return error
      throw error
    },
  )

/** Requeues a job because the disk is full. It resumes from its last checkpoint once there is space. */
export async function waitForDiskSpace(context: AttemptContext, claim: Claim, job: store.JobRow): Promise<void> {
  const message =
    'The disk of the service is full. The job waits until there is room, and resumes from its last checkpoint.'
  const { delay_ms } = retries.after('disk_full')
  await requeue(context, claim, job, retryEvents(message, { code: 'storage_full' }), delay_ms)
}

/** Requeues a job after a crash. The third crash in a row without a new checkpoint fails it. */
export async function retryAfterCrash(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  what: string,
  hint: string,
): Promise<void> {
  const earlier = (await store.findJobUnscoped(context.db, job.id))?.crashes
  const { retry, count: crashes, delay_ms } = retries.after('crash', earlier)
  const code = 'trainer_crashed'
  if (!retry) {
    const message = `${what}, ${crashes} times without reaching another checkpoint.${hint}`
    return fail(context, claim, job, { code, message })
  }
  const events = retryEvents(`${what}. It is tried again from the last checkpoint.`, { code, crashes })
  await requeue(context, claim, job, events, delay_ms, { crashes })
}

/** Requeues a job whose run the cluster has lost. It resumes from its last checkpoint in the cluster that there is. */
export async function retryAfterLoss(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  what: string,
): Promise<void> {
  const earlier = (await store.findJobUnscoped(context.db, job.id))?.crashes
  const { count: crashes, delay_ms } = retries.after('cluster_loss', earlier)
  const events = retryEvents(`${what}. The job is submitted again from its last checkpoint.`, { code: 'run_lost' })
  await requeue(context, claim, job, events, delay_ms, { crashes })
}

/** Leaves a run that continues in the cluster: the next worker that claims the job attaches to it. */
export async function detach(context: AttemptContext, claim: Claim): Promise<void> {
  await withLease(context, claim, (trx) => context.queue.requeue(trx, claim, context.now()))
  context.queue.wake()
}

/** Ends an attempt because a user paused the job. It stays queued without a queue entry until it is resumed. */
export async function pause(context: AttemptContext, claim: Claim, job: store.JobRow): Promise<void> {
  await withLease(context, claim, async (trx) => {
    const time = context.now()
    // It may have been resumed while the trainer was still stopping: then requeue it now.
    const paused = (await store.findJobUnscoped(trx, job.id))?.paused === 1
    const [last] = await store.checkpoints(trx, job.id, 1)
    const message = paused ? `The job is paused${last ? ` after step ${last.step}` : ''}.` : 'The job waits to resume.'
    await stopClock(trx, job.id, time)
    await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    await store.appendEvents(trx, job.id, [statusEvent(paused ? 'paused' : 'queued', message, { paused })], time)
    if (paused) await context.queue.finish(trx, claim, 'done')
    else await context.queue.requeue(trx, claim, time)
  })
  context.queue.wake()
}
