// The worker of fine-tuning jobs: claims a queued job, trains, records what the trainer reports, and ends the attempt.
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { type AcquireSlot, acquireSlotOrDefer } from '../../platform/queue/account-slots.ts'
import { type Claim, LeaseLost } from '../../platform/queue/queue.ts'
import type { AbortSignals, Turn } from '../../platform/queue/worker.ts'
import { storageError } from '../../platform/storage/durable-files.ts'
import { malformedHint, type RunEnd, runToResult, type TrainerExit } from '../../platform/trainer/trainer.ts'
import type { Complete } from './complete.ts'
import type { Place } from './devices/index.ts'
import type { Report, StopRequest, TrainerEnd, TrainerHost, TurnOver } from './host.ts'
import type { AttemptObserver, AttemptOutcome, ObserveAttempt } from './observe.ts'
import {
  type AttemptContext,
  detach,
  fail,
  passTurn,
  pause,
  requeueOnShutdown,
  retryAfterCrash,
  retryAfterLoss,
  waitForDevices,
  waitForDiskSpace,
} from './outcomes.ts'
import { type CreateRecorder, recordSlowdown } from './recorder.ts'
import { Result } from './result.ts'
import { runsKey } from './run-files.ts'
import { markRunning, markWaiting, startJob } from './start.ts'
import * as store from './store.ts'
import type { WatchTurn } from './turns.ts'

export interface JobWorker {
  context: AttemptContext
  acquireSlot: AcquireSlot
  observe: ObserveAttempt
  host: TrainerHost
  createRecorder: CreateRecorder
  watchTurn: WatchTurn
  complete: Complete
  /** Signals that abort when the job's trainer in this process must stop; their `reason` is a StopRequest. */
  stopRequests: Pick<AbortSignals, 'get' | 'clear'>
  log: Logger
}

export async function workOnJob(worker: JobWorker, claim: Claim, turn: Turn): Promise<void> {
  const { db, queue, now } = worker.context
  const job = await store.findJobUnscoped(db, claim.ref)
  // A running job takes one of its account's concurrency slots.
  const releaseSlot = await acquireSlotOrDefer({ queue, acquireSlot: worker.acquireSlot, now }, claim, job)
  if (!releaseSlot) return
  let place: Place | undefined
  try {
    const found = job && trains(job) ? await worker.host.takePlace?.(job, turn.interrupted) : undefined
    if (found && 'waits' in found) return await waitForDevices(worker.context, claim, job!, found)
    if (found && 'refused' in found)
      return await fail(worker.context, claim, job!, { code: 'out_of_memory', message: found.refused })
    place = found
    const started = await startJob(worker.context, worker.host, claim, place)
    if (started) await attempt(worker, claim, started, turn, place)
  } finally {
    place?.release()
    releaseSlot()
  }
}

/** Whether a claimed job has something to train: it may have ended or been paused since. */
const trains = ({ status, paused }: store.JobRow) => (status === 'queued' || status === 'running') && !paused

/** One attempt at a job, from the start of its trainer to its outcome. */
async function attempt(
  worker: JobWorker,
  claim: Claim,
  job: store.JobRow,
  turn: Turn,
  place: Place | undefined,
): Promise<void> {
  const { context, host, log } = worker
  const observer = worker.observe(job, claim)
  try {
    const trained = await train(worker, claim, job, turn, place, observer)
    observer.end(await endAttempt(worker, claim, job, trained, observer))
  } catch (error) {
    if (error instanceof LeaseLost) observer.end('lost')
    // A failing disk or database is not the job's fault: it is claimed again when its lease expires, and resumes.
    if (error instanceof LeaseLost || storageError(error)) throw error
    await host.endRun(job.id)
    // Permanent errors, such as a removed base, fail the job. Anything else may be transient and is retried.
    if (error instanceof ApiError) {
      observer.end('failed')
      return await fail(context, claim, job, {
        code: error.code.startsWith('model_') ? 'base_missing' : error.code,
        message: error.message,
      })
    }
    observer.end('died')
    log.error({ err: error, ...observer.log_fields }, 'a fine-tuning worker failed')
    return await retryAfterCrash(
      context,
      claim,
      job,
      `The service failed at this job (${(error as Error).message})`,
      '',
    )
  } finally {
    // A failing disk or database.
    observer.end('waiting')
    worker.stopRequests.clear(job.id)
  }
}

interface Trained {
  end: RunEnd<TrainerEnd, Result>
  stopRequested: AbortSignal
  turnOver: AbortSignal
  /** Aborts if what the trainer reported could not be recorded. */
  failed: AbortSignal
}

