// The creation of jobs, and what is told before: the config and the estimate.
import type { z } from 'zod'
import { ResponseFormat } from '../../../contract/chat.ts'
import type { Dataset } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { CreateJob, Job, JobEstimate, ResolvedConfig } from '../../../contract/fine-tuning.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { statusEvent } from '../../platform/events/event-streams.ts'
import { assertBacklogLimit, type Queue } from '../../platform/queue/queue.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { type Datasets, requirePictureReader } from '../datasets/index.ts'
import type { Evaluations } from '../evaluations/index.ts'
import type { Hub } from '../hub/index.ts'
import { sourceColumns, type TunedModels } from '../models/index.ts'
import type { Devices } from './devices/index.ts'
import type { Estimator } from './estimate.ts'
import { nameOfJob } from './names.ts'
import type { OpenaiRequest } from './openai/request.ts'
import { type PendingWeights, resolveLocalConfig } from './pending-weights.ts'
import { boundsOf } from './reinforcement/bounds.ts'
import { type JobResponses, requireJob } from './responses.ts'
import type { Specs } from './spec.ts'
import * as store from './store.ts'

export interface JobCreationOptions {
  db: Db
  queue: Queue
  hub: Hub
  datasets: Datasets
  models: TunedModels
  evaluations: Pick<Evaluations, 'creation'>
  specs: Pick<Specs, 'ofTrial'>
  estimator: Estimator
  /** Undefined where jobs train in a cluster. */
  devices: Devices | undefined
  pendingWeights: PendingWeights
  responses: JobResponses
  trainingSetup: TrainingSetup
  dataDir: string
  threads: number
  min_free_mb: number
  quota: StorageQuota
  max_waiting: number
  parse_control_tokens: boolean
  now(): number
}

export class JobCreation {
  private readonly options: JobCreationOptions

  constructor(options: JobCreationOptions) {
    this.options = options
  }

  /** `traceparent`: the trace of the request, in which its attempts are. */
  async create(
    by: AccountActor,
    {
      model_id,
      dataset_id,
      config,
      evaluation,
      name,
      description,
      metadata,
      openai,
      traceparent,
    }: z.output<typeof CreateJob> & { openai?: OpenaiRequest; traceparent?: string | undefined },
  ): Promise<Job> {
    const {
      db,
      queue,
      hub,
      datasets,
      evaluations,
      trainingSetup,
      dataDir,
      threads,
      min_free_mb,
      quota,
      max_waiting,
      pendingWeights,
      responses,
      now,
    } = this.options
    const { account_id } = by
    if (evaluation !== undefined) await evaluations.creation.require(account_id, evaluation)
    await this.requireGraders(account_id, config)
    const start = await pendingWeights.resolveStart(by, model_id, config)
    const { resolved } = start
    await requireFreeDisk(dataDir, min_free_mb)
    this.requireSampling(start.base_model_id, resolved)
    await this.requireDatasets(account_id, dataset_id, start.base_model_id, resolved)
    if (evaluation !== undefined) {
      const { id, category } = hub.get(start.base_model_id)
      await evaluations.creation.require(account_id, evaluation, { id, pictures: category === 'multimodal' })
    }
    await this.requireDevices(start.base_model_id, resolved)
    const validation_dataset_id = resolved.evaluation_config.validation_dataset_id.value
    const { dataset, columns } = await sourceColumns(db, datasets, account_id, {
      model_id,
      dataset_id,
      config: resolved,
    })
    const { base_model_id } = start
    const id = newId('job')
    const created_at = now()
    await db.transaction().execute(async (trx) => {
      // Inside the transaction, so that the dataset cannot be deleted in between.
      const objective = resolved.method_options.objective.value
      await datasets.forTraining(trx, account_id, dataset_id, objective)
      assertBacklogLimit(await store.countQueued(trx, account_id), 'jobs', max_waiting)
      await quota.require(trx, account_id, 1)
      if (start.from_model) await this.requireModel(trx, account_id, model_id)
      if (validation_dataset_id) await datasets.forTraining(trx, account_id, validation_dataset_id, objective)
      await store.insertJob(trx, {
        id,
        account_id,
        name: name ?? nameOfJob(dataset.name!, base_model_id),
        description,
        metadata_json: JSON.stringify(metadata),
        model_id,
        base_model_id,
        dataset_id,
        validation_dataset_id,
        ...columns,
        status: 'queued',
        paused: 0,
        progress: 0,
        current_epoch: 0,
        metrics_json: '{}',
        estimated_completion: null,
        config_json: JSON.stringify(config),
        resolved_config_json: JSON.stringify(resolved),
        threads,
        error_json: null,
        trained_tokens: 0,
        key_id: by.key_id ?? '',
        ran_ms: 0,
        running_since: null,
        crashes: 0,
        model: null,
        traceparent: traceparent ?? null,
        evaluation_id: evaluation ?? null,
        result_evaluation_id: null,
        openai_json: openai ? JSON.stringify(openai) : null,
        created_at,
        started_at: null,
        finished_at: null,
      })
      const event = start.awaits
        ? await pendingWeights.waitForWeights(trx, by, id, start.awaits)
        : statusEvent(
            'queued',
            trainingSetup.ready() ? 'The job waits for its turn.' : `The job waits. ${trainingSetup.describe()}`,
          )
      await store.appendEvents(trx, id, [event], created_at)
      await pendingWeights.enqueue(trx, id, account_id)
      await recordAuditEntry(trx, by, 'job.created', id, { model_id, dataset_id }, created_at)
    })
    if (start.awaits) await pendingWeights.published(start.awaits)
    queue.wake()
    return responses.toResponse(await requireJob(db, account_id, id))
  }

