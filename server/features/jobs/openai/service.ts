// OpenAI's fine-tuning API: another spelling of the jobs and models of this service.

import { ApiError, type ErrorCode } from '../../../../contract/errors.ts'
import type { CursorQuery } from '../../../../contract/files.ts'
import type { Objective } from '../../../../contract/hyperparameters.ts'
import type {
  CreateOpenaiJob,
  OpenaiCheckpoint,
  OpenaiJob,
  OpenaiJobEvent,
  OpenaiJobQuery,
} from '../../../../contract/openai-fine-tuning.ts'
import type { Db } from '../../../platform/db/open.ts'
import { openaiPageOf } from '../../../platform/db/page.ts'
import type { AccountActor } from '../../../platform/events/audit.ts'
import { metadataFilter } from '../../../platform/http/metadata-filter.ts'
import type { Datasets } from '../../datasets/index.ts'
import type { Files } from '../../files/index.ts'
import type { Hub } from '../../hub/index.ts'
import { readResolvedConfig, type TunedModels } from '../../models/index.ts'
import { defaultLearningRate } from '../defaults.ts'
import type { Jobs } from '../service.ts'
import * as store from '../store.ts'
import { configOf, objectiveOf, storedRequest } from './request.ts'
import { seqOf, toCheckpointResponse, toEventResponse, toJobResponse } from './responses.ts'
import { metricsByStep } from './step-metrics.ts'

type List<T extends { id: string }> = ReturnType<typeof openaiPageOf<T>>

interface Options {
  db: Db
  hub: Hub
  datasets: Pick<Datasets, 'ready' | 'asFiles' | 'forTraining'>
  files: Pick<Files, 'pathOf'>
  jobs: Jobs
  models: TunedModels
  /** The operator's tracker, which a job's integrations need. */
  tracking: string
}

export class OpenaiFineTuning {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  async create(by: AccountActor, request: CreateOpenaiJob, traceparent?: string): Promise<OpenaiJob> {
    const { jobs } = this.options
    const { account_id } = by
    this.requireTracker(request)
    const { training_file, validation_file } = request
    const model_id = await this.modelToTrain(account_id, request.model)
    const objective = objectiveOf(request)
    const grader = request.method?.reinforcement?.grader
    const method_options = { objective, ...(grader && { grader }) }
    const defaults = jobs.creation.resolvedConfig(by, model_id, { method_options })
    const { training_config } = await naming('model', defaults)
    const config = configOf(request, training_config.learning_rate.value)
    await this.requireRows(account_id, training_file, 'training_file', objective)
    if (validation_file != null) await this.requireRows(account_id, validation_file, 'validation_file', objective)
    const { id } = await naming(
      undefined,
      jobs.creation.create(by, {
        model_id,
        dataset_id: training_file,
        config,
        evaluation: undefined,
        name: undefined,
        description: '',
        metadata: request.metadata ?? {},
        openai: storedRequest(request),
        traceparent,
      }),
    )
    return this.get(account_id, id)
  }

  async list(account_id: string, query: OpenaiJobQuery): Promise<List<OpenaiJob>> {
    const { db } = this.options
    const after =
      query.after === undefined ? undefined : await naming('after', this.requireJob(account_id, query.after))
    const rows = await store.listJobsByMetadata(db, account_id, metadataFilter(query), query.limit, after)
    return openaiPageOf(
      rows.map((job) => this.toResponse(job)),
      query.limit,
    )
  }

  async get(account_id: string, id: string): Promise<OpenaiJob> {
    return this.toResponse(await this.requireJob(account_id, id))
  }

  cancel(by: AccountActor, id: string): Promise<OpenaiJob> {
    return this.act(by, id, 'cancel')
  }

  pause(by: AccountActor, id: string): Promise<OpenaiJob> {
    return this.act(by, id, 'pause')
  }

  resume(by: AccountActor, id: string): Promise<OpenaiJob> {
    return this.act(by, id, 'resume')
  }

  async events(account_id: string, id: string, { limit, after }: CursorQuery): Promise<List<OpenaiJobEvent>> {
    const { db } = this.options
    await this.requireJob(account_id, id)
    const before = after === undefined ? undefined : seqOf(id, after)
    if (after !== undefined && before === undefined)
      throw new ApiError('invalid_request', `'after': the job has no event '${after}'.`, { param: 'after' })
    return openaiPageOf((await store.latestEvents(db, id, limit, before)).map(toEventResponse), limit)
  }

  async checkpoints(account_id: string, id: string, { limit, after }: CursorQuery): Promise<List<OpenaiCheckpoint>> {
    const { db, models } = this.options
    await this.requireJob(account_id, id)
    const metrics = await metricsByStep(db, id)
    const all = (await models.madeBy(id))
      .sort((a, b) => (b.step ?? 0) - (a.step ?? 0) || (a.id < b.id ? 1 : -1))
      .map((model) => toCheckpointResponse(model, metrics.get(model.step ?? 0)))
    const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1
    if (after !== undefined && from === 0)
      throw new ApiError('invalid_request', `'after': the job has no checkpoint '${after}'.`, { param: 'after' })
    return openaiPageOf(all.slice(from), limit)
  }

  /** Throws model_not_found for a checkpoint that is not the account's. */
  async requireCheckpoint(account_id: string, name: string): Promise<void> {
    const { models } = this.options
    const id = (await models.idOf(account_id, name)) ?? name
    if (!(await models.find(account_id, id)))
      throw new ApiError('model_not_found', `There is no checkpoint '${name}'.`, { param: 'checkpoint' })
  }

