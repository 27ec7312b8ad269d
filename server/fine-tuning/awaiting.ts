// Jobs on a base whose weights are being downloaded: queued, but no work of the queue until the weights are here.
import type { Download } from '../../contract/hub.ts'
import type { JobConfig } from '../../contract/job-config.ts'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import type { Db, Trx } from '../db/open.ts'
import type { By } from '../events/audit.ts'
import type { NewEvent } from '../events/event-streams.ts'
import type { Downloads } from '../hub/downloads.ts'
import type { Hub } from '../hub/service.ts'
import { frozenText } from '../hub/text.ts'
import type { Queue } from '../queue/queue.ts'
import { type Expected, resolveConfig } from './defaults.ts'
import type { JobMeter } from './metering.ts'
import { type Origin, originOf } from './models/starting-model.ts'
import { endAsFailed } from './outcomes.ts'
import * as store from './store.ts'

export const queueKind = 'tuning'

/** What a new job starts from. */
export interface Start {
  /** Every value in force, as far as it is known. */
  resolved: ResolvedConfig
  base_model_id: string
  /** The base whose weights it has to wait for. */
  awaits?: string
  /** Whether it goes on from a model of the account. */
  from_model: boolean
}

export interface Awaiting {
  /** Throws model_not_found, model_not_available, storage_full, and what `resolveConfig` throws. */
  startOf(by: By, model_id: string, config: JobConfig): Promise<Start>
  /**
   * Lets a new or resumed job wait for its turn, or for its weights. Call `started` after the transaction has
   * committed.
   */
  enqueue(trx: Trx, job_id: string): Promise<void>
  /** Has a new job wait for the weights of a base. */
  add(trx: Trx, by: By, job_id: string, model_id: string): Promise<NewEvent>
  started(model_id: string): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  hub: Hub
  downloads: Downloads
  meter: JobMeter
  dataDir: string
  parse_control_tokens: boolean
  /** Tells readers of a job's events that there are more. */
  changed(job_id: string): void
  now(): number
}

/** Every value in force of a job whose weights are here. */
export const resolveHere = (
  { hub, parse_control_tokens }: { hub: Hub; parse_control_tokens: boolean },
  config: JobConfig,
  origin: Origin,
): ResolvedConfig => ({
  ...resolveConfig(config, origin, hub.linearModules(origin.base)),
  tokenizer: frozenText(origin.base.hf),
  parse_control_tokens,
})

export function createAwaiting({
  db,
  queue,
  hub,
  downloads,
  meter,
  dataDir,
  parse_control_tokens,
  changed,
  now,
}: Options): Awaiting {
  const settings = { hub, parse_control_tokens }
  /** The tenth of each download that was told last. */
  const told = new Map<string, number>()

  async function resolveNow(trx: Trx, job: store.JobRow): Promise<ResolvedConfig> {
    const origin = await originOf(trx, hub, dataDir, job.account_id, job.model_id)
    return resolveHere(settings, JSON.parse(job.config_json) as JobConfig, origin)
  }

  /** The weights of a job are here. */
  async function release(trx: Trx, job: store.JobRow): Promise<void> {
    let resolved: ResolvedConfig
    try {
      resolved = await resolveNow(trx, job)
    } catch (error) {
      // The weights turned out not to have a layer that the job names, or to be another kind of model.
      const { code = 'internal', message } = error as Error & { code?: string }
      return await endAsFailed(trx, meter, job, { code, message }, now())
    }
    await store.updateJob(trx, job.id, { resolved_config_json: JSON.stringify(resolved) })
    const message = `The weights of ${job.model_id} are here; the job waits for its turn.`
    await store.appendEvents(trx, job.id, [{ type: 'status', message, data: { status: 'queued' } }], now())
    if (!job.paused) await queue.enqueue(trx, queueKind, job.id)
  }

  /** What the waiting jobs are told of a download that goes on; undefined where there is nothing new. */
  function news(model_id: string, { status, progress, bytes, total_bytes, error }: Download): NewEvent | undefined {
    const step = status === 'converting' ? 11 : Math.floor(progress * 10)
    if (step <= (told.get(model_id) ?? -1)) return undefined
    told.set(model_id, step)
    const size = total_bytes === null ? '' : ` of ${Math.ceil(total_bytes / 1e6)} MB`
    const message =
      status === 'converting'
        ? `The weights of ${model_id} are being converted.`
        : `The weights of ${model_id} are being downloaded: ${step * 10}%${size}.`
    return { type: 'progress', message, data: { download: { status, progress, bytes, total_bytes, error } } }
  }

  downloads.onChange(async (trx, model_id, download) => {
    const jobs = await store.awaiting(trx, model_id)
    const live = ['queued', 'downloading', 'converting'].includes(download.status)
    const event = live ? news(model_id, download) : undefined
    for (const job of jobs) {
      if (event) await store.appendEvents(trx, job.id, [event], now())
      if (live) continue
      if (download.status === 'completed') await release(trx, job)
      else {
        const why = download.status === 'cancelled' ? 'it was cancelled.' : download.error?.message
        await endAsFailed(
          trx,
          meter,
          job,
          { code: 'download_failed', message: `The download of the weights of ${model_id} failed: ${why}` },
          now(),
        )
      }
    }
    if (!live) {
      told.delete(model_id)
      await store.removeAwaiting(trx, model_id)
    }
    return () => {
      for (const job of jobs) changed(job.id)
      queue.wake()
    }
  })

  return {
    async startOf(by, model_id, config) {
      const tuned = await store.findModel(db, by.account_id, model_id)
      const expected = hub.downloadable(model_id)
      if (tuned || expected?.kind !== 'text' || !(await downloads.needed(by, model_id))) {
        const origin = await originOf(db, hub, dataDir, by.account_id, model_id)
        return {
          resolved: resolveHere(settings, config, origin),
          base_model_id: origin.base_model_id,
          from_model: tuned !== undefined,
        }
      }
      const base: Expected['base'] = { id: model_id, ...expected }
      return {
        resolved: resolveConfig(config, { base }, undefined),
        base_model_id: model_id,
        awaits: model_id,
        from_model: false,
      }
    },

    async add(trx, by, job_id, model_id) {
      await downloads.request(trx, by, model_id)
      await store.addAwaiting(trx, job_id, model_id)
      return {
        type: 'status',
        message: `The job waits for the weights of ${model_id}, which are being downloaded.`,
        data: { status: 'queued' },
      }
    },

    async enqueue(trx, job_id) {
      if (!(await store.isAwaiting(trx, job_id))) await queue.enqueue(trx, queueKind, job_id)
    },

    started: downloads.started,
  }
}