  /** The values that a job would be trained with. Throws what `create` throws for its model and config. */
  async resolvedConfig(by: AccountActor, model_id: string, config: JobConfig): Promise<ResolvedConfig> {
    return (await this.options.pendingWeights.resolveStart(by, model_id, config)).resolved
  }

  /** Estimates a job's time, memory and price, unless the signal aborts. Throws what `create` throws. */
  async estimate(
    account_id: string,
    { model_id, dataset_id, config }: z.output<typeof CreateJob>,
    signal?: AbortSignal,
  ): Promise<JobEstimate> {
    const { hub, models, specs, estimator, threads, parse_control_tokens } = this.options
    await this.requireForm(account_id, config)
    const startingModel = await models.startingModel(account_id, model_id)
    hub.requireTried(startingModel.base_model_id, config)
    const resolved = resolveLocalConfig({ hub, parse_control_tokens }, config, startingModel)
    await this.requireDatasets(account_id, dataset_id, startingModel.base_model_id, resolved, signal)
    if (resolved.method_options.objective.value === 'reinforcement')
      return this.estimateReinforcement(account_id, dataset_id, startingModel.base_model_id, resolved)
    const estimate = await estimator.estimate(
      { account_id, signal },
      { base_model_id: startingModel.base_model_id, config: resolved },
      await specs.ofTrial({ account_id, model_id, dataset_id, config: resolved, threads }),
    )
    const { currency, training_per_million_tokens } = hub.get(startingModel.base_model_id).pricing
    const price =
      estimate.tokens === null ? null : { amount: (estimate.tokens / 1e6) * training_per_million_tokens, currency }
    return { ...estimate, price, resolved_config: resolved }
  }

  /** What a job that learns from graders may take at most: how long its answers become is not known before. */
  private async estimateReinforcement(
    account_id: string,
    dataset_id: string,
    base_model_id: string,
    resolved: ResolvedConfig,
  ): Promise<JobEstimate> {
    this.requireSampling(base_model_id, resolved)
    const { datasets, db } = this.options
    const { validation_split, validation_dataset_id } = resolved.evaluation_config
    const { rows } = await datasets.get(account_id, dataset_id)
    const split = validation_split.value ? heldOutCount(rows, validation_split.value) : 0
    const others = validation_dataset_id.value ? await datasets.get(account_id, validation_dataset_id.value) : undefined
    const learned = rows - split
    const bounds = boundsOf(resolved, { learned, held_out: others?.rows ?? split })
    const rate = await store.generationRate(db, base_model_id)
    const plan = await this.options.devices?.plan(base_model_id, resolved)
    const needed_mb = plan && 'needed_mb' in plan ? (plan.needed_mb ?? 0) : 0
    const available_mb = plan && 'available_mb' in plan && plan.available_mb ? plan.available_mb : availableMb()
    return {
      fits: needed_mb <= available_mb,
      peak_memory_mb: Math.round(needed_mb),
      available_memory_mb: Math.round(available_mb),
      devices: 1,
      pauses_serving: false,
      tokens: null,
      ...bounds,
      seconds_max: rate === undefined ? null : Math.ceil(bounds.generated_tokens_max / rate),
      rows: learned,
      cut_rows: null,
      no_learned_rows: null,
      seconds: null,
      tokens_per_second: null,
      price: null,
      resolved_config: resolved,
    }
  }

  /** Throws invalid_request for graders that could never score, and environments that could never be asked. */
  private async requireGraders(account_id: string, { method_options }: JobConfig): Promise<void> {
    const { grader, graders, watched_graders, environments } = method_options ?? {}
    const { creation } = this.options.evaluations
    if (grader) await creation.checkGraders(account_id, grader, 'config.method_options.grader')
    if (graders) await creation.checkGraders(account_id, graders, 'config.method_options.graders')
    if (watched_graders)
      await creation.checkGraders(account_id, watched_graders, 'config.method_options.watched_graders')
    for (const [index, { url }] of (environments ?? []).entries())
      creation.checkEndpoint(url, `config.method_options.environments.${index}.url`)
    await this.requireForm(account_id, { method_options })
  }

