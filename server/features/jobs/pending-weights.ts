// Jobs that wait for the weights of their base, from a download or from set-up. Their status is queued, but they enter
// the queue only when the weights are here.

import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import type { Download } from '../../../contract/hub.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import type { AccountActor } from '../../platform/events/audit.ts'
import type { NewEvent } from '../../platform/events/event-streams.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import type { EventBus } from '../events.ts'
import { type Downloads, type Hub, tokenizerIdentity } from '../hub/index.ts'
import type { StartingModel, TunedModels } from '../models/index.ts'
import { type BaseInfo, resolveConfig } from './defaults.ts'
import type { JobMeter } from './metering.ts'
import { endAsFailed } from './outcomes.ts'
import * as store from './store.ts'

/** What a new job starts from. */
interface JobStart {
  /** The resolved configuration, as far as it is known without the weights. */
  resolved: ResolvedConfig
  base_model_id: string
  /** The base whose weights must come first: from a download, or with what set-up installs for training. */
  awaits?: { base_id: string; from: 'download' | 'setup' }
  /** Whether it starts from a tuned model of the account. */
  from_model: boolean
}

interface Options {
  db: Db
  queue: Queue
  events: EventBus
  hub: Hub
  downloads: Downloads
  meter: JobMeter
  trainingSetup: TrainingSetup
  models: Pick<TunedModels, 'find' | 'startingModel'>
  parse_control_tokens: boolean
  log: Logger
  /** Wakes readers of a job's events. */
  notifyEvents(job_id: string): void
  now(): number
}

/** The full resolved configuration of a job whose weights are here. */
export const resolveLocalConfig = (
  { hub, parse_control_tokens }: { hub: Hub; parse_control_tokens: boolean },
  config: JobConfig,
  startingModel: StartingModel,
): ResolvedConfig => ({
  ...resolveConfig(
    config,
    startingModel,
    hub.linearModules(startingModel.base),
    hub.projectorProblem(startingModel.base_model_id),
    hub.mixture(startingModel.base),
  ),
  tokenizer: tokenizerIdentity(startingModel.base.hf),
  parse_control_tokens,
})

export class PendingWeights {
  private readonly options: Options
  private readonly settings: { hub: Hub; parse_control_tokens: boolean }
  /** The last reported step of each download, in tenths; 11 is the conversion. */
  private readonly reportedSteps = new Map<string, number>()
  private reportedSetup = ''

  constructor(options: Options) {
    this.options = options
    const { queue, events, hub, meter, parse_control_tokens, notifyEvents, now } = this.options
    this.settings = { hub, parse_control_tokens }
    events.on('download.changed', async (trx, { model_id, download }) => {
      const jobs = await store.jobsAwaitingWeights(trx, model_id)
      const live = ['queued', 'downloading', 'converting'].includes(download.status)
      const event = live ? this.progressEvent(model_id, download) : undefined
      for (const job of jobs) {
        if (event) await store.appendEvents(trx, job.id, [event], now())
        if (live) continue
        if (download.status === 'completed') await this.enqueueWithWeights(trx, job)
        else {
          const reason = download.status === 'cancelled' ? 'it was cancelled.' : download.error?.message
          await endAsFailed(
            trx,
            meter,
            job,
            { code: 'download_failed', message: `The download of the weights of ${model_id} failed: ${reason}` },
            now(),
          )
        }
      }
      if (!live) {
        this.reportedSteps.delete(model_id)
        await store.removeAwaiting(trx, model_id)
      }
      return () => {
        for (const job of jobs) notifyEvents(job.id)
        queue.wake()
      }
    })
  }

