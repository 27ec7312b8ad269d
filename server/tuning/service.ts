import { EventEmitter } from 'node:events'
import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import type { z } from 'zod'
import type { ListQuery } from '../../contract/common.ts'
import { ApiError } from '../../contract/errors.ts'
import type { CreateJob, Job, JobEvent } from '../../contract/tuning.ts'
import type { Datasets } from '../datasets/service.ts'
import type { Db } from '../db/open.ts'
import type { Hub } from '../hub/service.ts'
import { newId } from '../ids.ts'
import type { Queue } from '../queue/queue.ts'
import { requireFreeDisk } from '../storage.ts'
import { resolveConfig } from './defaults.ts'
import { modelDir, modelFiles } from './paths.ts'
import * as store from './store.ts'

export const queueKind = 'tuning'

/** A finished job's result, as inference and deployments use it: an adapter on its base, or a whole model. */
export interface TunedModel {
  id: string
  kind: 'adapter' | 'model'
  base_model_id: string
  gguf: string
  created_at: number
}

export interface Tuning {
  create(account_id: string, request: z.output<typeof CreateJob>): Promise<Job>
  list(account_id: string, query: ListQuery): Promise<{ items: Job[]; has_more: boolean }>
  get(account_id: string, id: string): Promise<Job>
  cancel(account_id: string, id: string): Promise<Job>
  /** The events after `seq`, then new ones as they come, until the job has ended or the signal aborts; null is a sign of life. */
  events(account_id: string, id: string, after: number, signal: AbortSignal): Promise<AsyncGenerator<JobEvent | null>>
  model(account_id: string, id: string): Promise<TunedModel | undefined>
  models(account_id: string): Promise<TunedModel[]>
  changed(job_id: string): void
  cancelled(job_id: string): AbortSignal
  forget(job_id: string): void
  /** Removes what a crash left behind: half-written models, models whose job never came to say so, folders of runs that have ended. */
  sweep(): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  hub: Hub
  datasets: Datasets
  dataDir: string
  threads: number
  min_free_mb: number
  keepalive_ms?: number
  now?: () => number
}

const ended = new Set(['completed', 'failed', 'cancelled'])
const pageSize = 500