  /** Throws invalid_request for a form that no answer can have. */
  private async requireForm(account_id: string, { method_options }: JobConfig): Promise<void> {
    const response_format = method_options?.response_format
    if (!response_format) return
    const field = 'config.method_options.response_format'
    const form = ResponseFormat.safeParse(response_format)
    if (!form.success) {
      const { path, message } = form.error.issues[0]!
      const at = [field, ...path].join('.')
      throw new ApiError('invalid_request', `'${at}': ${message}.`, { param: at, details: { field: at } })
    }
    const schema = form.data.type === 'json_schema' ? form.data.json_schema.schema : undefined
    const { creation } = this.options.evaluations
    if (schema) await creation.checkSchema(account_id, schema, `${field}.json_schema.schema`)
  }

  /** Throws invalid_request for a job that learns from graders where its answers cannot be sampled. */
  private requireSampling(base_model_id: string, { method_options }: ResolvedConfig): void {
    if (method_options.objective.value !== 'reinforcement') return
    const refuse = (why: string) =>
      new ApiError('invalid_request', `'config.method_options.objective': ${why}`, {
        details: { field: 'config.method_options.objective' },
      })
    if (!this.options.devices)
      throw refuse("'reinforcement' runs on the machine that serves, and jobs of this service train in a cluster.")
    if (this.options.hub.get(base_model_id).merges_adapters)
      throw refuse(
        `the engine serves adapters of ${base_model_id} merged alone, and 'reinforcement' needs the weights of each ` +
          'step loaded. Take another base.',
      )
  }

  /** Throws invalid_request for a job that fits on no device of this machine, and not on all together. */
  private async requireDevices(base_model_id: string, resolved: ResolvedConfig): Promise<void> {
    const plan = await this.options.devices?.plan(base_model_id, resolved)
    if (plan && 'refused' in plan) throw new ApiError('invalid_request', plan.refused, { param: 'model_id' })
  }

  /** Runs in the transaction that creates the job, so that the model cannot be deleted in between. */
  private async requireModel(trx: Trx, account_id: string, id: string): Promise<void> {
    if ((await this.options.models.nameOf(trx, account_id, id)) === undefined)
      throw new ApiError('model_not_found', `The model '${id}' was deleted in the meantime.`)
  }

  /** Throws for rows whose prompts cannot be asked for tokens. */
  private async requirePrompts(account_id: string, id: string): Promise<void> {
    const { db, datasets } = this.options
    await datasets.forTraining(db, account_id, id, 'reinforcement')
    const { pictures } = await datasets.get(account_id, id)
    if (pictures > 0)
      throw new ApiError(
        'invalid_request',
        `The rows of '${id}' have pictures, and 'reinforcement' learns from text alone. Choose a dataset without any.`,
        { details: { field: 'dataset_id', pictures } },
      )
  }

  private async requireDatasets(
    account_id: string,
    dataset_id: string,
    base_model_id: string,
    { evaluation_config, method_options, training_config }: ResolvedConfig,
    signal?: AbortSignal,
  ): Promise<void> {
    const { hub, datasets } = this.options
    const { value, source } = training_config.max_length
    for (const id of [dataset_id, evaluation_config.validation_dataset_id.value]) {
      if (!id) continue
      await datasets.ready(account_id, id)
      requirePictureReader(hub.get(base_model_id), await datasets.get(account_id, id))
      if (method_options.objective.value === 'reinforcement') {
        await this.requirePrompts(account_id, id)
        continue
      }
      const max_length = source === 'request' ? value : undefined
      await datasets.requireLearnable(account_id, id, base_model_id, max_length, signal)
    }
    const rated = method_options.objective.value === 'kto'
    // Held-out answers are compared with those that are learned, too.
    if (rated) await datasets.requireOtherAnswers(account_id, dataset_id)
    const split = evaluation_config.validation_split.value
    if (split) requireSplittable(await datasets.get(account_id, dataset_id), split, rated)
  }
}

const availableMb = () => Math.round(process.availableMemory() / 1e6)

/** As `hold_out` of trainer/data/dataset.py. */
const heldOutCount = (rows: number, split: number) => Math.min(Math.max(1, Math.round(rows * split)), rows - 1)

/** Throws invalid_request if a validation split leaves too few of a dataset's rows to learn from. */
function requireSplittable({ id, rows }: Pick<Dataset, 'id' | 'rows'>, split: number, rated: boolean): void {
  const learned = rows - heldOutCount(rows, split)
  const refuse = (reason: string, rest: string) => {
    throw new ApiError(
      'invalid_request',
      `'config.evaluation_config.validation_split': '${id}' has ${reason}. ${rest}`,
      { details: { field: 'config.evaluation_config.validation_split' } },
    )
  }
  if (rows < 2) refuse('one row, and a split needs at least two', 'Add rows, or leave the split out.')
  if (rated && learned < 2)
    refuse(
      `${rows} rows, and the split leaves one to learn from: the objective 'kto' compares each answer with another`,
      'Add rows, or take a smaller split.',
    )
}
