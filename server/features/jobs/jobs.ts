// The worker of fine-tuning jobs: claims a queued job, runs a trainer, records its events, and registers the result.
// Every write asserts the lease, so a worker that lost it changes nothing.

import { ApiError } from '../../../contract/errors.ts'
import type { Trx } from '../../platform/db/open.ts'
import { type NewEvent, statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import { acquireSlotOrDefer } from '../../platform/queue/account-slots.ts'
import { type Claim, createLeaseWrites, LeaseLost, withLease } from '../../platform/queue/queue.ts'
import { storageError } from '../../platform/storage/durable-files.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import {
  malformedHint,
  type RunEnd,
  runToResult,
  runTrainer,
  type TrainerEvent,
  type TrainerExit,
} from '../../platform/trainer/trainer.ts'
import { rowsKey } from '../datasets/index.ts'
import { modelKey, readResolvedConfig } from '../models/index.ts'
import { publishCheckpoints } from './checkpoints.ts'
import { settleClock, startClock, stopClock } from './metering.ts'
import type { AttemptObserver, AttemptOutcome } from './observe.ts'
import {
  complete,
  detach,
  fail,
  passTurn,
  pause,
  requeueOnShutdown,
  retryAfterCrash,
  retryAfterLoss,
  waitForDiskSpace,
} from './outcomes.ts'
import { createRepeatFilter } from './reported.ts'
import { HeldOut, Result } from './result.ts'
import { runsKey } from './run-files.ts'
import { filesOfSpec, jobSpec } from './spec.ts'
import * as store from './store.ts'
import { recordSlowdown, recordTrainerEvent } from './trainer-events.ts'
import { type TurnOver, watchTurn } from './turns.ts'
import type { Cluster, JobWork, StopRequest } from './work.ts'

/**
 * Time for a stopping trainer to save its checkpoint. Longer than the shutdown grace of running answers, which may take
 * its CPU time.
 */
const stop_grace_ms = 40_000
/** The same in a cluster, where the checkpoint has to travel. */
const cluster_grace_ms = 180_000

export async function workOnJob(work: JobWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  // A running job takes one of its account's concurrency slots.
  const releaseSlot = await acquireSlotOrDefer(work, claim, await store.findJobUnscoped(work.db, claim.ref))
  if (!releaseSlot) return
  try {
    await runJob(work, claim, stopping)
  } finally {
    releaseSlot()
  }
}

async function runJob(work: JobWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const job = await startJob(work, claim)
  if (!job) return
  const observer = work.observe(job, claim)
  try {
    observer.end(
      await (work.cluster
        ? runInCluster(work, work.cluster, claim, job, stopping, observer)
        : runHere(work, claim, job, stopping, observer)),
    )
  } catch (error) {
    if (error instanceof LeaseLost) observer.end('lost')
    // A failing disk or database is not the job's fault: it is claimed again when its lease expires, and resumes.
    if (error instanceof LeaseLost || storageError(error)) throw error
    await work.cluster?.endRun(job.id)
    // Permanent errors, such as a removed base, fail the job. Anything else may be transient and is retried.
    if (error instanceof ApiError) {
      observer.end('failed')
      return await fail(work, claim, job, {
        code: error.code.startsWith('model_') ? 'base_missing' : error.code,
        message: error.message,
      })
    }
    observer.end('died')
    work.log.error({ err: error, ...observer.log_fields }, 'a fine-tuning worker failed')
    return await retryAfterCrash(work, claim, job, `The service failed at this job (${(error as Error).message})`, '')
  } finally {
    // A failing disk or database.
    observer.end('waiting')
    work.clearStopRequest(job.id)
  }
}

/** Records what a trainer reports, but for its result and its error. */
function createRecorder(work: JobWork, claim: Claim, job: store.JobRow, observer: AttemptObserver) {
  const writes = createLeaseWrites(work, claim)
  const track = work.track(job, readResolvedConfig(job.resolved_config_json))
  const { artifacts, log } = work
  const repeats = createRepeatFilter(job.id)
  const record = (event: TrainerEvent, attempt: number, within?: (trx: Trx) => Promise<void>) =>
    writes.add(async (trx) => {
      const fresh = await repeats.fresh(trx, event)
      if (fresh) await recordTrainerEvent(trx, job.id, attempt, fresh, work.now())
      await within?.(trx)
    })
  const checkpoints = publishCheckpoints({ artifacts, log, job_id: job.id, record })
  return {
    writes,
    /** `within` runs in the transaction of a line's record; `attempt` is the one whose trainer reports. */
    onEvent(event: TrainerEvent, attempt = claim.attempt, within?: (trx: Trx) => Promise<void>) {
      if (event.type === 'held_out') {
        const heldOut = HeldOut.safeParse(event.data)
        if (!heldOut.success) log.warn({ ...observer.log_fields, err: heldOut.error }, 'held-out rows cannot be read')
        const rows_json = JSON.stringify(heldOut.data?.rows ?? [])
        writes.add(async (trx) => {
          await store.saveHeldOut(trx, { job_id: job.id, rows_json })
          await within?.(trx)
        })
      } else {
        if (event.type === 'checkpoint' && artifacts.shared) checkpoints.add({ event, attempt, within })
        else record(event, attempt, within)
        track.record(event)
      }
    },
    async ended() {
      await checkpoints.ended()
      await writes.ended()
      track.end()
      observer.trainerEnded()
    },
  }
}

