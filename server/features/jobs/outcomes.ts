// Outcomes of an attempt at a job: completed, failed, paused, or requeued to resume later.

import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import type { JobMetrics } from '../../../contract/fine-tuning.ts'
import type { Trx } from '../../platform/db/open.ts'
import { serviceActor } from '../../platform/events/audit.ts'
import { type NewEvent, statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import { type Claim, type TurnEnd, withLease } from '../../platform/queue/queue.ts'
import { createRetryPolicy, diskFullRule, linearDelay, requeueAfter } from '../../platform/queue/retry-policy.ts'
import { moveTree } from '../../platform/storage/durable-files.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { stoppedStatus, type TrainerExit } from '../../platform/trainer/trainer.ts'
import {
  type Artifact,
  draftsKey,
  ftName,
  modelDir,
  modelKey,
  moveToModels,
  parentOf,
  readResolvedConfig,
  resolveStartingModel,
  rowsFile,
  type StartingModel,
  type StoredModel,
  servedBaseOf,
  storeDrafts,
} from '../models/index.ts'
import { type JobMeter, stopClock } from './metering.ts'
import { nameOfStep } from './names.ts'
import { openaiRequestOf } from './openai/request.ts'
import { metricsByStep, resultFileOf } from './openai/step-metrics.ts'
import type { Result } from './result.ts'
import { runsKey } from './run-files.ts'
import * as store from './store.ts'
import type { TurnOver } from './turns.ts'
import type { JobWork } from './work.ts'

const retries = createRetryPolicy({
  /** Crashes in a row without a new checkpoint. The first is retried at once, so that nobody takes the job's turn. */
  crash: { max: 3, delay_ms: (count) => 1000 * (count - 1) },
  disk_full: diskFullRule,
  /** A cluster that loses runs is the operator's to mend, and no fault of the job. */
  cluster_loss: { delay_ms: linearDelay(1000, 60_000) },
})

/** Moves the results into model folders, then registers them and ends the job in one transaction. */
export async function complete(work: JobWork, claim: Claim, job: store.JobRow, result: Result): Promise<void> {
  const config = readResolvedConfig(job.resolved_config_json)
  const startingModel = await resolveStartingModel(work.db, work.hub, work.artifacts, job.account_id, job.model_id)
  const { base_model_id } = startingModel
  // A model with whole weights needs no other weights.
  const weights_model_id = result.kind === 'model' ? null : startingModel.weights_model_id
  // An adapter that is continued has its projector trained again, so whole weights alone can inherit one.
  const { adapter, weights_projector } = startingModel
  const inherited = result.kind === 'model' ? (adapter?.projector ?? weights_projector) : null
  const model = await moveToModels(work.dataDir, result, inherited)
  if (result.rows) await moveTree(result.rows, path.join(modelDir(work.dataDir, model.id), rowsFile))
  const checkpointModels: (Artifact & StoredModel)[] = []
  for (const each of result.kept)
    checkpointModels.push({ ...each, ...(await moveToModels(work.dataDir, each, inherited)) })
  const { drafts, drafts_sha256 = null } = result
  const modelKeys: string[] = []
  for (const { id } of [model, ...checkpointModels]) {
    modelKeys.push(modelKey(id), ...(drafts ? [draftsKey(id)] : []))
    if (drafts) await storeDrafts(work.dataDir, drafts, id)
  }
  const weights_projector_sha256 = (weights_model_id && weights_projector?.sha256) || null
  const created_at = work.now()
  const comparison = await work.models.compareNew(
    job.account_id,
    {
      id: model.id,
      kind: result.kind,
      base_model_id,
      weights_model_id,
      projector_sha256: model.projector_sha256,
      weights_projector_sha256,
      created_at,
    },
    servedBaseOfResult(result, startingModel),
  )
  const { train_loss, trained_tokens, train_seconds, tokens_per_second, steps, validation_loss, validation_exact } =
    result
  const { peak_memory_mb, predicted_memory_mb, predicted_seconds } = result
  const byStep = await metricsByStep(work.db, job.id)
  const loss = byStep.get(result.step)?.train_loss
  const resultFile = await work.files.write(resultFileOf(byStep)).catch(async (error) => {
    await work.artifacts.remove(...modelKeys)
    throw error
  })
  const register = async () => {
    await work.artifacts.publish(...modelKeys)
    await withLease(work, claim, async (trx) => {
      const time = work.now()
      const { name, description, metadata_json } = (await store.findJobUnscoped(trx, job.id))!
      const insert = (artifact: Artifact & StoredModel) =>
        work.models.insert(trx, {
          id: artifact.id,
          account_id: job.account_id,
          base_model_id,
          ft_name: ftName({
            base_model_id,
            account_id: job.account_id,
            suffix: openaiRequestOf(job)?.suffix,
            model_id: artifact.id,
            step: artifact.id === model.id ? undefined : artifact.step,
          }),
          kind: artifact.kind,
          name: artifact.id === model.id ? name : nameOfStep(name, artifact.step),
          description,
          metadata_json,
          parent_model_id: parentOf(job)?.model_id ?? null,
          weights_model_id,
          job_id: job.id,
          method: config.method.value,
          step: artifact.step,
          validation_loss: artifact.validation_loss,
          gguf_sha256: artifact.gguf_sha256,
          folder_sha256: artifact.folder_sha256,
          projector_sha256: artifact.projector_sha256,
          weights_projector_sha256,
          drafts_sha256,
          comparison_json: artifact.id === model.id && comparison ? JSON.stringify(comparison) : null,
          size_bytes: artifact.size_bytes,
          created_at,
        })
      for (const artifact of [{ ...result, ...model }, ...checkpointModels]) await insert(artifact)
      await work.files.insert(trx, resultFile, {
        account_id: job.account_id,
        filename: `step_metrics_${job.id}.csv`,
        purpose: 'fine-tune-results',
        created_at,
      })
      const evaluated = (await store.evaluations(trx, job.id)).find(({ step }) => step === result.step)
      const { train_loss: _, ...figures } = JSON.parse(evaluated?.data_json ?? '{}')
      const validation = {
        ...(validation_loss !== null && { ...figures, validation_loss }),
        ...(validation_exact !== null && { validation_exact }),
      }
      const costs = {
        train_seconds,
        peak_memory_mb,
        predicted_memory_mb,
        ...(predicted_seconds !== null && { predicted_seconds }),
      }
      const metrics: JobMetrics = {
        step: result.step,
        steps_trained: steps,
        steps_total: result.steps_total,
        ...(loss !== undefined && { loss }),
        train_loss,
        tokens_per_second,
        ...costs,
        ...validation,
      }
      await store.updateJob(trx, job.id, {
        status: 'completed',
        progress: 1,
        current_epoch: result.epochs,
        metrics_json: JSON.stringify(metrics),
        trained_tokens,
        model: model.id,
        result_file_id: resultFile.id,
        estimated_completion: null,
        finished_at: time,
      })
      await work.meter.end(trx, job.id, 'complete', time)
      const statusData = {
        model: model.id,
        ...(loss !== undefined && { loss }),
        train_loss,
        step: result.step,
        ...validation,
      }
      if (comparison?.problem)
        await store.appendEvents(
          trx,
          job.id,
          [{ type: 'warning', message: comparison.problem, data: { code: 'model_disagrees', ...comparison } }],
          time,
        )
      if (job.evaluation_id !== null) await evaluateResult(work, trx, job, model.id, time)
      await store.appendEvents(
        trx,
        job.id,
        [statusEvent('completed', `The job completed. Its model is ${model.id}.`, statusData)],
        time,
      )
      await recordEvent(
        trx,
        job.account_id,
        'training.completed',
        { job_id: job.id, model_id: model.id, base_model_id },
        time,
      )
      await work.queue.finish(trx, claim, 'done')
    })
  }
  await register().catch(async (error) => {
    // The job was cancelled or the lease lost during the comparison: remove the unregistered models.
    await work.artifacts.remove(...modelKeys)
    await work.files.drop(resultFile)
    throw error
  })
  if (job.evaluation_id !== null) work.resultEvaluations().wake()
  await work.artifacts.remove(runsKey(job.id))
}

/** Begins the evaluation that the job names. If it cannot be made, the job is done all the same. */
async function evaluateResult(work: JobWork, trx: Trx, job: store.JobRow, model: string, time: number): Promise<void> {
  const by = { ...serviceActor, account_id: job.account_id, key_id: job.key_id }
  try {
    const models = { model, baseline: job.model_id }
    const result_evaluation_id = await work.resultEvaluations().repeat(trx, by, job.evaluation_id!, models)
    await store.updateJob(trx, job.id, { result_evaluation_id })
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    const message = `The result is not evaluated: ${error.message}`
    await store.appendEvents(trx, job.id, [{ type: 'warning', message, data: { code: error.code } }], time)
  }
}

/**
 * The baseline for the comparison of a result: for an adapter its whole weights, for whole weights the starting model.
 */
const servedBaseOfResult = ({ kind }: Artifact, startingModel: StartingModel) =>
  servedBaseOf(kind === 'model' ? startingModel : { ...startingModel, adapter: undefined })

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
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  error: { code: string; message: string },
): Promise<void> {
  await withLease(work, claim, async (trx) => {
    await endAsFailed(trx, work.meter, job, error, work.now())
    await work.queue.finish(trx, claim, 'dead')
  })
  // Keep the logs for the operator, remove the checkpoints.
  for (let attempt = 1; attempt <= claim.attempt; attempt++)
    await work.artifacts.remove(`${path.join(runDir('', job.id, attempt), 'checkpoints')}/`)
}

