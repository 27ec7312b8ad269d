// The background work of tuning: takes a queued job, runs a trainer on it, turns its lines into events, registers the result.
// Every write is made under the claim's attempt, so a worker that lost its lease changes nothing.
import { mkdir, readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import type { JobMetrics, ResolvedConfig } from '../../contract/tuning.ts'
import type { Datasets } from '../datasets/service.ts'
import type { Db, Trx } from '../db/open.ts'
import { recordEvent } from '../events.ts'
import type { Hub } from '../hub/service.ts'
import { newId } from '../ids.ts'
import { type Claim, LeaseLost, type Queue } from '../queue/queue.ts'
import { syncPath } from '../storage.ts'
import { modelDir, modelFiles, runDir } from './paths.ts'
import * as store from './store.ts'
import { Result, runTrainer, stoppedStatus, type TrainerExit, type TrainerLine } from './trainer.ts'

export interface TuningWork {
  db: Db
  queue: Queue
  hub: Hub
  datasets: Datasets
  dataDir: string
  python: string
  converters: string
  checkpoint_seconds: number
  log: Logger
  /** Tells readers of a job's events that there are more. */
  changed(job_id: string): void
  /** Aborts when the job is cancelled in this process. */
  cancelled(job_id: string): AbortSignal
  /** The job's work here has ended. */
  forget(job_id: string): void
  now(): number
}

const maxCrashes = 3

export async function workOnJob(work: TuningWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const job = await begin(work, claim)
  if (!job) return
  try {
    await attempt(work, claim, job, stopping)
  } catch (error) {
    if (error instanceof LeaseLost) throw error
    // What the job itself cannot help (a base that was removed) ends it; anything else may be the machine's doing and is tried again.
    if (error instanceof ApiError)
      return fail(work, claim, job, { code: error.code.startsWith('model_') ? 'base_missing' : error.code, message: error.message })
    work.log.error({ err: error, job: job.id }, 'a worker of tuning failed')
    return afterCrash(work, claim, job, `The service failed at this job (${(error as Error).message})`, '')
  } finally {
    work.forget(job.id)
  }
}

async function attempt(work: TuningWork, claim: Claim, job: store.JobRow, stopping: AbortSignal): Promise<void> {
  const signal = AbortSignal.any([stopping, work.cancelled(job.id)])
  let result: Result | undefined
  let failure: { code: string; message: string } | undefined
  let writes = Promise.resolve()
  let broken: unknown
  const giveUp = new AbortController()
  const write = (line: TrainerLine) => {
    writes = writes.then(async () => {
      if (broken) return
      try {
        await underClaim(work, claim, (trx) => record(work, trx, job, claim, line))
      } catch (error) {
        broken = error
        giveUp.abort()
      }
    })
  }
  const exit = await runTrainer({
    run_dir: runDir(work.dataDir, job.id, claim.attempt),
    spec: await specOf(work, job, claim),
    python: work.python,
    signal: AbortSignal.any([signal, giveUp.signal]),
    onLine(line) {
      if (line.type === 'result') result = Result.safeParse(line.data).data
      else if (line.type === 'error') failure = { code: String(line.data?.code ?? 'internal'), message: line.message }
      else write(line)
    },
  })
  await writes
  if (work.cancelled(job.id).aborted) {
    await rm(path.dirname(runDir(work.dataDir, job.id, claim.attempt)), { recursive: true, force: true })
    throw new LeaseLost(claim)
  }
  if (broken) throw broken
  if (result && exit.status === 0) return complete(work, claim, job, result)
  if (stopping.aborted) return giveBack(work, claim, job, exit)
  if (failure) return fail(work, claim, job, failure)
  const how = exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`
  work.log.warn({ job: job.id, attempt: claim.attempt, exit }, 'a trainer died')
  const hint = exit.signal === 'SIGKILL' ? ' The machine may have run out of memory: try a smaller batch_size.' : ''
  return afterCrash(work, claim, job, `The trainer ${how}`, hint)
}

/** One transaction of a worker: refused when another attempt has taken over, told to the readers when it has committed. */
async function underClaim<T>(work: TuningWork, claim: Claim, write: (trx: Trx) => Promise<T>): Promise<T> {
  const result = await work.db.transaction().execute(async (trx) => {
    await work.queue.hold(trx, claim)
    return write(trx)
  })
  work.changed(claim.ref)
  return result
}

const statusEvent = (status: string, message: string, data: Record<string, unknown> = {}): store.NewEvent => ({
  type: 'status',
  message,
  data: { status, ...data },
})

async function begin(work: TuningWork, claim: Claim): Promise<store.JobRow | undefined> {
  return underClaim(work, claim, async (trx) => {
    const job = await store.jobById(trx, claim.ref)
    if (!job || (job.status !== 'queued' && job.status !== 'running')) {
      await work.queue.finish(trx, claim, 'done')
      return undefined
    }
    const time = work.now()
    const events: store.NewEvent[] = []
    // Its worker died without a word: the lease ran out, or this server has just started on the database of a dead one.
    if (job.status === 'running') events.push(statusEvent('queued', 'The worker of this job ended before the job did; it goes on from its last checkpoint.'))
    events.push(
      statusEvent('running', claim.attempt === 1 ? 'The job is running.' : `The job is running again (attempt ${claim.attempt}).`, { attempt: claim.attempt }),
    )
    await store.appendEvents(trx, job.id, events, time)
    await store.updateJob(trx, job.id, { status: 'running', started_at: job.started_at ?? time })
    if (job.started_at === null)
      await recordEvent(trx, job.account_id, 'training.started', { job_id: job.id, model_id: job.model_id, dataset_id: job.dataset_id }, time)
    return job
  })
}

async function specOf(work: TuningWork, job: store.JobRow, claim: Claim): Promise<object> {
  const config = JSON.parse(job.resolved_config_json) as ResolvedConfig
  const base = work.hub.local(job.model_id)
  const { path: file, sha256 } = await work.datasets.forTraining(work.db, job.account_id, job.dataset_id)
  const values = <T extends Record<string, { value: unknown }>>(group: T) => Object.fromEntries(Object.entries(group).map(([name, { value }]) => [name, value]))
  const checkpoints = await store.checkpoints(work.db, job.id, 10)
  return {
    job_id: job.id,
    attempt: claim.attempt,
    base: { id: base.id, path: base.hf },
    dataset: { path: file, sha256 },
    method: config.method.value,
    lora: config.lora_config && values(config.lora_config),
    training: { ...values(config.training_config), weight_decay: 0, max_grad_norm: 1 },
    threads: job.threads,
    checkpoint: { every_seconds: work.checkpoint_seconds, every_steps: null, keep: 2 },
    resume_from: checkpoints.map(({ attempt, step, sha256 }) => ({
      path: path.join(runDir(work.dataDir, job.id, attempt), 'checkpoints', `step-${step}`),
      sha256,
      step,
    })),
    converters: work.converters,
  }
}

/** Writes what one line of the trainer says: its event, and the job's fields that it moves. */
async function record(work: TuningWork, trx: Trx, job: store.JobRow, claim: Claim, line: TrainerLine): Promise<void> {
  // Where a checkpoint lies on this machine is nobody's business outside; its attempt and step say it to us.
  const { path: _, ...data } = line.data ?? {}
  const shown = line.type === 'checkpoint' ? { ...data, attempt: claim.attempt } : data
  const time = work.now()
  await store.appendEvents(trx, job.id, [{ type: line.type as store.NewEvent['type'], message: line.message, data: shown }], time)
  const number = (name: string) => (typeof data[name] === 'number' ? (data[name] as number) : undefined)
  if (line.type === 'metrics') {
    const metrics: JobMetrics = {
      step: number('step'),
      steps_total: number('steps_total'),
      loss: number('loss'),
      learning_rate: number('learning_rate'),
      tokens_per_second: number('tokens_per_second'),
      train_loss: number('loss'),
    }
    await store.updateJob(trx, job.id, { metrics_json: JSON.stringify(metrics), trained_tokens: number('tokens') ?? 0 })
  }
  if (line.type === 'progress') {
    const seconds_left = number('seconds_left')
    await store.updateJob(trx, job.id, {
      progress: Math.min(1, Math.max(0, number('progress') ?? 0)),
      current_epoch: number('current_epoch') ?? 0,
      estimated_completion: seconds_left === undefined ? null : Math.round(time + seconds_left * 1000),
    })
  }
  if (line.type === 'checkpoint') await store.updateJob(trx, job.id, { crashes: 0 })
}

/** Moves the artifact to where models live, then says so in one transaction with the job's end. */
async function complete(work: TuningWork, claim: Claim, job: store.JobRow, result: Result): Promise<void> {
  const id = newId('mdl')
  const folder = modelDir(work.dataDir, id)
  const part = `${folder}.part`
  await rm(part, { recursive: true, force: true })
  await mkdir(part, { recursive: true, mode: 0o700 })
  const files = modelFiles[result.kind]
  await rename(result.folder, path.join(part, files.folder))
  await rename(result.gguf, path.join(part, files.gguf))
  const size_bytes = await syncTree(part)
  await rename(part, folder)
  await syncPath(path.dirname(folder))
  const config = JSON.parse(job.resolved_config_json) as ResolvedConfig
  const { train_loss, trained_tokens, train_seconds, tokens_per_second, steps } = result
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    await store.insertModel(trx, {
      id,
      account_id: job.account_id,
      base_model_id: job.model_id,
      kind: result.kind,
      job_id: job.id,
      method: config.method.value,
      gguf_sha256: result.gguf_sha256,
      size_bytes,
      created_at: time,
    })
    const metrics: JobMetrics = { step: steps, steps_total: steps, train_loss, tokens_per_second, train_seconds }
    await store.updateJob(trx, job.id, {
      status: 'completed',
      progress: 1,
      current_epoch: config.training_config.epochs.value,
      metrics_json: JSON.stringify(metrics),
      trained_tokens,
      model: id,
      estimated_completion: null,
      finished_at: time,
    })
    await store.appendEvents(trx, job.id, [statusEvent('completed', `The job is done; its result is the model ${id}.`, { model: id, train_loss })], time)
    await recordEvent(trx, job.account_id, 'training.completed', { job_id: job.id, model_id: id, base_model_id: job.model_id }, time)
    await work.queue.finish(trx, claim, 'done')
  })
  await rm(path.dirname(runDir(work.dataDir, job.id, claim.attempt)), { recursive: true, force: true })
}

async function syncTree(folder: string): Promise<number> {
  let bytes = 0
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const target = path.join(folder, entry.name)
    if (entry.isDirectory()) bytes += await syncTree(target)
    else bytes += await syncPath(target)
  }
  await syncPath(folder)
  return bytes
}

async function fail(work: TuningWork, claim: Claim, job: store.JobRow, error: { code: string; message: string }): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    await store.updateJob(trx, job.id, { status: 'failed', error_json: JSON.stringify(error), estimated_completion: null, finished_at: time })
    await store.appendEvents(
      trx,
      job.id,
      [{ type: 'error', message: error.message, data: { code: error.code } }, statusEvent('failed', 'The job failed.')],
      time,
    )
    await recordEvent(trx, job.account_id, 'training.failed', { job_id: job.id, error }, time)
    await work.queue.finish(trx, claim, 'dead')
  })
  // The logs stay for the operator; the checkpoints are of no more use.
  for (let attempt = 1; attempt <= claim.attempt; attempt++)
    await rm(path.join(runDir(work.dataDir, job.id, attempt), 'checkpoints'), { recursive: true, force: true })
}

/** The service is stopping: the trainer wrote a checkpoint where it could, and the next start goes on from it. */
async function giveBack(work: TuningWork, claim: Claim, job: store.JobRow, exit: TrainerExit): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    const saved = exit.status === stoppedStatus && (await store.checkpoints(trx, job.id, 1)).length > 0 ? ' Its progress is saved.' : ''
    await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    await store.appendEvents(trx, job.id, [statusEvent('queued', `The service is stopping; the job goes on when it starts again.${saved}`)], time)
    await work.queue.release(trx, claim, time)
  })
}

/** The trainer died without saying why. Once or twice that may be the machine's doing; then it is the job's. */
async function afterCrash(work: TuningWork, claim: Claim, job: store.JobRow, what: string, hint: string): Promise<void> {
  const crashes = ((await store.jobById(work.db, job.id))?.crashes ?? 0) + 1
  if (crashes >= maxCrashes) {
    return fail(work, claim, job, { code: 'trainer_crashed', message: `${what}, ${crashes} times without reaching another checkpoint.${hint}` })
  }
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    await store.updateJob(trx, job.id, { status: 'queued', crashes, estimated_completion: null })
    const events: store.NewEvent[] = [
      { type: 'warning', message: `${what}. It is tried again from the last checkpoint.`, data: { code: 'trainer_crashed', crashes } },
      statusEvent('queued', 'The job waits to be tried again.'),
    ]
    await store.appendEvents(trx, job.id, events, time)
    await work.queue.release(trx, claim, time + 1000 * crashes)
  })
  work.queue.wake()
}