/** Takes an event of the trainer of an attempt, by default of this one; `within` runs in the transaction of its record. */
type Report = (event: TrainerEvent, attempt?: number, within?: (trx: Trx) => Promise<void>) => void

/** What an attempt has, wherever its trainer runs. */
function startAttempt(work: JobWork, claim: Claim, job: store.JobRow, observer: AttemptObserver) {
  const { writes, onEvent, ended } = createRecorder(work, claim, job, observer)
  const turn = watchTurn(work, claim)
  return {
    stopRequested: work.stopSignal(job.id),
    turnOver: turn.over,
    writes,
    /** Keeps the `inputs` while the trainer runs; resolves when all that it reported is recorded. */
    async train<Exit>(inputs: string[], run: (report: Report) => Promise<Exit>): Promise<RunEnd<Exit, Result>> {
      const hold = await work.artifacts.hold(inputs)
      const observed = (report: Report) =>
        run((event, ...more) => {
          observer.event(event)
          turn.event(event)
          report(event, ...more)
        })
      const end = await runToResult(observed, Result, onEvent).finally(hold.release)
      await turn.end()
      await ended()
      return end
    },
  }
}

/** Runs a trainer as a child of this process. */
async function runHere(
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  stopping: AbortSignal,
  observer: AttemptObserver,
): Promise<AttemptOutcome> {
  const { stopRequested, turnOver, writes, train } = startAttempt(work, claim, job, observer)
  const spec = await jobSpec(work, job, claim)
  const end = await train(filesOfSpec(spec), (report) =>
    runTrainer({
      run_dir: runDir(work.dataDir, job.id, claim.attempt),
      spec,
      python: work.python,
      prepared: work.prepared,
      processes: work.trainer_processes,
      env: observer.env,
      log_fields: observer.log_fields,
      grace_ms: stop_grace_ms,
      onStarted: (pid) =>
        work.cores.watch(pid, (slowdown) => writes.add((trx) => recordSlowdown(trx, job.id, slowdown, work.now()))),
      signal: AbortSignal.any([stopping, stopRequested, turnOver, writes.failed]),
      onEvent: (event) => report(event),
    }),
  )
  const { exit, result } = end
  if (isCancelled(stopRequested)) return endCancelled(work, claim, job, observer)
  writes.failed.throwIfAborted()
  if (result && exit.status === 0) return ends('completed', complete(work, claim, job, result))
  if (stopping.aborted) return ends('interrupted', requeueOnShutdown(work, claim, job, exit))
  if (stopRequested.aborted) return ends('paused', pause(work, claim, job))
  if (turnOver.aborted && !end.failure) return ends('passed', passTurn(work, claim, job, turnOver.reason as TurnOver))
  return endAsTrainerDid(work, claim, job, end, observer)
}