/** Ends an attempt whose job continues later, from its last checkpoint. */
const requeue = (
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  events: NewEvent[],
  delay_ms: number,
  values: Partial<store.JobRow> = {},
  turn?: TurnEnd,
) =>
  requeueAfter(
    work,
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
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  exit: TrainerExit,
): Promise<void> {
  const isSaved = exit.status === stoppedStatus && (await store.checkpoints(work.db, job.id, 1)).length > 0
  const saved = isSaved ? ' Its progress is saved.' : ''
  const message = `The service is stopping; the job resumes when it starts again.${saved}`
  await requeue(work, claim, job, [statusEvent('queued', message)], 0)
}

/** Requeues a job because its account's turn is over and another account waits, or its account is suspended. */
export async function passTurn(
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  why: TurnOver = 'passed',
): Promise<void> {
  const [last] = await store.checkpoints(work.db, job.id, 1)
  const resumes = last ? `; it resumes after step ${last.step}` : ''
  const [code, what] = {
    passed: ['turn_passed', "The job gave its turn to another account's job"] as const,
    suspended: ['account_suspended', 'The account is suspended, so the job waits'] as const,
  }[why]
  const message = `${what}${resumes}.`
  const data = { code, ...(last && { step: last.step }) }
  await requeue(work, claim, job, [statusEvent('queued', message, data)], 0, {}, 'passed')
}

