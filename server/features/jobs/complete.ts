// The end of a training that has a result: its files become models, the engine's answers of the result are compared
// with the trainer's, and one transaction registers the models and ends the job.

import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import type { JobMetrics } from '../../../contract/fine-tuning.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Trx } from '../../platform/db/open.ts'
import { serviceActor } from '../../platform/events/audit.ts'
import { statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import { withLease } from '../../platform/queue/lease-writes.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import { moveTree, removeUnlessCommitted } from '../../platform/storage/durable-files.ts'
import type { Evaluations } from '../evaluations/index.ts'
import type { Files } from '../files/index.ts'
import {
  type Artifact,
  draftsKey,
  ftName,
  modelDir,
  modelKey,
  moveToModels,
  parentOf,
  readResolvedConfig,
  rowsFile,
  type StartingModel,
  type StoredModel,
  servedBaseOf,
  storeDrafts,
  type TunedModels,
} from '../models/index.ts'
import { nameOfStep } from './names.ts'
import { openaiRequestOf } from './openai/request.ts'
import { metricsByStep, resultFileOf } from './openai/step-metrics.ts'
import type { AttemptContext } from './outcomes.ts'
import type { Result } from './result.ts'
import { runsKey } from './run-files.ts'
import * as store from './store.ts'

interface Options {
  context: AttemptContext
  dataDir: string
  models: Pick<TunedModels, 'startingModel' | 'compareNew' | 'insert'>
  files: Pick<Files, 'write' | 'insert' | 'drop'>
  evaluations: Pick<Evaluations, 'creation' | 'wake'>
}

export type Complete = (claim: Claim, job: store.JobRow, result: Result) => Promise<void>

/** The models of a result, whose files are in their folders, and the file of its metrics. */
interface Prepared {
  startingModel: StartingModel
  model: StoredModel
  /** All that become models: the result, then the checkpoints that are kept. */
  artifacts: (Artifact & StoredModel)[]
  /** Keys of the weights and draft files of `artifacts`. */
  keys: string[]
  weights_model_id: string | null
  weights_projector_sha256: string | null
  created_at: number
}

type Comparison = Awaited<ReturnType<TunedModels['compareNew']>>
/** What is known of a result besides its files. */
interface Measured {
  comparison: Comparison
  /** The metrics of its steps. */
  file: Awaited<ReturnType<Files['write']>>
  /** Training loss at the step of the result. */
  loss: number | undefined
}

export function createComplete(options: Options): Complete {
  const { context, files } = options
  return async (claim, job, result) => {
    const prepared = await prepare(options, job, result)
    const comparison = await compare(options, job, result, prepared)
    const byStep = await metricsByStep(context.db, job.id)
    const loss = byStep.get(result.step)?.train_loss
    const file = await files.write(resultFileOf(byStep)).catch(async (error) => {
      await context.artifacts.remove(...prepared.keys)
      throw error
    })
    try {
      await context.artifacts.publish(...prepared.keys)
      await withLease(context, claim, async (trx) => {
        await register(options, trx, job, result, prepared, { comparison, file, loss })
        await context.queue.finish(trx, claim, 'done')
      })
    } catch (error) {
      // The job was cancelled or the lease lost during the comparison: remove the unregistered models.
      const isCommitted = async () => (await store.findJobUnscoped(context.db, job.id))?.model === prepared.model.id
      await removeUnlessCommitted(isCommitted, () => context.artifacts.remove(...prepared.keys))
      await files.drop(file)
      throw error
    }
    if (job.evaluation_id !== null) options.evaluations.wake()
    await context.artifacts.remove(runsKey(job.id))
  }
}

/** Moves the files of a result into model folders. */
async function prepare({ context, dataDir, models }: Options, job: store.JobRow, result: Result): Promise<Prepared> {
  const startingModel = await models.startingModel(job.account_id, job.model_id)
  // A model with whole weights needs no other weights.
  const weights_model_id = result.kind === 'model' ? null : startingModel.weights_model_id
  // An adapter that is continued has its projector trained again, so whole weights alone can inherit one.
  const { adapter, weights_projector } = startingModel
  const inherited = result.kind === 'model' ? (adapter?.projector ?? weights_projector) : null
  const model = await moveToModels(dataDir, result, inherited)
  if (result.rows) await moveTree(result.rows, path.join(modelDir(dataDir, model.id), rowsFile))
  const artifacts: Prepared['artifacts'] = [{ ...result, ...model }]
  for (const kept of result.kept) artifacts.push({ ...kept, ...(await moveToModels(dataDir, kept, inherited)) })
  const keys: string[] = []
  for (const { id } of artifacts) {
    keys.push(modelKey(id), ...(result.drafts ? [draftsKey(id)] : []))
    if (result.drafts) await storeDrafts(dataDir, result.drafts, id)
  }
  return {
    startingModel,
    model,
    artifacts,
    keys,
    weights_model_id,
    weights_projector_sha256: (weights_model_id && weights_projector?.sha256) || null,
    created_at: context.now(),
  }
}

/** Compares the engine's answers of a result with the trainer's. Its baseline is what the result was made from. */
async function compare(
  { models }: Options,
  job: store.JobRow,
  { kind }: Result,
  { startingModel, model, weights_model_id, weights_projector_sha256, created_at }: Prepared,
): Promise<Comparison> {
  // Full training changes the starting model, others the whole weights below its adapter.
  const isFull = readResolvedConfig(job.resolved_config_json).method.value === 'full'
  const baseline = servedBaseOf(isFull ? startingModel : { ...startingModel, adapter: undefined })
  const { base_model_id } = startingModel
  const { id, projector_sha256 } = model
  const files = { id, kind, base_model_id, weights_model_id, projector_sha256, weights_projector_sha256, created_at }
  return models.compareNew(job.account_id, files, baseline)
}

/** Registers the models and ends the job. */
async function register(
  { context, models, files, evaluations }: Options,
  trx: Trx,
  job: store.JobRow,
  result: Result,
  { startingModel, model, artifacts, weights_model_id, weights_projector_sha256, created_at }: Prepared,
  { comparison, file, loss }: Measured,
): Promise<void> {
  const time = context.now()
  const { base_model_id } = startingModel
  const { name, description, metadata_json, metrics_json } = (await store.findJobUnscoped(trx, job.id))!
  const { generated_tokens } = fromJson(metrics_json)
  for (const artifact of artifacts) {
    const isResult = artifact.id === model.id
    await models.insert(trx, {
      id: artifact.id,
      account_id: job.account_id,
      base_model_id,
      ft_name: ftName({
        base_model_id,
        account_id: job.account_id,
        suffix: openaiRequestOf(job)?.suffix,
        model_id: artifact.id,
        step: isResult ? undefined : artifact.step,
      }),
      kind: artifact.kind,
      name: isResult ? name : nameOfStep(name, artifact.step),
      description,
      metadata_json,
      parent_model_id: parentOf(job)?.model_id ?? null,
      weights_model_id,
      job_id: job.id,
      method: readResolvedConfig(job.resolved_config_json).method.value,
      step: artifact.step,
      validation_loss: artifact.validation_loss,
      gguf_sha256: artifact.gguf_sha256,
      folder_sha256: artifact.folder_sha256,
      projector_sha256: artifact.projector_sha256,
      weights_projector_sha256,
      drafts_sha256: result.drafts_sha256 ?? null,
      comparison_json: isResult && comparison ? JSON.stringify(comparison) : null,
      trained_with_json: result.trained_with ? JSON.stringify(result.trained_with) : null,
      size_bytes: artifact.size_bytes,
      created_at,
    })
  }
  await files.insert(trx, file, {
    account_id: job.account_id,
    filename: `step_metrics_${job.id}.csv`,
    purpose: 'fine-tune-results',
    created_at,
  })
  const validation = await validationOf(trx, job.id, result)
  await store.updateJob(trx, job.id, {
    status: 'completed',
    progress: 1,
    current_epoch: result.epochs,
    metrics_json: JSON.stringify({ ...metricsOf(result, loss, validation), generated_tokens }),
    trained_tokens: result.trained_tokens,
    model: model.id,
    result_file_id: file.id,
    estimated_completion: null,
    finished_at: time,
  })
  await context.meter.end(trx, job.id, 'complete', time)
  if (comparison?.problem)
    await store.appendEvents(
      trx,
      job.id,
      [{ type: 'warning', message: comparison.problem, data: { code: 'model_disagrees', ...comparison } }],
      time,
    )
  if (job.evaluation_id !== null) await evaluate(evaluations, trx, job, model.id, time)
  const { train_loss, step } = result
  const data = { model: model.id, ...(loss !== undefined && { loss }), train_loss, step, ...validation }
  const completed = statusEvent('completed', `The job completed. Its model is ${model.id}.`, data)
  await store.appendEvents(trx, job.id, [completed], time)
  const event = { job_id: job.id, model_id: model.id, base_model_id }
  await recordEvent(trx, job.account_id, 'training.completed', event, time)
}

/** The figures of the evaluation at the step of the result. */
async function validationOf(trx: Trx, job_id: string, { step, validation_loss, validation_exact }: Result) {
  const evaluated = (await store.evaluations(trx, job_id)).find((evaluation) => evaluation.step === step)
  const { train_loss: _, ...figures } = fromJson(evaluated?.data_json ?? '{}')
  return {
    ...figures,
    ...(validation_loss !== null && { validation_loss }),
    ...(validation_exact !== null && { validation_exact }),
  }
}

const metricsOf = (
  result: Result,
  loss: number | undefined,
  validation: Awaited<ReturnType<typeof validationOf>>,
): JobMetrics => ({
  step: result.step,
  steps_trained: result.steps,
  steps_total: result.steps_total,
  ...(loss !== undefined && { loss }),
  train_loss: result.train_loss,
  tokens_per_second: result.tokens_per_second,
  train_seconds: result.train_seconds,
  peak_memory_mb: result.peak_memory_mb,
  predicted_memory_mb: result.predicted_memory_mb,
  ...(result.predicted_seconds !== null && { predicted_seconds: result.predicted_seconds }),
  ...validation,
})

/** Begins the evaluation that the job names. If it cannot be made, the job is done all the same. */
async function evaluate(
  evaluations: Options['evaluations'],
  trx: Trx,
  job: store.JobRow,
  model: string,
  time: number,
): Promise<void> {
  const by = { ...serviceActor, account_id: job.account_id, key_id: job.key_id }
  try {
    const models = { model, baseline: job.model_id }
    const result_evaluation_id = await evaluations.creation.repeat(trx, by, job.evaluation_id!, models)
    await store.updateJob(trx, job.id, { result_evaluation_id })
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    const message = `The result is not evaluated: ${error.message}`
    await store.appendEvents(trx, job.id, [{ type: 'warning', message, data: { code: error.code } }], time)
  }
}