  /** Throws model_not_found, model_not_available, storage_full, and what `resolveConfig` throws. */
  async resolveStart(by: AccountActor, model_id: string, config: JobConfig): Promise<JobStart> {
    const { hub, downloads, models } = this.options
    const tuned = await models.find(by.account_id, model_id)
    const expected = hub.downloadable(model_id)
    hub.requireTried(tuned?.base_model_id ?? model_id, config)
    if (tuned || !expected?.trainable || !(await downloads.needsDownload(by, model_id))) {
      try {
        const startingModel = await models.startingModel(by.account_id, model_id)
        return {
          resolved: resolveLocalConfig(this.settings, config, startingModel),
          base_model_id: startingModel.base_model_id,
          from_model: tuned !== undefined,
        }
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== 'training_not_ready') throw error
        const base_id = tuned?.base_model_id ?? model_id
        return {
          resolved: resolveConfig(config, { base: hub.local(base_id) }, undefined, hub.projectorProblem(base_id)),
          base_model_id: base_id,
          awaits: { base_id, from: 'setup' },
          from_model: tuned !== undefined,
        }
      }
    }
    const base: BaseInfo['base'] = { id: model_id, ...expected }
    return {
      resolved: resolveConfig(config, { base }, undefined, hub.projectorProblem(model_id)),
      base_model_id: model_id,
      awaits: { base_id: model_id, from: 'download' },
      from_model: false,
    }
  }

  /** Enqueues a new or resumed job, unless it still waits for weights: their arrival enqueues it. */
  async enqueue(trx: Trx, job_id: string, account_id: string): Promise<void> {
    if (!(await store.isAwaiting(trx, job_id)))
      await this.options.queue.enqueue(trx, store.queueKind, job_id, account_id)
  }

  /** Makes a new job wait for weights, and requests a download. Call `published` after the commit. */
  async waitForWeights(
    trx: Trx,
    by: AccountActor,
    job_id: string,
    { base_id, from }: NonNullable<JobStart['awaits']>,
  ): Promise<NewEvent> {
    const { downloads, trainingSetup } = this.options
    if (from === 'download') await downloads.request(trx, by, base_id)
    await store.addAwaiting(trx, job_id, base_id)
    return {
      type: 'status',
      message:
        from === 'download'
          ? `The job waits for the weights of ${base_id}, which are being downloaded.`
          : `The job waits. ${trainingSetup.describe()}`,
      data: { status: 'queued' },
    }
  }

  async published({ base_id, from }: NonNullable<JobStart['awaits']>): Promise<void> {
    const { downloads, trainingSetup } = this.options
    if (from === 'download') await downloads.publishRequest(base_id)
    // Set-up may have ended before the job was stored.
    else if (trainingSetup.ready()) await this.enqueueAfterSetup()
  }

  /** Reports the progress of set-up to waiting jobs, and enqueues them when it is done, also if it was done before. */
  async watchTrainingSetup(): Promise<void> {
    const { trainingSetup, log } = this.options
    if (trainingSetup.ready()) return await this.enqueueAfterSetup()
    let reports = Promise.resolve()
    trainingSetup.onChange(() => {
      reports = reports
        .then(() => this.reportSetup())
        .then(() => (trainingSetup.ready() ? this.enqueueAfterSetup() : undefined))
        .catch((error: Error) => log.error({ err: error }, 'could not notify the jobs that wait for set-up'))
    })
  }

  private async resolveAgain(trx: Trx, job: store.JobRow): Promise<ResolvedConfig> {
    const startingModel = await this.options.models.startingModel(job.account_id, job.model_id, trx)
    return resolveLocalConfig(this.settings, fromJson(job.config_json), startingModel)
  }

  /** Resolves and enqueues a job whose weights have arrived. */
  private async enqueueWithWeights(trx: Trx, job: store.JobRow): Promise<void> {
    const { queue, meter, now } = this.options
    let resolved: ResolvedConfig
    try {
      resolved = await this.resolveAgain(trx, job)
    } catch (error) {
      // The weights lack a layer that the job names, or are not a text model.
      const { code = 'internal', message } = error as Error & { code?: string }
      return await endAsFailed(trx, meter, job, { code, message }, now())
    }
    await store.updateJob(trx, job.id, { resolved_config_json: JSON.stringify(resolved) })
    const message = `The weights of ${job.model_id} are here; the job waits for its turn.`
    await store.appendEvents(trx, job.id, [{ type: 'status', message, data: { status: 'queued' } }], now())
    if (!job.paused) await queue.enqueue(trx, store.queueKind, job.id, job.account_id)
  }

  /** The progress event for the waiting jobs, about every tenth of a download; undefined in between. */
  private progressEvent(
    model_id: string,
    { status, progress, bytes, total_bytes, error }: Download,
  ): NewEvent | undefined {
    const step = status === 'converting' ? 11 : Math.floor(progress * 10)
    if (step <= (this.reportedSteps.get(model_id) ?? -1)) return undefined
    this.reportedSteps.set(model_id, step)
    const size = total_bytes === null ? '' : ` of ${Math.ceil(total_bytes / 1e6)} MB`
    const message =
      status === 'converting'
        ? `The weights of ${model_id} are being converted.`
        : `The weights of ${model_id} are being downloaded: ${step * 10}%${size}.`
    return { type: 'progress', message, data: { download: { status, progress, bytes, total_bytes, error } } }
  }

  /** Enqueues the jobs that waited for set-up. */
  private async enqueueAfterSetup(): Promise<void> {
    const { db, queue, downloads, notifyEvents } = this.options
    const notify: string[] = []
    await db.transaction().execute(async (trx) => {
      for (const model_id of await store.awaitedModels(trx)) {
        if (downloads.isLive(model_id)) continue
        for (const job of await store.jobsAwaitingWeights(trx, model_id)) {
          await this.enqueueWithWeights(trx, job)
          notify.push(job.id)
        }
        await store.removeAwaiting(trx, model_id)
      }
    })
    for (const id of notify) notifyEvents(id)
    queue.wake()
  }

  /** Tells all queued jobs how far set-up is, unless they know. */
  private async reportSetup(): Promise<void> {
    const { db, trainingSetup, notifyEvents, now } = this.options
    const message = trainingSetup.ready()
      ? 'The training environment is ready; the job waits for its turn.'
      : trainingSetup.describe()
    if (message === this.reportedSetup) return
    this.reportedSetup = message
    const { ready, steps } = trainingSetup.status({ operator: false })
    const data = {
      training_setup: { ready, done: steps.filter(({ status }) => status === 'done').length, of: steps.length },
    }
    const jobs = (await store.liveJobs(db)).filter(({ status }) => status === 'queued')
    await db.transaction().execute(async (trx) => {
      for (const { id } of jobs) await store.appendEvents(trx, id, [{ type: 'progress', message, data }], now())
    })
    for (const { id } of jobs) notifyEvents(id)
  }
}
