// How an attempt at a job ends: with a result, with a reason, or to be gone on with.
import { rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { JobMetrics, ResolvedConfig } from '../../contract/tuning.ts'
import type { Trx } from '../db/open.ts'
import { type NewEvent, statusEvent } from '../events/event-streams.ts'
import { recordEvent } from '../events/outbox.ts'
import { type Claim, underClaim } from '../queue/queue.ts'
import { modelDir, moveToModels, rowsFile, runDir } from './artifacts.ts'
import { type JobMeter, stopClock } from './metering.ts'
import { nameOfStep } from './models/labels.ts'
import { parentOf } from './models/lineage.ts'
import { originWeights } from './models/registry.ts'
import { type Origin, originOf } from './models/starting-model.ts'
import * as store from './store.ts'
import { type Artifact, type Result, stoppedStatus, type TrainerExit } from './trainer.ts'
import type { TuningWork } from './work.ts'

const maxCrashes = 3
/** How long a job waits before it tries whether a full disk has room again. */
const room_wait_ms = 60_000

/** Moves the results to where models live, then says so in one transaction with the job's end. */
export async function complete(work: TuningWork, claim: Claim, job: store.JobRow, result: Result): Promise<void> {
  const config = JSON.parse(job.resolved_config_json) as ResolvedConfig
  const origin = await originOf(work.db, work.hub, work.dataDir, job.account_id, job.model_id)
  const { base_model_id } = origin
  // A whole model stands on nothing but itself.
  const weights_model_id = result.kind === 'model' ? null : origin.weights_model_id
  const made = await moveToModels(work.dataDir, result)
  if (result.rows) await rename(result.rows, path.join(modelDir(work.dataDir, made.id), rowsFile))
  const kept: (Artifact & { id: string; size_bytes: number })[] = []
  for (const each of result.kept) kept.push({ ...each, ...(await moveToModels(work.dataDir, each)) })
  const created_at = work.now()
  const comparison = await work.models.compareNew(
    { id: made.id, kind: result.kind, base_model_id, weights_model_id, created_at },
    originOfResult(result, origin),
  )
  const { train_loss, trained_tokens, train_seconds, tokens_per_second, steps, validation_loss, validation_exact } =
    result
  const { peak_memory_mb, predicted_memory_mb, predicted_seconds } = result
  const registered = underClaim(work, claim, async (trx) => {
    const time = work.now()
    const { name, description, metadata_json } = (await store.jobById(trx, job.id))!
    const insert = (artifact: Artifact & { id: string; size_bytes: number }) =>
      store.insertModel(trx, {
        id: artifact.id,
        account_id: job.account_id,
        base_model_id,
        kind: artifact.kind,
        name: artifact.id === made.id ? name : nameOfStep(name, artifact.step),
        description,
        metadata_json,
        parent_model_id: parentOf(job)?.model_id ?? null,
        weights_model_id,
        job_id: job.id,
        method: config.method.value,
        step: artifact.step,
        validation_loss: artifact.validation_loss,
        gguf_sha256: artifact.gguf_sha256,
        comparison_json: artifact.id === made.id && comparison ? JSON.stringify(comparison) : null,
        size_bytes: artifact.size_bytes,
        created_at,
      })
    for (const artifact of [{ ...result, ...made }, ...kept]) await insert(artifact)
    const watched = {
      ...(validation_loss !== null && { validation_loss }),
      ...(validation_exact !== null && { validation_exact }),
    }
    const taken = {
      train_seconds,
      peak_memory_mb,
      predicted_memory_mb,
      ...(predicted_seconds !== null && { predicted_seconds }),
    }
    const metrics: JobMetrics = {
      step: result.step,
      steps_trained: steps,
      steps_total: result.steps_total,
      train_loss,
      tokens_per_second,
      ...taken,
      ...watched,
    }
    await store.updateJob(trx, job.id, {
      status: 'completed',
      progress: 1,
      current_epoch: result.epochs,
      metrics_json: JSON.stringify(metrics),
      trained_tokens,
      model: made.id,
      estimated_completion: null,
      finished_at: time,
    })
    await work.meter.end(trx, job.id, 'complete', time)
    const told = { model: made.id, train_loss, step: result.step, ...watched }
    if (comparison?.problem)
      await store.appendEvents(
        trx,
        job.id,
        [{ type: 'warning', message: comparison.problem, data: { code: 'model_disagrees', ...comparison } }],
        time,
      )
    await store.appendEvents(
      trx,
      job.id,
      [statusEvent('completed', `The job is done; its result is the model ${made.id}.`, told)],
      time,
    )
    await recordEvent(
      trx,
      job.account_id,
      'training.completed',
      { job_id: job.id, model_id: made.id, base_model_id },
      time,
    )
    await work.queue.finish(trx, claim, 'done')
  })
  await registered.catch(async (error) => {
    // Cancelled, or taken over, while it was compared: nobody knows these models.
    for (const { id } of [made, ...kept]) await rm(modelDir(work.dataDir, id), { recursive: true, force: true })
    throw error
  })
  await rm(path.dirname(runDir(work.dataDir, job.id, claim.attempt)), { recursive: true, force: true })
}

/**
 * What the result's change is counted from: the whole weights that an adapter stands on, or all that a whole model was
 * made from.
 */
const originOfResult = ({ kind }: Artifact, origin: Origin) =>
  originWeights(kind === 'model' ? origin : { ...origin, adapter: undefined })

/** Ends a job with the reason, in the transaction that ends or withdraws its work. */
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
  work: TuningWork,
  claim: Claim,
  job: store.JobRow,
  error: { code: string; message: string },
): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    await endAsFailed(trx, work.meter, job, error, work.now())
    await work.queue.finish(trx, claim, 'dead')
  })
  // The logs stay for the operator; the checkpoints are of no more use.
  for (let attempt = 1; attempt <= claim.attempt; attempt++)
    await rm(path.join(runDir(work.dataDir, job.id, attempt), 'checkpoints'), { recursive: true, force: true })
}

