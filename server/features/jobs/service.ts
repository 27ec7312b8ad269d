import type { Logger } from 'pino'
import type { z } from 'zod'
import type { Dataset } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type {
  CreateJob,
  Job,
  JobEstimate,
  JobEvent,
  JobEventType,
  JobQuery,
  ResolvedConfig,
} from '../../../contract/fine-tuning.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { type ChangeNotifier, follow, statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import { assertBacklogLimit, type Queue } from '../../platform/queue/queue.ts'
import type { AbortSignals } from '../../platform/queue/worker.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Orphans } from '../../platform/storage/orphans.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { type Datasets, requirePictureReader } from '../datasets/index.ts'
import type { Evaluations } from '../evaluations/index.ts'
import type { EventBus } from '../events.ts'
import type { Downloads, Hub } from '../hub/index.ts'
import { type ChangeLabels, labelColumns, sourceColumns, type TunedModels } from '../models/index.ts'
import type { Estimator } from './estimate.ts'
import { createJobHistory, type JobHistory } from './history.ts'
import type { StopRequest } from './host.ts'
import { type JobMeter, settleClock } from './metering.ts'
import { nameOfJob } from './names.ts'
import type { OpenaiRequest } from './openai/request.ts'
import { createPendingWeights, resolveLocalConfig } from './pending-weights.ts'
import type { Turns } from './queue-estimate.ts'
import { createJobResponses } from './responses.ts'
import { removeExpiredRuns, runsKey } from './run-files.ts'
import type { Specs } from './spec.ts'
import * as store from './store.ts'
import { statusOf } from './store.ts'

const ended = new Set(['completed', 'failed', 'cancelled'])

export interface Jobs extends JobHistory {
  /** `traceparent`: the trace of the request, in which its attempts are. */
  create(
    by: AccountActor,
    request: z.output<typeof CreateJob> & { openai?: OpenaiRequest; traceparent?: string | undefined },
  ): Promise<Job>
  /** The values that a job would be trained with. Throws what `create` throws for its model and config. */
  resolvedConfig(by: AccountActor, model_id: string, config: JobConfig): Promise<ResolvedConfig>
  /** Estimates a job's time, memory and price, unless the signal aborts. Throws what `create` throws. */
  estimate(account_id: string, request: z.output<typeof CreateJob>, signal?: AbortSignal): Promise<JobEstimate>
  list(account_id: string, query: JobQuery): Promise<Page<Job>>
  get(account_id: string, id: string): Promise<Job>
  /** Changes its name, description or metadata. */
  label: ChangeLabels<Job>
  cancel(by: AccountActor, id: string): Promise<Job>
  pause(by: AccountActor, id: string): Promise<Job>
  resume(by: AccountActor, id: string): Promise<Job>
  /** Deletes a job that has ended, but for what its models came from. Throws job_not_found, in_use. */
  delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }>
  /**
   * The events after `seq`, then new ones as they come, until the job ends or the signal aborts; null is a keepalive.
   */
  events(account_id: string, id: string, after: number, signal: AbortSignal): Promise<AsyncGenerator<JobEvent | null>>
  /** Makes waiting jobs follow set-up, and begin after it. Call it once, when work starts. */
  watchTrainingSetup(): Promise<void>
  /**
   * Settles the run time of trainers that an earlier process of this server started, whose leases have been expired.
   */
  settleRunningClocks(): Promise<void>
  /** Removes the run folders of ended jobs that a crash has left. */
  sweep(): Promise<void>
  /** Removes the run folders of jobs that ended 30 days before `now`: the logs of failed and cancelled ones. */
  removeExpiredRuns(now: number): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  events: EventBus
  /** Wakes readers of a job's events. */
  changes: ChangeNotifier
  /** Stops a job's trainer, here or on another server. */
  stopRequests: Pick<AbortSignals, 'abort'>
  hub: Hub
  downloads: Downloads
  datasets: Datasets
  models: TunedModels
  evaluations: Pick<Evaluations, 'require'>
  specs: Pick<Specs, 'ofTrial'>
  estimator: Estimator
  meter: JobMeter
  trainingSetup: TrainingSetup
  log: Logger
  artifacts: Artifacts
  orphans: Orphans
  dataDir: string
  threads: number
  min_free_mb: number
  quota: StorageQuota
  max_waiting: number
  turns: Turns
  parse_control_tokens: boolean
  keepalive_ms?: number
  now?: () => number
}

