import type { Logger } from 'pino'
import type { Labels } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Job, JobEvent, JobEventType, JobQuery } from '../../../contract/fine-tuning.ts'
import type { Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { type ChangeNotifier, follow, statusEvent } from '../../platform/events/event-streams.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import type { AbortSignals } from '../../platform/queue/worker.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Orphans } from '../../platform/storage/orphans.ts'
import type { EventBus } from '../events.ts'
import type { Downloads } from '../hub/index.ts'
import { labelColumns } from '../models/index.ts'
import { JobCreation, type JobCreationOptions } from './creation.ts'
import { createJobHistory, type JobHistory } from './history.ts'
import type { StopRequest } from './host.ts'
import { type JobMeter, settleClock } from './metering.ts'
import { PendingWeights } from './pending-weights.ts'
import type { Turns } from './queue-estimate.ts'
import { createJobResponses, type JobResponses, requireJob } from './responses.ts'
import { removeExpiredRuns, runsKey } from './run-files.ts'
import * as store from './store.ts'
import { statusOf } from './store.ts'

const ended = new Set(['completed', 'failed', 'cancelled'])

interface JobsOptions extends Omit<JobCreationOptions, 'pendingWeights' | 'responses'> {
  events: EventBus
  /** Wakes readers of a job's events. */
  changes: ChangeNotifier
  /** Stops a job's trainer, here or on another server. */
  stopRequests: Pick<AbortSignals, 'abort'>
  downloads: Downloads
  meter: JobMeter
  log: Logger
  artifacts: Artifacts
  orphans: Orphans
  turns: Turns
}

const keepalive_ms = 15_000

/** The life of jobs. */
export class Jobs {
  readonly creation: JobCreation
  readonly history: JobHistory
  private readonly options: JobsOptions
  private readonly pendingWeights: PendingWeights
  private readonly responses: JobResponses