/** Trains on the host; resolves when all that the trainer reported is recorded. */
async function train(
  { context: { now }, host, createRecorder, watchTurn, stopRequests }: JobWorker,
  claim: Claim,
  job: store.JobRow,
  { interrupted, suspended }: Turn,
  place: Place | undefined,
  observer: AttemptObserver,
): Promise<Trained> {
  const { writes, report, ended } = createRecorder(claim, job, observer)
  const turn = watchTurn(claim, { suspended })
  const signals = { stopRequested: stopRequests.get(job.id), turnOver: turn.over, failed: writes.failed }
  const end = await runToResult(
    (onEvent: Report) =>
      host.train(claim, job, {
        ...signals,
        stopping: interrupted,
        place,
        env: observer.env,
        log_fields: observer.log_fields,
        onEvent(event, ...more) {
          observer.event(event)
          turn.event(event)
          onEvent(event, ...more)
        },
        onRunning: (attempt) => writes.add((trx) => markRunning(trx, job.id, attempt, now())),
        onWaiting: (message, data) => writes.add((trx) => markWaiting(trx, job.id, message, data, now())),
        onNote: (message, data) =>
          writes.add((trx) => store.appendEvents(trx, job.id, [{ type: 'log', message, data }], now())),
        onSlowed: (slowdown) => writes.add((trx) => recordSlowdown(trx, job.id, slowdown, now())),
      }),
    Result,
    report,
  ).finally(() => {
    void turn.end()
    // The trainer has ended. Its result is compared with what is served, which may sleep for it.
    place?.release()
  })
  await ended()
  return { end, ...signals }
}

/** Ends an attempt whose trainer has ended, or continues without this worker. */
async function endAttempt(
  { context, host, complete, log }: JobWorker,
  claim: Claim,
  job: store.JobRow,
  { end, stopRequested, turnOver, failed }: Trained,
  observer: AttemptObserver,
): Promise<AttemptOutcome> {
  const { exit: ended, result, failure, malformed } = end
  if (stopRequested.aborted && (stopRequested.reason as StopRequest) === 'cancel') {
    await host.endRun(job.id)
    await context.artifacts.remove(runsKey(job.id))
    observer.end('cancelled')
    throw new LeaseLost(claim)
  }
  failed.throwIfAborted()
  if (ended.how === 'detached') return outcome('interrupted', detach(context, claim))
  if ((ended.how === 'exited' || ended.how === 'interrupted') && result && ended.exit.status === 0) {
    await complete(claim, job, result)
    await host.endRun(job.id)
    return 'completed'
  }
  const stopped = await host.whyStopped(job.id)
  // Before the entry is claimed again: the next attempt would attach to it.
  await host.endRun(job.id)
  if (ended.how === 'interrupted') return outcome('interrupted', requeueOnShutdown(context, claim, job, ended.exit))
  if (stopRequested.aborted || stopped === 'paused') return outcome('paused', pause(context, claim, job))
  const over = turnOver.aborted ? (turnOver.reason as TurnOver) : stopped
  if (over && !failure) return outcome('passed', passTurn(context, claim, job, over))
  if (ended.how === 'lost') return outcome('died', retryAfterLoss(context, claim, job, ended.message))
  if (ended.how === 'full' || failure?.code === 'storage_full')
    return outcome('waiting', waitForDiskSpace(context, claim, job))
  if (failure) return outcome('failed', fail(context, claim, job, failure))
  return outcome('died', retryAfterExit(context, claim, job, ended.exit, malformed, observer, log))
}

/** Tries a job again whose trainer ended without a result and without having been asked to. */
function retryAfterExit(
  context: AttemptContext,
  claim: Claim,
  job: store.JobRow,
  exit: TrainerExit,
  malformed: string | undefined,
  { log_fields }: AttemptObserver,
  log: Logger,
): Promise<void> {
  if (malformed !== undefined && exit.status === 0) {
    log.error({ ...log_fields, malformed }, 'the result of a trainer cannot be read')
    return retryAfterCrash(context, claim, job, malformed, malformedHint)
  }
  log.warn({ ...log_fields, exit }, 'a trainer died')
  const how = exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`
  const hint = exit.signal === 'SIGKILL' ? ' The machine may have run out of memory: try a smaller batch_size.' : ''
  return retryAfterCrash(context, claim, job, `The trainer ${how}`, hint)
}

async function outcome(name: AttemptOutcome, write: Promise<void>): Promise<AttemptOutcome> {
  await write
  return name
}