  async deleteModel(by: AccountActor, name: string): Promise<{ id: string; object: 'model'; deleted: true }> {
    const { hub, models } = this.options
    const id = (await models.idOf(by.account_id, name)) ?? name
    if (hub.has(hub.mapped(id)))
      throw new ApiError('invalid_request', `'${name}' is a base model; only fine-tuned models can be deleted.`, {
        param: 'model',
      })
    await naming('model', models.delete(by, id))
    return { id: name, object: 'model', deleted: true }
  }

  private async requireJob(account_id: string, id: string): Promise<store.JobRow> {
    const { db } = this.options
    const job = await store.findJob(db, account_id, id)
    if (!job) throw new ApiError('job_not_found', `There is no fine-tuning job '${id}'.`, { param: 'job_id' })
    return job
  }

  /** What a learning rate multiplier of 1 stands for in a job. */
  private defaultRate(job: store.JobRow): number {
    const { hub } = this.options
    const { method, method_options } = readResolvedConfig(job.resolved_config_json)
    const base = hub.localOrUndefined(job.base_model_id) ?? hub.downloadable(job.base_model_id)
    return defaultLearningRate(base?.parameters ?? 0, method.value, method_options.objective.value)
  }

  private toResponse(job: store.JobRow): OpenaiJob {
    return toJobResponse(job, this.defaultRate(job))
  }

  /** Runs an action of the service on a job that exists. */
  private async act(by: AccountActor, id: string, action: 'cancel' | 'pause' | 'resume'): Promise<OpenaiJob> {
    const { jobs } = this.options
    await this.requireJob(by.account_id, id)
    await naming('job_id', jobs[action](by, id))
    return this.get(by.account_id, id)
  }

  /** The id of the model to train. Throws model_not_available with the models that there are. */
  private async modelToTrain(account_id: string, name: string): Promise<string> {
    const { hub, models } = this.options
    const id = (await models.idOf(account_id, name)) ?? hub.mapped(name)
    if (hub.has(id) || (await models.find(account_id, id))) return id
    const local = hub.list().filter(({ weights, methods }) => weights.available && methods.length > 0)
    const names = [...hub.mappedNames(), ...local.map(({ id }) => id)]
    throw new ApiError(
      'model_not_available',
      `The model '${name}' is not here. These can be trained: ${names.join(', ')}. GET /v1/hub/ lists those that can ` +
        'be downloaded; the operator may map names of closed models to them (TUNERY_MODEL_NAMES).',
      { param: 'model', details: { available: names } },
    )
  }

  /** Throws an error that names the parameter unless the file has rows to train on. */
  private async requireRows(account_id: string, id: string, param: string, objective: Objective): Promise<void> {
    const { db, datasets, files } = this.options
    if (!(await datasets.asFiles.find(account_id, id))) {
      const other = await files.pathOf(account_id, id)
      throw other
        ? new ApiError(
            'invalid_request',
            `'${param}': '${id}' was uploaded for '${other.purpose}'. Upload it with the purpose 'fine-tune'.`,
            { param },
          )
        : new ApiError('file_not_found', `'${param}': there is no file '${id}'.`, { param })
    }
    await naming(param, datasets.ready(account_id, id))
    await naming(param, datasets.forTraining(db, account_id, id, objective))
  }

  private requireTracker({ integrations }: CreateOpenaiJob): void {
    const { tracking } = this.options
    if (!integrations?.length) return
    const param = 'integrations'
    if (tracking !== 'wandb')
      throw new ApiError(
        'parameter_not_supported',
        "'integrations' is not supported: this service sends nothing to Weights & Biases. " +
          'The operator turns it on with TUNERY_TRACKING=wandb.',
        { param },
      )
    if (integrations.some(({ wandb }) => wandb.entity != null))
      throw new ApiError(
        'parameter_not_supported',
        "'integrations[].wandb.entity' is not supported: runs belong to the account of the operator's key. " +
          'Leave it out.',
        { param },
      )
  }
}

/** The fields of a job under that API's names, for errors of the service. */
const params: Record<string, string> = {
  model_id: 'model',
  dataset_id: 'training_file',
  'config.evaluation_config.validation_dataset_id': 'validation_file',
  'config.training_config.epochs': 'n_epochs',
  'config.training_config.batch_size': 'batch_size',
  'config.method_options.grader': 'method.reinforcement.grader',
  'config.method_options.response_format': 'method.reinforcement.response_format',
}
/** The name of a field there, or of one within it. */
function paramOf(field: string): string {
  const known = Object.keys(params).find((name) => field === name || field.startsWith(`${name}.`))
  return known === undefined ? field : params[known] + field.slice(known.length)
}

/** The service's error codes under that API's names. */
const codes: Partial<Record<ErrorCode, ErrorCode>> = { dataset_not_found: 'file_not_found' }
const paramByCode: Partial<Record<ErrorCode, string>> = {
  model_not_found: 'model',
  model_not_available: 'model',
  dataset_not_found: 'training_file',
}

/** Names the parameter in an error that names none, or one of the service's own. */
const naming = <T>(param: string | undefined, work: Promise<T>): Promise<T> =>
  work.catch((error) => {
    if (!(error instanceof ApiError)) throw error
    const named = error.param ?? (error.details?.field as string | undefined)
    const name = param ?? (named === undefined ? paramByCode[error.code] : paramOf(named))
    throw error.with({ code: codes[error.code] ?? error.code, param: name })
  })