  constructor(options: JobsOptions) {
    this.options = options
    const { db, queue, events, changes, hub, downloads, datasets, models, evaluations, specs, estimator, devices } =
      options
    const { meter, trainingSetup, log, artifacts, dataDir, threads, min_free_mb, quota, max_waiting, turns } = options
    const { parse_control_tokens, now } = options
    const responses = createJobResponses({ db, queue, trainingSetup, devicesBusy: () => devices?.busy(), turns, now })
    const pendingWeights = new PendingWeights({
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
    this.responses = responses
    this.pendingWeights = pendingWeights
    this.creation = new JobCreation({
      db,
      queue,
      hub,
      datasets,
      models,
      evaluations,
      specs,
      estimator,
      devices,
      pendingWeights,
      responses,
      trainingSetup,
      dataDir,
      threads,
      min_free_mb,
      quota,
      max_waiting,
      parse_control_tokens,
      now,
    })
    const requireRow = (account_id: string, id: string) => requireJob(db, account_id, id)
    this.history = createJobHistory({ db, datasets, models, artifacts, requireJob: requireRow })
  }

  async list(account_id: string, query: JobQuery): Promise<Page<Job>> {
    const last = query.after ? await requireJob(this.options.db, account_id, query.after) : undefined
    return pageOf(
      await this.responses.toResponses(await store.listJobs(this.options.db, account_id, query, last)),
      query.limit,
    )
  }

  async get(account_id: string, id: string): Promise<Job> {
    return this.responses.toResponse(await requireJob(this.options.db, account_id, id))
  }

  cancel(by: AccountActor, id: string): Promise<Job> {
    const { queue, stopRequests, meter, now } = this.options
    return this.change(
      by,
      'job.cancelled',
      id,
      async (trx, job) => {
        if (job.status === 'cancelled') return false
        if (ended.has(job.status))
          throw new ApiError(
            'job_not_cancellable',
            `The job is ${job.status}; only a queued or running job can be cancelled.`,
            { details: { status: job.status } },
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
    )
  }

  pause(by: AccountActor, id: string): Promise<Job> {
    const { queue, stopRequests, now } = this.options
    return this.change(
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
    )
  }

  resume(by: AccountActor, id: string): Promise<Job> {
    const { queue, now } = this.options
    return this.change(
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
        if (job.status === 'queued') await this.pendingWeights.enqueue(trx, id, job.account_id)
        return true
      },
      () => queue.wake(),
    )
  }

  /** Deletes a job that has ended, but for what its models came from. Throws job_not_found, in_use. */
  async delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }> {
    const { db, artifacts, now } = this.options
    await db.transaction().execute(async (trx) => {
      const job = await requireJob(trx, by.account_id, id)
      if (!ended.has(job.status))
        throw new ApiError('in_use', `The job is ${statusOf(job)}. Cancel it, then delete it.`, {
          details: { status: statusOf(job) },
        })
      await store.deleteJob(trx, id, now())
      await recordAuditEntry(trx, by, 'job.deleted', id, { name: job.name }, now())
    })
    await artifacts.remove(runsKey(id))
    return { id, deleted: true }
  }

  /**
   * The events after `seq`, then new ones as they come, until the job ends or the signal aborts; null is a keepalive.
   */
  async events(
    account_id: string,
    id: string,
    after: number,
    signal: AbortSignal,
  ): Promise<AsyncGenerator<JobEvent | null>> {
    const { db, changes } = this.options
    const job = await requireJob(this.options.db, account_id, id)
    const hasEnded = async () => ended.has((await store.findJobUnscoped(db, job.id))?.status ?? 'failed')
    return follow<JobEventType>(
      { db, events: store.jobEvents, notifier: changes, keepalive_ms, ended: hasEnded },
      job.id,
      after,
      signal,
    )
  }

  /**
   * Settles the run time of trainers that an earlier process of this server started, whose leases have been expired.
   */
  async settleRunningClocks(): Promise<void> {
    const { db, queue } = this.options
    await db.transaction().execute(async (trx) => {
      // Another server may train it.
      for (const job of await store.jobsWithRunningClock(trx))
        if (!(await queue.isLeased(trx, store.queueKind, job.id))) await settleClock(trx, job)
    })
  }

  /** Removes the run folders of ended jobs that a crash has left. */
  async sweep(): Promise<void> {
    const { db, orphans } = this.options
    await orphans.removeEnded('runs', async (id) => {
      const status = (await store.findJobUnscoped(db, id))?.status
      return status === 'completed' || status === 'cancelled'
    })
  }

  /** Removes the run folders of jobs that ended 30 days before `now`: the logs of failed and cancelled ones. */
  async removeExpiredRuns(time: number): Promise<void> {
    const { db, dataDir } = this.options
    await removeExpiredRuns(db, dataDir, time)
  }

  /** Makes waiting jobs follow set-up, and begin after it. Call it once, when work starts. */
  watchTrainingSetup(): Promise<void> {
    return this.pendingWeights.watchTrainingSetup()
  }

  /** Changes its name, description or metadata. */
  label(by: AccountActor, id: string, labels: Labels): Promise<Job> {
    const columns = labelColumns(labels)
    const changes = Object.keys(columns).length > 0
    const write = async (trx: Trx) => {
      if (changes) await store.updateJob(trx, id, columns)
      return changes
    }
    return this.change(by, 'job.changed', id, write, () => {})
  }

  /**
   * Changes a job in one transaction with its audit entry, then notifies workers and readers. `write` returns whether
   * it changed anything.
   */
  private async change(
    by: AccountActor,
    action: string,
    id: string,
    write: (trx: Trx, job: store.JobRow) => Promise<boolean>,
    onCommitted: () => void,
  ): Promise<Job> {
    const { db, changes, now } = this.options
    const { account_id } = by
    await db.transaction().execute(async (trx) => {
      if (await write(trx, await requireJob(trx, account_id, id)))
        await recordAuditEntry(trx, by, action, id, {}, now())
    })
    onCommitted()
    this.responses.outdated()
    changes.notify(id)
    return this.responses.toResponse(await requireJob(this.options.db, account_id, id))
  }
}
