// The worker of fine-tuning jobs: claims a queued job, runs a trainer, records its events, and registers the result.
// Every write asserts the lease, so a worker that lost it changes nothing.
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../contract/errors.ts'
import { type NewEvent, statusEvent } from '../events/event-streams.ts'
import { recordEvent } from '../events/outbox.ts'
import { acquireSlotOrDefer } from '../queue/account-slots.ts'
import { type Claim, createLeaseWrites, LeaseLost, withLease } from '../queue/queue.ts'
import { storageError } from '../storage/durable-files.ts'
import { runDir } from './artifacts.ts'
import { readResolvedConfig } from './defaults.ts'
import { settleClock, startClock } from './metering.ts'
import type { AttemptObserver, AttemptOutcome } from './observe.ts'
import { complete, fail, pause, requeueOnShutdown, retryAfterCrash, waitForDiskSpace } from './outcomes.ts'
import { jobSpec } from './spec.ts'
import * as store from './store.ts'
import { HeldOut, Result, runTrainer } from './trainer.ts'
import { recordSlowdown, recordTrainerEvent } from './trainer-events.ts'
import type { FineTuningWork, StopRequest } from './work.ts'

/**
 * Time for a stopping trainer to save its checkpoint. Longer than the shutdown grace of running answers, which may take
 * its CPU time.
 */
const stop_grace_ms = 40_000

export async function workOnJob(work: FineTuningWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  // A running job takes one of its account's concurrency slots.
  const releaseSlot = await acquireSlotOrDefer(work, claim, await store.jobById(work.db, claim.ref))
  if (!releaseSlot) return
  try {
    await runJob(work, claim, stopping)
  } finally {
    releaseSlot()
  }
}

async function runJob(work: FineTuningWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const job = await startJob(work, claim)
  if (!job) return
  const observer = work.observe(claim.attempt)
  try {
    observer.end(await runAttempt(work, claim, job, stopping, observer))
  } catch (error) {
    if (error instanceof LeaseLost) observer.end('lost')
    // A failing disk or database is not the job's fault: it is claimed again when its lease expires, and resumes.
    if (error instanceof LeaseLost || storageError(error)) throw error
    // Permanent errors, such as a removed base, fail the job. Anything else may be transient and is retried.
    if (error instanceof ApiError) {
      observer.end('failed')
      return await fail(work, claim, job, {
        code: error.code.startsWith('model_') ? 'base_missing' : error.code,
        message: error.message,
      })
    }
    observer.end('died')
    work.log.error({ err: error, job: job.id }, 'a fine-tuning worker failed')
    return await retryAfterCrash(work, claim, job, `The service failed at this job (${(error as Error).message})`, '')
  } finally {
    // A failing disk or database.
    observer.end('waiting')
    work.clearStopRequest(job.id)
  }
}

async function runAttempt(
  work: FineTuningWork,
  claim: Claim,
  job: store.JobRow,
  stopping: AbortSignal,
  observer: AttemptObserver,
): Promise<AttemptOutcome> {
  const stopRequested = work.stopSignal(job.id)
  const signal = AbortSignal.any([stopping, stopRequested])
  let result: Result | undefined
  let failure: { code: string; message: string } | undefined
  const writes = createLeaseWrites(work, claim)
  const track = work.track(job, readResolvedConfig(job.resolved_config_json))
  const exit = await runTrainer({
    run_dir: runDir(work.dataDir, job.id, claim.attempt),
    spec: await jobSpec(work, job, claim),
    python: work.python,
    processes: work.trainer_processes,
    grace_ms: stop_grace_ms,
    onStarted: (pid) =>
      work.cores.watch(pid, (slowdown) => writes.add((trx) => recordSlowdown(trx, job.id, slowdown, work.now()))),
    signal: AbortSignal.any([signal, writes.failed]),
    onEvent(event) {
      observer.event(event)
      if (event.type === 'result') result = Result.safeParse(event.data).data
      else if (event.type === 'held_out') {
        const rows_json = JSON.stringify(HeldOut.safeParse(event.data).data?.rows ?? [])
        writes.add((trx) => store.saveHeldOut(trx, { job_id: job.id, rows_json }))
      } else if (event.type === 'error')
        failure = { code: String(event.data?.code ?? 'internal'), message: event.message }
      else {
        writes.add((trx) => recordTrainerEvent(trx, job.id, claim, event, work.now()))
        track.record(event)
      }
    },
  })
  await writes.ended()
  track.end()
  if (stopRequested.aborted && (stopRequested.reason as StopRequest) === 'cancel') {
    await rm(path.dirname(runDir(work.dataDir, job.id, claim.attempt)), { recursive: true, force: true })
    observer.end('cancelled')
    throw new LeaseLost(claim)
  }
  writes.failed.throwIfAborted()
  const ends = async (outcome: AttemptOutcome, write: Promise<void>) => {
    await write
    return outcome
  }
  if (result && exit.status === 0) return ends('completed', complete(work, claim, job, result))
  if (stopping.aborted) return ends('interrupted', requeueOnShutdown(work, claim, job, exit))
  if (stopRequested.aborted) return ends('paused', pause(work, claim, job))
  if (failure?.code === 'storage_full') return ends('waiting', waitForDiskSpace(work, claim, job))
  if (failure) return ends('failed', fail(work, claim, job, failure))
  const how = exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`
  work.log.warn({ job: job.id, attempt: claim.attempt, exit }, 'a trainer died')
  const hint = exit.signal === 'SIGKILL' ? ' The machine may have run out of memory: try a smaller batch_size.' : ''
  return ends('died', retryAfterCrash(work, claim, job, `The trainer ${how}`, hint))
}

async function startJob(work: FineTuningWork, claim: Claim): Promise<store.JobRow | undefined> {
  return withLease(work, claim, async (trx) => {
    const job = await store.jobById(trx, claim.ref)
    if (!job || (job.status !== 'queued' && job.status !== 'running')) {
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    const time = work.now()
    if (job.paused) {
      await settleClock(trx, job)
      // The server was killed while the job was pausing.
      await store.updateJob(trx, job.id, { status: 'queued' })
      if (job.status === 'running')
        await store.appendEvents(trx, job.id, [statusEvent('paused', 'The job is paused.', { paused: true })], time)
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    await startClock(trx, job, time)
    const events: NewEvent[] = []
    // Its worker died: the lease expired, or this server has just taken over the database of a killed one.
    if (job.status === 'running')
      events.push(
        statusEvent('queued', 'The worker of this job ended before the job did; it resumes from its last checkpoint.'),
      )
    events.push(
      statusEvent(
        'running',
        claim.attempt === 1 ? 'The job is running.' : `The job is running again (attempt ${claim.attempt}).`,
        { attempt: claim.attempt },
      ),
    )
    await store.appendEvents(trx, job.id, events, time)
    await store.updateJob(trx, job.id, { status: 'running', slowed_by: null, started_at: job.started_at ?? time })
    if (job.started_at === null)
      await recordEvent(
        trx,
        job.account_id,
        'training.started',
        { job_id: job.id, model_id: job.model_id, dataset_id: job.dataset_id },
        time,
      )
    return job
  })
}