/** Follows a run in the cluster, which goes on when this process ends. */
async function runInCluster(
  work: JobWork,
  cluster: Cluster,
  claim: Claim,
  job: store.JobRow,
  stopping: AbortSignal,
  observer: AttemptObserver,
): Promise<AttemptOutcome> {
  const { stopRequested, turnOver, writes, train } = startAttempt(work, claim, job, observer)
  const datasets = [job.dataset_id, ...(job.validation_dataset_id ? [job.validation_dataset_id] : [])].map((id) =>
    rowsKey(id),
  )
  const models = job.model_id.startsWith('mdl_') ? [modelKey(job.model_id)] : []
  // The machines of the cluster fetch them from here.
  const end = await train([...datasets, ...models], (report) =>
    cluster.follow(claim, job, {
      stopping,
      stopRequested,
      turnOver,
      failed: writes.failed,
      grace_ms: cluster_grace_ms,
      onEvent: report,
      onRunning: (attempt) => writes.add((trx) => markRunning(trx, job.id, attempt, work.now())),
      onWaiting: (message, data) => writes.add((trx) => markWaiting(trx, job.id, message, data, work.now())),
      onNote: (message, data) =>
        writes.add((trx) => store.appendEvents(trx, job.id, [{ type: 'log', message, data }], work.now())),
    }),
  )
  const { exit: ended, result } = end
  if (isCancelled(stopRequested)) {
    await cluster.endRun(job.id)
    return endCancelled(work, claim, job, observer)
  }
  writes.failed.throwIfAborted()
  if (ended.how === 'detached') return ends('interrupted', detach(work, claim))
  if (ended.how === 'exited' && result && ended.exit.status === 0) {
    await complete(work, claim, job, result)
    await cluster.endRun(job.id)
    return 'completed'
  }
  const passed = turnOver.aborted || (await cluster.isTurnOver(job.id))
  // Before the entry is claimed again: the next attempt would attach to it.
  await cluster.endRun(job.id)
  const paused = stopRequested.aborted || (await store.findJobUnscoped(work.db, job.id))?.paused === 1
  if (paused) return ends('paused', pause(work, claim, job))
  if (passed && !end.failure)
    return ends('passed', passTurn(work, claim, job, turnOver.aborted ? (turnOver.reason as TurnOver) : 'passed'))
  if (ended.how === 'lost') return ends('died', retryAfterLoss(work, claim, job, ended.message))
  return endAsTrainerDid(work, claim, job, { ...end, exit: ended.exit }, observer)
}

const ends = async (outcome: AttemptOutcome, write: Promise<void>): Promise<AttemptOutcome> => {
  await write
  return outcome
}

const isCancelled = (stopRequested: AbortSignal) =>
  stopRequested.aborted && (stopRequested.reason as StopRequest) === 'cancel'

async function endCancelled(work: JobWork, claim: Claim, job: store.JobRow, observer: AttemptObserver): Promise<never> {
  await work.artifacts.remove(runsKey(job.id))
  observer.end('cancelled')
  throw new LeaseLost(claim)
}

/** Ends an attempt whose trainer ended without a result and without having been asked to. */
async function endAsTrainerDid(
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  { exit, failure, malformed }: RunEnd<TrainerExit, Result>,
  { log_fields }: AttemptObserver,
): Promise<AttemptOutcome> {
  if (failure?.code === 'storage_full') return ends('waiting', waitForDiskSpace(work, claim, job))
  if (failure) return ends('failed', fail(work, claim, job, failure))
  const how = exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`
  if (malformed !== undefined && exit.status === 0) {
    work.log.error({ ...log_fields, malformed }, 'the result of a trainer cannot be read')
    return ends('died', retryAfterCrash(work, claim, job, malformed, malformedHint))
  }
  work.log.warn({ ...log_fields, exit }, 'a trainer died')
  const hint = exit.signal === 'SIGKILL' ? ' The machine may have run out of memory: try a smaller batch_size.' : ''
  return ends('died', retryAfterCrash(work, claim, job, `The trainer ${how}`, hint))
}

async function startJob(work: JobWork, claim: Claim): Promise<store.JobRow | undefined> {
  return withLease(work, claim, async (trx) => {
    const job = await store.findJobUnscoped(trx, claim.ref)
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
    // In the cluster a job runs when its machine reports; the worker before this one may have left it running.
    if (work.cluster) {
      if (job.status === 'running' && (await work.cluster.hasRun(job.id))) {
        await startClock(trx, job, time)
        return job
      }
      if (job.status === 'running') await markWaiting(trx, job.id, lostWorker, { code: 'worker_lost' }, time)
      return { ...job, status: 'queued' }
    }
    const events: NewEvent[] = []
    // Its worker died: the lease expired, or this server has just taken over the database of a killed one.
    if (job.status === 'running') events.push(statusEvent('queued', lostWorker))
    await store.appendEvents(trx, job.id, events, time)
    await markRunning(trx, job.id, claim.attempt, time)
    return job
  })
}

const lostWorker = 'The worker of this job ended before the job did; it resumes from its last checkpoint.'

/** A trainer works on the job from now on. */
async function markRunning(trx: Trx, id: string, attempt: number, time: number): Promise<void> {
  const job = (await store.findJobUnscoped(trx, id))!
  await startClock(trx, job, time)
  const message = attempt === 1 ? 'The job is running.' : `The job is running again (attempt ${attempt}).`
  await store.appendEvents(trx, id, [statusEvent('running', message, { attempt })], time)
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
async function markWaiting(trx: Trx, id: string, message: string, data: object, time: number): Promise<void> {
  await stopClock(trx, id, time)
  await store.updateJob(trx, id, { status: 'queued', estimated_completion: null })
  await store.appendEvents(trx, id, [statusEvent('queued', message, { ...data })], time)
}
