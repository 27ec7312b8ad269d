// The background work of tuning: takes a queued job, runs a trainer on it, turns its lines into events, registers the
// result. Every write is made under the claim's attempt, so a worker that lost its lease changes nothing.
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../contract/errors.ts'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import type { Trx } from '../db/open.ts'
import { type NewEvent, statusEvent } from '../events/event-streams.ts'
import { recordEvent } from '../events/outbox.ts'
import { placeFor } from '../queue/account-slots.ts'
import { type Claim, LeaseLost, underClaim } from '../queue/queue.ts'
import { storageError } from '../storage/durable-files.ts'
import { runDir } from './artifacts.ts'
import { settleClock, startClock } from './metering.ts'
import { afterCrash, complete, fail, giveBack, pause, waitForRoom } from './outcomes.ts'
import { specOf } from './spec.ts'
import * as store from './store.ts'
import { Result, runTrainer } from './trainer.ts'
import { record, recordSlowed } from './trainer-events.ts'
import type { Asked, TuningWork } from './work.ts'

/**
 * How long a trainer that is to stop has for its checkpoint: longer than the answers have that may keep it from the
 * cores.
 */
const saving_ms = 40_000

export async function workOnJob(work: TuningWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  // A running job is one of what its account has under way.
  const place = await placeFor(work, claim, await store.jobById(work.db, claim.ref))
  if (!place) return
  try {
    await workInPlace(work, claim, stopping)
  } finally {
    place()
  }
}

async function workInPlace(work: TuningWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const job = await begin(work, claim)
  if (!job) return
  try {
    await attempt(work, claim, job, stopping)
  } catch (error) {
    // A disk or a database that fails is nothing that the job did: it is taken up again when its lease has run out, and
    // goes on.
    if (error instanceof LeaseLost || storageError(error)) throw error
    // What the job itself cannot help (a base that was removed) ends it; anything else may be the machine's doing and
    // is tried again.
    if (error instanceof ApiError)
      return fail(work, claim, job, {
        code: error.code.startsWith('model_') ? 'base_missing' : error.code,
        message: error.message,
      })
    work.log.error({ err: error, job: job.id }, 'a worker of tuning failed')
    return afterCrash(work, claim, job, `The service failed at this job (${(error as Error).message})`, '')
  } finally {
    work.forget(job.id)
  }
}

async function attempt(work: TuningWork, claim: Claim, job: store.JobRow, stopping: AbortSignal): Promise<void> {
  const asked = work.asked(job.id)
  const signal = AbortSignal.any([stopping, asked])
  let result: Result | undefined
  let failure: { code: string; message: string } | undefined
  let writes = Promise.resolve()
  let broken: unknown
  const giveUp = new AbortController()
  const write = (change: (trx: Trx) => Promise<void>) => {
    writes = writes.then(async () => {
      if (broken) return
      try {
        await underClaim(work, claim, change)
      } catch (error) {
        broken = error
        giveUp.abort()
      }
    })
  }
  const track = work.track(job, JSON.parse(job.resolved_config_json) as ResolvedConfig)
  const exit = await runTrainer({
    run_dir: runDir(work.dataDir, job.id, claim.attempt),
    spec: await specOf(work, job, claim),
    python: work.python,
    processes: work.trainer_processes,
    grace_ms: saving_ms,
    watch: (pid) => work.cores.keep(pid, (slowed) => write((trx) => recordSlowed(trx, job.id, slowed, work.now()))),
    signal: AbortSignal.any([signal, giveUp.signal]),
    onLine(line) {
      if (line.type === 'result') result = Result.safeParse(line.data).data
      else if (line.type === 'error') failure = { code: String(line.data?.code ?? 'internal'), message: line.message }
      else {
        write((trx) => record(trx, job.id, claim, line, work.now()))
        track.line(line)
      }
    },
  })
  await writes
  track.end()
  if (asked.aborted && (asked.reason as Asked) === 'cancel') {
    await rm(path.dirname(runDir(work.dataDir, job.id, claim.attempt)), { recursive: true, force: true })
    throw new LeaseLost(claim)
  }
  if (broken) throw broken
  if (result && exit.status === 0) return complete(work, claim, job, result)
  if (stopping.aborted) return giveBack(work, claim, job, exit)
  if (asked.aborted) return pause(work, claim, job)
  if (failure?.code === 'storage_full') return waitForRoom(work, claim, job)
  if (failure) return fail(work, claim, job, failure)
  const how = exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`
  work.log.warn({ job: job.id, attempt: claim.attempt, exit }, 'a trainer died')
  const hint = exit.signal === 'SIGKILL' ? ' The machine may have run out of memory: try a smaller batch_size.' : ''
  return afterCrash(work, claim, job, `The trainer ${how}`, hint)
}

async function begin(work: TuningWork, claim: Claim): Promise<store.JobRow | undefined> {
  return underClaim(work, claim, async (trx) => {
    const job = await store.jobById(trx, claim.ref)
    if (!job || (job.status !== 'queued' && job.status !== 'running')) {
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    const time = work.now()
    if (job.paused) {
      await settleClock(trx, job)
      // The server was killed between the wish to pause and its end.
      await store.updateJob(trx, job.id, { status: 'queued' })
      if (job.status === 'running')
        await store.appendEvents(trx, job.id, [statusEvent('paused', 'The job is paused.', { paused: true })], time)
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    await startClock(trx, job, time)
    const events: NewEvent[] = []
    // Its worker died without a word: the lease ran out, or this server has just started on the database of a dead one.
    if (job.status === 'running')
      events.push(
        statusEvent('queued', 'The worker of this job ended before the job did; it goes on from its last checkpoint.'),
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
