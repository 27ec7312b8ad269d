// Records what a trainer reports, but for its result and its error. Every write asserts the lease, so a worker that
// lost it changes nothing.
import type { Logger } from 'pino'
import type { Trx } from '../../platform/db/open.ts'
import { type Claim, createLeaseWrites, type LeaseWrites } from '../../platform/queue/queue.ts'
import type { AbortSignals } from '../../platform/queue/worker.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import { readResolvedConfig } from '../models/index.ts'
import { publishCheckpoints } from './checkpoints.ts'
import type { Report, StopRequest } from './host.ts'
import type { AttemptObserver } from './observe.ts'
import { type AttemptContext, noRoom, pauseForRoom } from './outcomes.ts'
import { createRepeatFilter } from './reported.ts'
import { HeldOut } from './result.ts'
import * as store from './store.ts'
import type { Tracking } from './tracking.ts'
import { recordTrainerEvent } from './trainer-events.ts'

interface Options {
  context: AttemptContext
  stopRequests: Pick<AbortSignals, 'abort'>
  artifacts: Artifacts
  /** Sends a job's loss curve to the operator's tracker. */
  track: Tracking
  log: Logger
  now(): number
}

interface Recorder {
  /** The writes of the attempt, in order. */
  writes: LeaseWrites
  report: Report
  /** Resolves when all that the trainer reported is recorded. */
  ended(): Promise<void>
}

export type CreateRecorder = (claim: Claim, job: store.JobRow, observer: AttemptObserver) => Recorder

export const createRecorders =
  ({ context, stopRequests, artifacts, track, log, now }: Options): CreateRecorder =>
  (claim, job, observer) => {
    const writes = createLeaseWrites(context, claim)
    const tracked = track(job, readResolvedConfig(job.resolved_config_json))
    const repeats = createRepeatFilter(job.id)
    const record = (event: TrainerEvent, attempt: number, within?: (trx: Trx) => Promise<void>) =>
      writes.add(async (trx) => {
        const fresh = await repeats.fresh(trx, event)
        if (fresh) await recordTrainerEvent(trx, job.id, attempt, fresh, now())
        if (event.type === 'checkpoint') await pauseWithoutRoom(trx)
        await within?.(trx)
      })
    async function pauseWithoutRoom(trx: Trx) {
      const full = await noRoom(context, trx, job.account_id, 0)
      if (!full || (await store.findJobUnscoped(trx, job.id))?.paused) return
      await pauseForRoom(trx, job, full, now())
      stopRequests.abort(job.id, 'pause' satisfies StopRequest)
    }
    const checkpoints = publishCheckpoints({ db: context.db, artifacts, log, job_id: job.id, record })
    return {
      writes,
      report(event, attempt = claim.attempt, within) {
        if (event.type === 'held_out') {
          const heldOut = HeldOut.safeParse(event.data)
          if (!heldOut.success) log.warn({ ...observer.log_fields, err: heldOut.error }, 'held-out rows cannot be read')
          const rows_json = JSON.stringify(heldOut.data?.rows ?? [])
          writes.add(async (trx) => {
            await store.saveHeldOut(trx, { job_id: job.id, rows_json })
            await within?.(trx)
          })
        } else {
          if (event.type === 'checkpoint' && artifacts.shared) checkpoints.add({ event, attempt, within })
          else record(event, attempt, within)
          tracked.record(event)
        }
      },
      async ended() {
        await checkpoints.ended()
        await writes.ended()
        tracked.end()
        observer.trainerEnded()
      },
    }
  }
