import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import type { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'
import type {
  CreateJob,
  Job,
  JobEstimate,
  JobEvent,
  JobEventType,
  JobQuery,
  ResolvedConfig,
} from '../../contract/tuning.ts'
import { newId } from '../../lib/ids.ts'
import type { Datasets } from '../datasets/service.ts'
import type { Db, Trx } from '../db/open.ts'
import { type By, recordAct } from '../events/audit.ts'
import { createNews, follow, statusEvent } from '../events/event-streams.ts'
import { recordEvent } from '../events/outbox.ts'
import type { Downloads } from '../hub/downloads.ts'
import type { Hub } from '../hub/service.ts'
import { type Queue, requireTurn } from '../queue/queue.ts'
import { requireFreeDisk } from '../storage/durable-files.ts'
import { createAwaiting, queueKind, resolveHere } from './awaiting.ts'
import type { Estimator } from './estimate.ts'
import { forecast } from './forecast.ts'
import { createJobHistory, type JobHistory } from './history.ts'
import { type JobMeter, settleClock } from './metering.ts'
import { type ChangeLabels, labelColumns, nameOfJob } from './models/labels.ts'
import { sourceColumns } from './models/lineage.ts'
import { originOf } from './models/starting-model.ts'
import { trialSpec } from './spec.ts'
import * as store from './store.ts'
import { statusOf, toWire } from './store.ts'
import type { Asked } from './work.ts'

const ended = new Set(['completed', 'failed', 'cancelled'])

export interface Tuning extends JobHistory {
  create(by: By, request: z.output<typeof CreateJob>): Promise<Job>
  /** What a job would take. Throws what `create` does. */
  estimate(account_id: string, request: z.output<typeof CreateJob>): Promise<JobEstimate>
  list(account_id: string, query: JobQuery): Promise<{ items: Job[]; has_more: boolean }>
  get(account_id: string, id: string): Promise<Job>
  /** Changes its name, description or metadata. */
  label: ChangeLabels<Job>
  cancel(by: By, id: string): Promise<Job>
  pause(by: By, id: string): Promise<Job>
  resume(by: By, id: string): Promise<Job>
  /**
   * The events after `seq`, then new ones as they come, until the job has ended or the signal aborts; null is a sign of
   * life.
   */
  events(account_id: string, id: string, after: number, signal: AbortSignal): Promise<AsyncGenerator<JobEvent | null>>
  changed(job_id: string): void
  asked(job_id: string): AbortSignal
  forget(job_id: string): void
  /**
   * Settles how long trainers ran that an earlier server had started. Only for the process that owns the database
   * alone.
   */
  takeOverAll(): Promise<void>
  /**
   * Removes what a crash left behind: half-written models, models whose job never came to say so, folders of runs that
   * have ended.
   */
  sweep(): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  hub: Hub
  downloads: Downloads
  datasets: Datasets
  estimator: Estimator
  meter: JobMeter
  dataDir: string
  threads: number
  min_free_mb: number
  max_waiting: number
  parse_control_tokens: boolean
  keepalive_ms?: number
  now?: () => number
}

export function createTuning(options: Options): Tuning {
  const {
    db,
    queue,
    hub,
    downloads,
    datasets,
    estimator,
    meter,
    dataDir,
    threads,
    min_free_mb,
    max_waiting,
    keepalive_ms = 15_000,
    now = Date.now,
  } = options
  const { parse_control_tokens } = options
  const news = createNews()
  const wishes = new Map<string, AbortController>()
  const awaiting = createAwaiting({
    db,
    queue,
    hub,
    downloads,
    meter,
    dataDir,
    parse_control_tokens,
    now,
    changed: (id) => void news.emit(id),
  })

  async function row(account_id: string, id: string, from: Db | Trx = db): Promise<store.JobRow> {
    const job = await store.findJob(from, account_id, id)
    if (!job) throw new ApiError('job_not_found', `There is no job '${id}'.`)
    return job
  }

  /** Jobs as they are told, those that wait with their place. */
  async function shown(jobs: store.JobRow[]): Promise<Job[]> {
    const places = jobs.some((job) => statusOf(job) === 'queued')
      ? await forecast(db, queue, queueKind, now())
      : undefined
    return jobs.map((job) => toWire(job, places?.get(job.id)))
  }
  const one = async (job: store.JobRow) => (await shown([job]))[0]!

  /**
   * Changes a job in one transaction, then tells those whom it concerns. `write` says whether there was anything to
   * change.
   */
  async function change(
    by: By,
    action: string,
    id: string,
    write: (trx: Trx, job: store.JobRow) => Promise<boolean>,
    tell: () => void,
  ): Promise<Job> {
    const { account_id } = by
    await db.transaction().execute(async (trx) => {
      if (await write(trx, await row(account_id, id, trx))) await recordAct(trx, by, action, id, {}, now())
    })
    tell()
    news.emit(id)
    return one(await row(account_id, id))
  }

  function wish(job_id: string): AbortController {
    const controller = wishes.get(job_id) ?? new AbortController()
    wishes.set(job_id, controller)
    return controller
  }

  /** In the transaction that makes a job need it, so that it cannot be deleted in between. */
  async function requireModel(trx: Trx, account_id: string, id: string): Promise<void> {
    if (!(await store.findModel(trx, account_id, id)))
      throw new ApiError('model_not_found', `The model '${id}' was deleted in the meantime.`)
  }

  async function rowsRead(
    account_id: string,
    dataset_id: string,
    { evaluation_config }: ResolvedConfig,
  ): Promise<void> {
    await datasets.ready(account_id, dataset_id)
    if (evaluation_config.validation_dataset_id.value)
      await datasets.ready(account_id, evaluation_config.validation_dataset_id.value)
  }

  datasets.onNeeded(async (trx, dataset_id) => {
    const job = await store.liveJobOfDataset(trx, dataset_id)
    return job && `the job ${job.id}`
  })

  return {
    async create(by, { model_id, dataset_id, config, name, description, metadata }) {
      const { account_id } = by
      const start = await awaiting.startOf(by, model_id, config)
      const { resolved } = start
      await requireFreeDisk(dataDir, min_free_mb)
      await rowsRead(account_id, dataset_id, resolved)
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
        await datasets.forTraining(trx, account_id, dataset_id)
        requireTurn(await store.waitingJobs(trx, account_id), max_waiting, 'jobs')
        if (start.from_model) await requireModel(trx, account_id, model_id)
        if (validation_dataset_id) await datasets.forTraining(trx, account_id, validation_dataset_id)
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
          created_at,
          started_at: null,
          finished_at: null,
        })
        const event = start.awaits
          ? await awaiting.add(trx, by, id, start.awaits)
          : statusEvent('queued', 'The job waits for its turn.')
        await store.appendEvents(trx, id, [event], created_at)
        await awaiting.enqueue(trx, id)
        await recordAct(trx, by, 'job.created', id, { model_id, dataset_id }, created_at)
      })
      if (start.awaits) await awaiting.started(start.awaits)
      queue.wake()
      return one(await row(account_id, id))
    },

    async estimate(account_id, { model_id, dataset_id, config }) {
      const origin = await originOf(db, hub, dataDir, account_id, model_id)
      const resolved = resolveHere({ hub, parse_control_tokens }, config, origin)
      await rowsRead(account_id, dataset_id, resolved)
      const found = await estimator.estimate(
        await trialSpec(
          { db, hub, datasets, dataDir },
          { account_id, model_id, dataset_id, config: resolved, threads },
        ),
      )
      const { currency, training_per_million_tokens } = hub.get(origin.base_model_id).pricing
      const price =
        found.tokens === null ? null : { amount: (found.tokens / 1e6) * training_per_million_tokens, currency }
      return { ...found, price, resolved_config: resolved }
    },

    async list(account_id, query) {
      const rows = await store.listJobs(
        db,
        account_id,
        query,
        query.after ? await row(account_id, query.after) : undefined,
      )
      return { items: await shown(rows.slice(0, query.limit)), has_more: rows.length > query.limit }
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

    get: async (account_id, id) => one(await row(account_id, id)),

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
          await queue.cancel(trx, queueKind, id)
          return true
        },
        () => wishes.get(id)?.abort('cancel' satisfies Asked),
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
            job.status === 'queued' ? 'The job is paused.' : 'The job is to pause; its progress is being saved.'
          await store.appendEvents(
            trx,
            id,
            [statusEvent(statusOf({ ...job, paused: 1 }), message, { paused: true })],
            now(),
          )
          if (job.status === 'queued') await queue.cancel(trx, queueKind, id)
          return true
        },
        () => wishes.get(id)?.abort('pause' satisfies Asked),
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
          await store.appendEvents(trx, id, [statusEvent(job.status, 'The job is to go on.', { paused: false })], now())
          // One whose trainer is still stopping goes back to the queue when it has.
          if (job.status === 'queued') await awaiting.enqueue(trx, id)
          return true
        },
        () => queue.wake(),
      ),

    ...createJobHistory({ db, datasets, dataDir, row }),

    async events(account_id, id, after, signal) {
      const job = await row(account_id, id)
      const over = async () => ended.has((await store.jobById(db, job.id))?.status ?? 'failed')
      return follow<JobEventType>({ db, log: store.log, news, keepalive_ms, ended: over }, job.id, after, signal)
    },

    changed: (job_id) => void news.emit(job_id),
    asked: (job_id) => wish(job_id).signal,
    forget: (job_id) => void wishes.delete(job_id),

    async takeOverAll() {
      await db.transaction().execute(async (trx) => {
        for (const job of await store.withRunningClock(trx)) await settleClock(trx, job)
      })
    },

    async sweep() {
      const folder = path.join(dataDir, 'models')
      for (const name of await readdir(folder).catch(() => []))
        if (!(await store.modelExists(db, name))) await rm(path.join(folder, name), { recursive: true, force: true })
      const runs = path.join(dataDir, 'runs')
      for (const name of await readdir(runs).catch(() => [])) {
        const status = (await store.jobById(db, name))?.status
        if (status === undefined || status === 'completed' || status === 'cancelled')
          await rm(path.join(runs, name), { recursive: true, force: true })
      }
    },
  }
}
