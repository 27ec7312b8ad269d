// The start of an attempt at a claimed job.
import type { Trx } from '../../platform/db/open.ts'
import { statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import { withLease } from '../../platform/queue/lease-writes.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import type { Place } from './devices/index.ts'
import type { TrainerHost } from './host.ts'
import { settleClock, startClock, stopClock } from './metering.ts'
import { type AttemptContext, noRoom, pauseForRoom } from './outcomes.ts'
import * as store from './store.ts'

/**
 * Resolves with the job of a claim, which trains on these devices; undefined if it has nothing to train, and its queue
 * entry has ended.
 */
export async function startJob(
  context: AttemptContext,
  host: Pick<TrainerHost, 'queues' | 'hasRun'>,
  claim: Claim,
  place?: StartPlace,
): Promise<store.JobRow | undefined> {
  return withLease(context, claim, async (trx) => {
    const job = await store.findJobUnscoped(trx, claim.ref)
    if (!job || (job.status !== 'queued' && job.status !== 'running')) {
      await context.queue.finish(trx, claim, 'done')
      return undefined
    }
    const time = context.now()
    if (job.paused) {
      await settleClock(trx, job)
      // The server was killed while the job was pausing.
      await store.updateJob(trx, job.id, { status: 'queued' })
      if (job.status === 'running')
        await store.appendEvents(trx, job.id, [statusEvent('paused', 'The job is paused.', { paused: true })], time)
      await context.queue.finish(trx, claim, 'done')
      return undefined
    }
    const begins = job.status === 'queued' && !(await host.hasRun(job.id))
    const full = begins ? await noRoom(context, trx, job.account_id, 1) : undefined
    if (full) {
      await pauseForRoom(trx, job, full, time)
      await store.appendEvents(trx, job.id, [statusEvent('paused', 'The job is paused.', { paused: true })], time)
      await context.queue.finish(trx, claim, 'done')
      return undefined
    }
    // In the cluster a job runs when its machine reports; the worker before this one may have left it running.
    if (host.queues) {
      if (job.status === 'running' && (await host.hasRun(job.id))) {
        await startClock(trx, job, time)
        return job
      }
      if (job.status === 'running') await markWaiting(trx, job.id, lostWorker, { code: 'worker_lost' }, time)
      return { ...job, status: 'queued' }
    }
    // Its worker died: the lease expired, or this server has just taken over the database of a killed one.
    if (job.status === 'running') await store.appendEvents(trx, job.id, [statusEvent('queued', lostWorker)], time)
    await markRunning(trx, job.id, claim.attempt, time, place)
    return job
  })
}

type StartPlace = Pick<Place, 'devices' | 'pauses_serving'>

const lostWorker = 'The worker of this job ended before the job did; it resumes from its last checkpoint.'

/** A trainer works on the job from now on. */
export async function markRunning(
  trx: Trx,
  id: string,
  attempt: number,
  time: number,
  place?: StartPlace,
): Promise<void> {
  const job = (await store.findJobUnscoped(trx, id))!
  await startClock(trx, job, time)
  const { devices = [], pauses_serving = false } = place ?? {}
  const on = devices.length > 0 ? ` on ${devices.join(', ')}` : ''
  const running = attempt === 1 ? `The job is running${on}.` : `The job is running again${on} (attempt ${attempt}).`
  const message = pauses_serving ? `${running} What is served there sleeps until its trainer ends.` : running
  const data = { attempt, ...(devices.length > 0 && { devices }), ...(pauses_serving && { pauses_serving }) }
  await store.appendEvents(trx, id, [statusEvent('running', message, data)], time)
  await store.updateJob(trx, id, { status: 'running', slowed_by: null, started_at: job.started_at ?? time })
  if (job.started_at === null)
    await recordEvent(
      trx,
      job.account_id,
      'training.started',
      { job_id: id, model_id: job.model_id, dataset_id: job.dataset_id },
      time,
    )
}

/** No trainer works on the job, or none that can be heard, until one reports. */
export async function markWaiting(trx: Trx, id: string, message: string, data: object, time: number): Promise<void> {
  await stopClock(trx, id, time)
  await store.updateJob(trx, id, { status: 'queued', estimated_completion: null })
  await store.appendEvents(trx, id, [statusEvent('queued', message, { ...data })], time)
}
