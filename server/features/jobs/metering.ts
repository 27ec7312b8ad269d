// Usage of a job, however it ends: how long its trainers ran and how many tokens they trained on.
import type { Trx } from '../../platform/db/open.ts'
import type { UsageRow } from '../usage/index.ts'
import * as store from './store.ts'

export interface JobMeter {
  /** Adds the usage row in the transaction that ends the job; no row for a job that never ran. */
  end(trx: Trx, job_id: string, finish: 'complete' | 'failed' | 'cancelled', time: number): Promise<void>
}

interface Options {
  add(trx: Trx, row: UsageRow, at: number): Promise<void>
  /** Price of a million trained tokens. */
  price(base_model_id: string): number
}

export function createJobMeter({ add, price }: Options): JobMeter {
  return {
    async end(trx, job_id, finish, time) {
      await stopClock(trx, job_id, time)
      const job = (await store.findJobUnscoped(trx, job_id))!
      const { account_id, key_id, model_id, base_model_id, trained_tokens, ran_ms } = job
      if (ran_ms === 0) return
      const none = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0 }
      const cost = (trained_tokens / 1e6) * price(base_model_id)
      const row = {
        request_id: job_id,
        created_at: time,
        account_id,
        key_id,
        model: model_id,
        model_id,
        kind: 'training' as const,
        finish,
      }
      await add(trx, { ...row, ...none, trained_tokens, duration_ms: ran_ms, cost }, time)
    },
  }
}

/** Records that a trainer starts now. */
export async function startClock(trx: Trx, job: store.JobRow, time: number): Promise<void> {
  await settleClock(trx, job)
  await store.updateJob(trx, job.id, { running_since: time })
}

/** Settles the clock of a trainer that died with its server: it counts until its last event. */
export async function settleClock(trx: Trx, { id, ran_ms, running_since }: store.JobRow): Promise<void> {
  if (running_since === null) return
  const last_event_at = (await store.lastTrainerEventAt(trx, id)) ?? running_since
  await store.updateJob(trx, id, { ran_ms: ran_ms + Math.max(0, last_event_at - running_since), running_since: null })
}

/** Adds the time since the trainer started, if one is running. */
export async function stopClock(trx: Trx, job_id: string, time: number): Promise<void> {
  const { ran_ms, running_since } = (await store.findJobUnscoped(trx, job_id))!
  if (running_since !== null)
    await store.updateJob(trx, job_id, { ran_ms: ran_ms + Math.max(1, time - running_since), running_since: null })
}