export function createTuning({ db, queue, hub, datasets, dataDir, threads, min_free_mb, keepalive_ms = 15_000, now = Date.now }: Options): Tuning {
  const news = new EventEmitter()
  news.setMaxListeners(0)
  const cancels = new Map<string, AbortController>()

  async function row(account_id: string, id: string) {
    const job = await store.findJob(db, account_id, id)
    if (!job) throw new ApiError('job_not_found', `There is no job '${id}'.`)
    return job
  }

  function cancelController(job_id: string): AbortController {
    const controller = cancels.get(job_id) ?? new AbortController()
    cancels.set(job_id, controller)
    return controller
  }

  datasets.onNeeded(async (trx, dataset_id) => {
    const job = await store.liveJobOfDataset(trx, dataset_id)
    return job && `the job ${job.id}`
  })

  async function* follow(job: store.JobRow, after: number, signal: AbortSignal): AsyncGenerator<JobEvent | null> {
    let seq = after
    while (!signal.aborted) {
      // Listening begins before reading, so that nothing that is written in between is missed.
      const more = nextNews(job.id, signal)
      const status = (await store.jobById(db, job.id))?.status
      const events = await store.eventsAfter(db, job.id, seq, pageSize)
      for (const event of events) yield eventToWire(event)
      seq = events.at(-1)?.seq ?? seq
      if (events.length === pageSize) continue
      if (!status || ended.has(status)) return
      if ((await more) === 'keepalive') yield null
    }
  }

  function nextNews(job_id: string, signal: AbortSignal): Promise<'news' | 'keepalive'> {
    return new Promise((resolve) => {
      const done = (what: 'news' | 'keepalive') => {
        clearTimeout(timer)
        news.off(job_id, heard)
        signal.removeEventListener('abort', heard)
        resolve(what)
      }
      const heard = () => done('news')
      const timer = setTimeout(() => done('keepalive'), keepalive_ms)
      news.on(job_id, heard)
      signal.addEventListener('abort', heard)
    })
  }

  const toModel = (model: store.ModelRow): TunedModel => ({
    id: model.id,
    kind: model.kind,
    base_model_id: model.base_model_id,
    gguf: path.join(modelDir(dataDir, model.id), modelFiles[model.kind].gguf),
    created_at: model.created_at,
  })

  return {
    async create(account_id, { model_id, dataset_id, config }) {
      const base = hub.local(model_id)
      const resolved = resolveConfig(config, base, hub.linearModules(base))
      await requireFreeDisk(dataDir, min_free_mb)
      const id = newId('job')
      const created_at = now()
      await db.transaction().execute(async (trx) => {
        // Inside the transaction, so that the dataset cannot be deleted in between.
        await datasets.forTraining(trx, account_id, dataset_id)
        await store.insertJob(trx, {
          id,
          account_id,
          model_id,
          dataset_id,
          status: 'queued',
          progress: 0,
          current_epoch: 0,
          metrics_json: '{}',
          estimated_completion: null,
          config_json: JSON.stringify(config),
          resolved_config_json: JSON.stringify(resolved),
          threads,
          error_json: null,
          trained_tokens: 0,
          crashes: 0,
          model: null,
          created_at,
          started_at: null,
          finished_at: null,
        })
        await store.appendEvents(trx, id, [{ type: 'status', message: 'The job waits for its turn.', data: { status: 'queued' } }], created_at)
        await queue.enqueue(trx, queueKind, id)
      })
      queue.wake()
      return toWire(await row(account_id, id))
    },

    async list(account_id, { limit, after }) {
      const rows = await store.listJobs(db, account_id, limit, after ? await row(account_id, after) : undefined)
      return { items: rows.slice(0, limit).map(toWire), has_more: rows.length > limit }
    },

    get: async (account_id, id) => toWire(await row(account_id, id)),

    async cancel(account_id, id) {
      await db.transaction().execute(async (trx) => {
        const job = await store.findJob(trx, account_id, id)
        if (!job) throw new ApiError('job_not_found', `There is no job '${id}'.`)
        if (job.status === 'cancelled') return
        if (ended.has(job.status))
          throw new ApiError('job_not_cancellable', `The job is ${job.status}; only a queued or running job can be cancelled.`, {
            details: { status: job.status },
          })
        const time = now()
        await store.updateJob(trx, id, { status: 'cancelled', estimated_completion: null, finished_at: time })
        await store.appendEvents(trx, id, [{ type: 'status', message: 'The job was cancelled.', data: { status: 'cancelled' } }], time)
        await queue.cancel(trx, queueKind, id)
      })
      cancels.get(id)?.abort()
      news.emit(id)
      return toWire(await row(account_id, id))
    },

    async events(account_id, id, after, signal) {
      return follow(await row(account_id, id), after, signal)
    },

    async model(account_id, id) {
      const model = await store.findModel(db, account_id, id)
      return model && toModel(model)
    },

    models: async (account_id) => (await store.listModels(db, account_id)).map(toModel),

    changed: (job_id) => void news.emit(job_id),
    cancelled: (job_id) => cancelController(job_id).signal,
    forget: (job_id) => void cancels.delete(job_id),

    async sweep() {
      const folder = path.join(dataDir, 'models')
      for (const name of await readdir(folder).catch(() => []))
        if (!(await store.modelExists(db, name))) await rm(path.join(folder, name), { recursive: true, force: true })
      const runs = path.join(dataDir, 'runs')
      for (const name of await readdir(runs).catch(() => [])) {
        const status = (await store.jobById(db, name))?.status
        if (status === undefined || status === 'completed' || status === 'cancelled') await rm(path.join(runs, name), { recursive: true, force: true })
      }
    },
  }
}

const iso = (time: number | null) => (time === null ? null : new Date(time).toISOString())

const toWire = (job: store.JobRow): Job => ({
  id: job.id,
  status: job.status,
  model_id: job.model_id,
  dataset_id: job.dataset_id,
  progress: job.progress,
  current_epoch: job.current_epoch,
  metrics: JSON.parse(job.metrics_json),
  estimated_completion: iso(job.estimated_completion),
  created_at: new Date(job.created_at).toISOString(),
  started_at: iso(job.started_at),
  finished_at: iso(job.finished_at),
  error: job.error_json ? JSON.parse(job.error_json) : null,
  config: JSON.parse(job.config_json),
  resolved_config: JSON.parse(job.resolved_config_json),
  trained_tokens: job.trained_tokens,
  model: job.model,
})

const eventToWire = (event: store.EventRow): JobEvent => ({
  type: event.type,
  message: event.message,
  seq: event.seq,
  created_at: new Date(event.created_at).toISOString(),
  ...(event.data_json && { data: JSON.parse(event.data_json) }),
})