export function createJobs(options: Options): Jobs {
  const {
    db,
    queue,
    events,
    changes,
    stopRequests,
    hub,
    downloads,
    datasets,
    models,
    evaluations,
    specs,
    estimator,
    meter,
    trainingSetup,
    log,
    artifacts,
    orphans,
    dataDir,
    threads,
    min_free_mb,
    quota,
    max_waiting,
    turns,
    keepalive_ms = 15_000,
    now = Date.now,
  } = options
  const { parse_control_tokens } = options
  const pendingWeights = createPendingWeights({
    db,
    queue,
    events,
    hub,
    downloads,
    meter,
    trainingSetup,
    log,
    models,
    parse_control_tokens,
    now,
    notifyEvents: (id) => changes.notify(id),
  })

  async function requireJob(account_id: string, id: string, from: Queryable = db): Promise<store.JobRow> {
    const job = await store.findJob(from, account_id, id)
    if (!job) throw new ApiError('job_not_found', `There is no job '${id}'.`)
    return job
  }

  const { toResponses, outdated } = createJobResponses({ db, queue, trainingSetup, turns, now })
  const toResponse = async (job: store.JobRow) => (await toResponses([job]))[0]!

  /**
   * Changes a job in one transaction with its audit entry, then notifies workers and readers. `write` returns whether
   * it changed anything.
   */
  async function change(
    by: AccountActor,
    action: string,
    id: string,
    write: (trx: Trx, job: store.JobRow) => Promise<boolean>,
    onCommitted: () => void,
  ): Promise<Job> {
    const { account_id } = by
    await db.transaction().execute(async (trx) => {
      if (await write(trx, await requireJob(account_id, id, trx)))
        await recordAuditEntry(trx, by, action, id, {}, now())
    })
    onCommitted()
    outdated()
    changes.notify(id)
    return toResponse(await requireJob(account_id, id))
  }

  /** Runs in the transaction that creates the job, so that the model cannot be deleted in between. */
  async function requireModel(trx: Trx, account_id: string, id: string): Promise<void> {
    if ((await models.nameOf(trx, account_id, id)) === undefined)
      throw new ApiError('model_not_found', `The model '${id}' was deleted in the meantime.`)
  }

  async function requireDatasets(
    account_id: string,
    dataset_id: string,
    base_model_id: string,
    { evaluation_config, method_options, training_config }: ResolvedConfig,
    signal?: AbortSignal,
  ): Promise<void> {
    const { value, source } = training_config.max_length
    for (const id of [dataset_id, evaluation_config.validation_dataset_id.value]) {
      if (!id) continue
      await datasets.ready(account_id, id)
      requirePictureReader(hub.get(base_model_id), await datasets.get(account_id, id))
      const max_length = source === 'request' ? value : undefined
      await datasets.requireLearnable(account_id, id, base_model_id, max_length, signal)
    }
    const rated = method_options.objective.value === 'kto'
    // Held-out answers are compared with those that are learned, too.
    if (rated) await datasets.requireOtherAnswers(account_id, dataset_id)
    const split = evaluation_config.validation_split.value
    if (split) requireSplittable(await datasets.get(account_id, dataset_id), split, rated)
  }

  return {
    resolvedConfig: async (by, model_id, config) => (await pendingWeights.resolveStart(by, model_id, config)).resolved,

    watchTrainingSetup: pendingWeights.watchTrainingSetup,

    async create(by, { model_id, dataset_id, config, evaluation, name, description, metadata, openai, traceparent }) {
      const { account_id } = by
      if (evaluation !== undefined) await evaluations.require(account_id, evaluation)
      const start = await pendingWeights.resolveStart(by, model_id, config)
      const { resolved } = start
      await requireFreeDisk(dataDir, min_free_mb)
      await requireDatasets(account_id, dataset_id, start.base_model_id, resolved)
      if (evaluation !== undefined) {
        const { id, category } = hub.get(start.base_model_id)
        await evaluations.require(account_id, evaluation, { id, pictures: category === 'multimodal' })
      }
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
        if (start.from_model) await requireModel(trx, account_id, model_id)
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
      return toResponse(await requireJob(account_id, id))
    },

    async estimate(account_id, { model_id, dataset_id, config }, signal) {
      const startingModel = await models.startingModel(account_id, model_id)
      const resolved = resolveLocalConfig({ hub, parse_control_tokens }, config, startingModel)
      await requireDatasets(account_id, dataset_id, startingModel.base_model_id, resolved, signal)
      const found = await estimator.estimate(
        { account_id, signal },
        await specs.ofTrial({ account_id, model_id, dataset_id, config: resolved, threads }),
      )
      const { currency, training_per_million_tokens } = hub.get(startingModel.base_model_id).pricing
      const price =
        found.tokens === null ? null : { amount: (found.tokens / 1e6) * training_per_million_tokens, currency }
      return { ...found, price, resolved_config: resolved }
    },

    async list(account_id, query) {
      const last = query.after ? await requireJob(account_id, query.after) : undefined
      return pageOf(await toResponses(await store.listJobs(db, account_id, query, last)), query.limit)
    },

    label: (by, id, labels) =>
      change(
        by,
        'job.changed',
        id,
        async (trx) => {
          const columns = labelColumns(labels)
          if (Object.keys(columns).length > 0) await store.updateJob(trx, id, columns)
          return Object.keys(columns).length > 0
        },
        () => {},
      ),

    get: async (account_id, id) => toResponse(await requireJob(account_id, id)),

    cancel: (by, id) =>
      change(
        by,
        'job.cancelled',
        id,
        async (trx, job) => {
          if (job.status === 'cancelled') return false
          if (ended.has(job.status))
            throw new ApiError(
              'job_not_cancellable',
              `The job is ${job.status}; only a queued or running job can be cancelled.`,
              {
                details: { status: job.status },
              },
            )
          const time = now()
          await store.updateJob(trx, id, {
            status: 'cancelled',
            paused: 0,
            estimated_completion: null,
            finished_at: time,
          })
          await meter.end(trx, id, 'cancelled', time)
          await store.appendEvents(trx, id, [statusEvent('cancelled', 'The job was cancelled.')], time)
          await recordEvent(
            trx,
            job.account_id,
            'training.cancelled',
            { job_id: id, model_id: job.model_id, dataset_id: job.dataset_id },
            time,
          )
          await queue.cancel(trx, store.queueKind, id)
          return true
        },
        () => stopRequests.abort(id, 'cancel' satisfies StopRequest),
      ),

    pause: (by, id) =>
      change(
        by,
        'job.paused',
        id,
        async (trx, job) => {
          if (ended.has(job.status))
            throw new ApiError(
              'job_not_pausable',
              `The job is ${job.status}; only a queued or running job can be paused.`,
              { details: { status: job.status } },
            )
          if (job.paused) return false
          await store.updateJob(trx, id, { paused: 1 })
          const message =
            job.status === 'queued' ? 'The job is paused.' : 'The job is pausing; its progress is being saved.'
          await store.appendEvents(
            trx,
            id,
            [statusEvent(statusOf({ ...job, paused: 1 }), message, { paused: true })],
            now(),
          )
          if (job.status === 'queued') await queue.cancel(trx, store.queueKind, id)
          return true
        },
        () => stopRequests.abort(id, 'pause' satisfies StopRequest),
      ),

    resume: (by, id) =>
      change(
        by,
        'job.resumed',
        id,
        async (trx, job) => {
          if (!job.paused)
            throw new ApiError('job_not_resumable', `The job is ${job.status} and not paused.`, {
              details: { status: job.status },
            })
          await store.updateJob(trx, id, { paused: 0 })
          await store.appendEvents(trx, id, [statusEvent(job.status, 'The job resumes.', { paused: false })], now())
          // If its trainer is still stopping, the worker requeues the job afterwards.
          if (job.status === 'queued') await pendingWeights.enqueue(trx, id, job.account_id)
          return true
        },
        () => queue.wake(),
      ),

    async delete(by, id) {
      await db.transaction().execute(async (trx) => {
        const job = await requireJob(by.account_id, id, trx)
        if (!ended.has(job.status))
          throw new ApiError('in_use', `The job is ${statusOf(job)}. Cancel it, then delete it.`, {
            details: { status: statusOf(job) },
          })
        await store.deleteJob(trx, id, now())
        await recordAuditEntry(trx, by, 'job.deleted', id, { name: job.name }, now())
      })
      await artifacts.remove(runsKey(id))
      return { id, deleted: true }
    },

    ...createJobHistory({ db, datasets, models, artifacts, requireJob }),

    async events(account_id, id, after, signal) {
      const job = await requireJob(account_id, id)
      const hasEnded = async () => ended.has((await store.findJobUnscoped(db, job.id))?.status ?? 'failed')
      return follow<JobEventType>(
        { db, events: store.jobEvents, notifier: changes, keepalive_ms, ended: hasEnded },
        job.id,
        after,
        signal,
      )
    },

    async settleRunningClocks() {
      await db.transaction().execute(async (trx) => {
        // Another server may train it.
        for (const job of await store.jobsWithRunningClock(trx))
          if (!(await queue.isLeased(trx, store.queueKind, job.id))) await settleClock(trx, job)
      })
    },

    async sweep() {
      await orphans.removeEnded('runs', async (id) => {
        const status = (await store.findJobUnscoped(db, id))?.status
        return status === 'completed' || status === 'cancelled'
      })
    },

    async removeExpiredRuns(time) {
      await removeExpiredRuns(db, dataDir, time)
    },
  }
}

/** Throws invalid_request if a validation split leaves too few of a dataset's rows to learn from. */
function requireSplittable({ id, rows }: Pick<Dataset, 'id' | 'rows'>, split: number, rated: boolean): void {
  // As `hold_out` of trainer/data/dataset.py.
  const learned = rows - Math.min(Math.max(1, Math.round(rows * split)), rows - 1)
  const refuse = (reason: string, rest: string) => {
    throw new ApiError(
      'invalid_request',
      `'config.evaluation_config.validation_split': '${id}' has ${reason}. ${rest}`,
      {
        details: { field: 'config.evaluation_config.validation_split' },
      },
    )
  }
  if (rows < 2) refuse('one row, and a split needs at least two', 'Add rows, or leave the split out.')
  if (rated && learned < 2)
    refuse(
      `${rows} rows, and the split leaves one to learn from: the objective 'kto' compares each answer with another`,
      'Add rows, or take a smaller split.',
    )
}