/** The service is stopping: the trainer wrote a checkpoint where it could, and the next start goes on from it. */
export async function giveBack(work: TuningWork, claim: Claim, job: store.JobRow, exit: TrainerExit): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    const saved =
      exit.status === stoppedStatus && (await store.checkpoints(trx, job.id, 1)).length > 0
        ? ' Its progress is saved.'
        : ''
    await stopClock(trx, job.id, time)
    await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    await store.appendEvents(
      trx,
      job.id,
      [statusEvent('queued', `The service is stopping; the job goes on when it starts again.${saved}`)],
      time,
    )
    await work.queue.release(trx, claim, time)
  })
}

/** The disk is full, which the job cannot help: it goes on from its last checkpoint once there is room. */
export async function waitForRoom(work: TuningWork, claim: Claim, job: store.JobRow): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    await stopClock(trx, job.id, time)
    await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    const message =
      'The disk of the service is full. The job waits until there is room, and goes on from its last checkpoint.'
    const events: NewEvent[] = [
      { type: 'warning', message, data: { code: 'storage_full' } },
      statusEvent('queued', 'The job waits to be tried again.'),
    ]
    await store.appendEvents(trx, job.id, events, time)
    await work.queue.release(trx, claim, time + room_wait_ms)
  })
}

/** The trainer died without saying why. Once or twice that may be the machine's doing; then it is the job's. */
export async function afterCrash(
  work: TuningWork,
  claim: Claim,
  job: store.JobRow,
  what: string,
  hint: string,
): Promise<void> {
  const crashes = ((await store.jobById(work.db, job.id))?.crashes ?? 0) + 1
  if (crashes >= maxCrashes) {
    return fail(work, claim, job, {
      code: 'trainer_crashed',
      message: `${what}, ${crashes} times without reaching another checkpoint.${hint}`,
    })
  }
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    await stopClock(trx, job.id, time)
    await store.updateJob(trx, job.id, { status: 'queued', crashes, estimated_completion: null })
    const events: NewEvent[] = [
      {
        type: 'warning',
        message: `${what}. It is tried again from the last checkpoint.`,
        data: { code: 'trainer_crashed', crashes },
      },
      statusEvent('queued', 'The job waits to be tried again.'),
    ]
    await store.appendEvents(trx, job.id, events, time)
    await work.queue.release(trx, claim, time + 1000 * crashes)
  })
  work.queue.wake()
}

/**
 * A person asked for it: the trainer wrote a checkpoint where it could, and the job waits until it is told to go on.
 */
export async function pause(work: TuningWork, claim: Claim, job: store.JobRow): Promise<void> {
  await underClaim(work, claim, async (trx) => {
    const time = work.now()
    // Told to go on while its trainer was still stopping: it goes on at once.
    const paused = (await store.jobById(trx, job.id))?.paused === 1
    const [last] = await store.checkpoints(trx, job.id, 1)
    const message = paused ? `The job is paused${last ? ` after step ${last.step}` : ''}.` : 'The job waits to go on.'
    await stopClock(trx, job.id, time)
    await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    await store.appendEvents(trx, job.id, [statusEvent(paused ? 'paused' : 'queued', message, { paused })], time)
    if (paused) await work.queue.finish(trx, claim, 'done')
    else await work.queue.release(trx, claim, time)
  })
  work.queue.wake()
}