/** Requeues a job because the disk is full. It resumes from its last checkpoint once there is space. */
export async function waitForDiskSpace(work: JobWork, claim: Claim, job: store.JobRow): Promise<void> {
  const message =
    'The disk of the service is full. The job waits until there is room, and resumes from its last checkpoint.'
  const { delay_ms } = retries.after('disk_full')
  await requeue(work, claim, job, retryEvents(message, { code: 'storage_full' }), delay_ms)
}

/** Requeues a job after a crash. The third crash in a row without a new checkpoint fails it. */
export async function retryAfterCrash(
  work: JobWork,
  claim: Claim,
  job: store.JobRow,
  what: string,
  hint: string,
): Promise<void> {
  const earlier = (await store.findJobUnscoped(work.db, job.id))?.crashes
  const { retry, count: crashes, delay_ms } = retries.after('crash', earlier)
  const code = 'trainer_crashed'
  if (!retry) {
    const message = `${what}, ${crashes} times without reaching another checkpoint.${hint}`
    return fail(work, claim, job, { code, message })
  }
  const events = retryEvents(`${what}. It is tried again from the last checkpoint.`, { code, crashes })
  await requeue(work, claim, job, events, delay_ms, { crashes })
}

/** Requeues a job whose run the cluster has lost. It resumes from its last checkpoint in the cluster that there is. */
export async function retryAfterLoss(work: JobWork, claim: Claim, job: store.JobRow, what: string): Promise<void> {
  const earlier = (await store.findJobUnscoped(work.db, job.id))?.crashes
  const { count: crashes, delay_ms } = retries.after('cluster_loss', earlier)
  const events = retryEvents(`${what}. The job is submitted again from its last checkpoint.`, { code: 'run_lost' })
  await requeue(work, claim, job, events, delay_ms, { crashes })
}

/** Leaves a run that goes on in the cluster: the next worker that claims the job attaches to it. */
export async function detach(work: JobWork, claim: Claim): Promise<void> {
  await withLease(work, claim, (trx) => work.queue.requeue(trx, claim, work.now()))
  work.queue.wake()
}

/** Ends an attempt because a user paused the job. It stays queued without a queue entry until it is resumed. */
export async function pause(work: JobWork, claim: Claim, job: store.JobRow): Promise<void> {
  await withLease(work, claim, async (trx) => {
    const time = work.now()
    // It may have been resumed while the trainer was still stopping: then requeue it now.
    const paused = (await store.findJobUnscoped(trx, job.id))?.paused === 1
    const [last] = await store.checkpoints(trx, job.id, 1)
    const message = paused ? `The job is paused${last ? ` after step ${last.step}` : ''}.` : 'The job waits to resume.'
    await stopClock(trx, job.id, time)
    await store.updateJob(trx, job.id, { status: 'queued', estimated_completion: null })
    await store.appendEvents(trx, job.id, [statusEvent(paused ? 'paused' : 'queued', message, { paused })], time)
    if (paused) await work.queue.finish(trx, claim, 'done')
    else await work.queue.requeue(trx, claim, time)
  })
  work.queue.wake()
}
