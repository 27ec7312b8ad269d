// Durable queue in the database. An entry is enqueued in the caller's transaction and claimed in one statement, with a
// lease that heartbeats renew and an attempt number (fencing token): every write of a worker checks its attempt, so a
// worker that lost its lease can change nothing.
import { EventEmitter } from 'node:events'
import { sql } from 'kysely'
import { ApiError } from '../../contract/errors.ts'
import type { Notifications } from '../cluster/notifications.ts'
import { isPostgres } from '../db/dialect.ts'
import type { Db, Trx } from '../db/open.ts'
import { countRows } from '../db/page.ts'

export const lease_ms = 20_000

export interface Claim {
  id: number
  kind: string
  ref: string
  attempt: number
}

/** The claim's lease has passed to another attempt, or its entry has ended: the worker must stop and write nothing. */
export class LeaseLost extends Error {
  constructor(claim: Claim) {
    super(`attempt ${claim.attempt} at ${claim.kind} ${claim.ref} is no longer the current one`)
  }
}

export interface Queue {
  /** Adds an entry in the caller's transaction. Call `wake` after it has committed. */
  enqueue(trx: Trx, kind: string, ref: string): Promise<void>
  wake(): void
  /** Resolves at the next `wake`, after `wait_ms`, or when the signal aborts. */
  waitForWake(wait_ms: number, signal: AbortSignal): Promise<void>
  /** Leases the oldest due entry of this kind, waiting or with an expired lease, to `worker`; undefined if none. */
  claim(kind: string, worker: string): Promise<Claim | undefined>
  /** Waiting and leased entries of a kind, in the order in which they are claimed. */
  pending(kind: string): Promise<{ ref: string; run_at: number }[]>
  /** Waiting and leased entries by kind, and when the oldest waiting one was enqueued (unix ms). */
  counts(): Promise<{ kind: string; waiting: number; running: number; oldest_at: number | null }[]>
  /** Whether due work of the same kind waits: long work lets it go on after a time slice. */
  othersWait(claim: Pick<Claim, 'kind' | 'ref'>): Promise<boolean>
  /** Renews the lease. Returns whether the claim still held it. */
  renewLease(claim: Claim): Promise<boolean>
  /** Throws LeaseLost unless the claim is current. Call it in the transaction of each write of the worker. */
  assertLease(trx: Trx, claim: Claim): Promise<void>
  /** Ends the entry: done, or dead after too many attempts. Throws LeaseLost. */
  finish(trx: Trx, claim: Claim, status: 'done' | 'dead'): Promise<void>
  /** Makes the entry claimable again from `run_at` on (unix ms). The attempt counts. Throws LeaseLost. */
  requeue(trx: Trx, claim: Claim, run_at: number): Promise<void>
  /**
   * Like `requeue`, for work that was not started or did not fail: the attempt does not count. Its number is given again,
   * so write nothing under the claim afterwards.
   */
  defer(claim: Claim, run_at: number): Promise<void>
  /** Ends the live entry of this ref, if any; its worker loses the lease. Returns that worker's claim, if any. */
  cancel(trx: Trx, kind: string, ref: string): Promise<Claim | undefined>
  /** Whether a worker has a lease that has not expired. */
  isLeased(trx: Trx, kind: string, ref: string): Promise<boolean>
  /** Makes a waiting entry the next one to be claimed. */
  hasten(trx: Trx, kind: string, ref: string): Promise<void>
  /** The id of this server, with which the names of its workers begin. */
  server: string
  /** Expires the leases of an earlier process of this server, which is gone. On SQLite there is no other server. */
  expireOwnLeases(): Promise<number>
}

interface Options {
  db: Db
  server: string
  notifications: Notifications
  now?: () => number
}

export function createQueue({ db, server, notifications, now = Date.now }: Options): Queue {
  const wakes = new EventEmitter()
  wakes.setMaxListeners(0)
  notifications.on('work', () => wakes.emit('wake'))
  const leasedBy = (claim: Claim) => sql<boolean>`id = ${claim.id} and attempt = ${claim.attempt} and status = 'leased'`

  return {
    async enqueue(trx, kind, ref) {
      const time = now()
      await trx
        .insertInto('queue_entries')
        .values({
          kind,
          ref,
          status: 'waiting',
          run_at: time,
          attempt: 0,
          worker: null,
          lease_until: null,
          created_at: time,
        })
        .execute()
    },

    wake: () => notifications.publish('work'),

    waitForWake: (wait_ms, signal) =>
      new Promise((resolve) => {
        const done = () => {
          clearTimeout(timer)
          wakes.off('wake', done)
          signal.removeEventListener('abort', done)
          resolve()
        }
        const timer = setTimeout(done, wait_ms)
        wakes.once('wake', done)
        signal.addEventListener('abort', done, { once: true })
        if (signal.aborted) done()
      }),

    async claim(kind, worker) {
      const time = now()
      return await db
        .updateTable('queue_entries')
        .set((eb) => ({ status: 'leased', worker, lease_until: time + lease_ms, attempt: eb('attempt', '+', 1) }))
        .where('id', '=', (eb) =>
          eb
            .selectFrom('queue_entries')
            .select('id')
            .where('kind', '=', kind)
            .where((or) =>
              or.or([
                or.and([or('status', '=', 'waiting'), or('run_at', '<=', time)]),
                or.and([or('status', '=', 'leased'), or('lease_until', '<', time)]),
              ]),
            )
            // By run_at first, so that deferred entries let all others pass.
            .orderBy('run_at')
            .orderBy('id')
            .limit(1)
            // Workers of several processes claim at once, and wait for nobody.
            .$if(isPostgres(db), (query) => query.forUpdate().skipLocked()),
        )
        .returning(['id', 'kind', 'ref', 'attempt'])
        .executeTakeFirst()
    },

    pending: (kind) =>
      db
        .selectFrom('queue_entries')
        .select(['ref', 'run_at'])
        .where('kind', '=', kind)
        .where('status', 'in', ['waiting', 'leased'])
        .orderBy('run_at')
        .orderBy('id')
        .execute(),

    async counts() {
      const count = (status: string) => sql<number>`sum(case when status = ${status} then 1 else 0 end)`
      return await db
        .selectFrom('queue_entries')
        .select([
          'kind',
          count('waiting').as('waiting'),
          count('leased').as('running'),
          sql<number | null>`min(case when status = 'waiting' then created_at end)`.as('oldest_at'),
        ])
        // As text, so that SQLite sees that the index of live entries has all of them.
        .where(sql<boolean>`status in ('waiting', 'leased')`)
        .groupBy('kind')
        .orderBy('kind')
        .execute()
    },

    async othersWait({ kind, ref }) {
      const time = now()
      const found = await db
        .selectFrom('queue_entries')
        .select('id')
        .where('kind', '=', kind)
        .where('status', 'in', ['waiting', 'leased'])
        .where('ref', '!=', ref)
        .where('run_at', '<=', time)
        .limit(1)
        .executeTakeFirst()
      return found !== undefined
    },

    async renewLease(claim) {
      const result = await db
        .updateTable('queue_entries')
        .set({ lease_until: now() + lease_ms })
        .where(leasedBy(claim))
        .executeTakeFirst()
      return result.numUpdatedRows > 0n
    },

    async assertLease(trx, claim) {
      const row = await trx.selectFrom('queue_entries').select('id').where(leasedBy(claim)).executeTakeFirst()
      if (!row) throw new LeaseLost(claim)
    },

    async finish(trx, claim, status) {
      const result = await trx
        .updateTable('queue_entries')
        .set({ status, worker: null, lease_until: null })
        .where(leasedBy(claim))
        .executeTakeFirst()
      if (result.numUpdatedRows === 0n) throw new LeaseLost(claim)
    },

    async requeue(trx, claim, run_at) {
      const result = await trx
        .updateTable('queue_entries')
        .set({ status: 'waiting', worker: null, lease_until: null, run_at })
        .where(leasedBy(claim))
        .executeTakeFirst()
      if (result.numUpdatedRows === 0n) throw new LeaseLost(claim)
    },

    async defer(claim, run_at) {
      await db
        .updateTable('queue_entries')
        .set((eb) => ({ status: 'waiting', worker: null, lease_until: null, run_at, attempt: eb('attempt', '-', 1) }))
        .where(leasedBy(claim))
        .execute()
    },

    async cancel(trx, kind, ref) {
      const entry = await trx
        .selectFrom('queue_entries')
        .select(['id', 'kind', 'ref', 'attempt', 'status'])
        .where('kind', '=', kind)
        .where('ref', '=', ref)
        .where('status', 'in', ['waiting', 'leased'])
        .executeTakeFirst()
      if (!entry) return undefined
      await trx
        .updateTable('queue_entries')
        .set({ status: 'done', worker: null, lease_until: null })
        .where('id', '=', entry.id)
        .execute()
      return entry.status === 'leased' ? entry : undefined
    },

    async isLeased(trx, kind, ref) {
      const found = await trx
        .selectFrom('queue_entries')
        .select('id')
        .where('kind', '=', kind)
        .where('ref', '=', ref)
        .where('status', '=', 'leased')
        .where('lease_until', '>=', now())
        .executeTakeFirst()
      return found !== undefined
    },

    async hasten(trx, kind, ref) {
      await trx
        .updateTable('queue_entries')
        .set({ run_at: 0 })
        .where('kind', '=', kind)
        .where('ref', '=', ref)
        .where('status', '=', 'waiting')
        .execute()
    },

    server,

    async expireOwnLeases() {
      const result = await db
        .updateTable('queue_entries')
        .set({ lease_until: 0 })
        .where('status', '=', 'leased')
        .$if(isPostgres(db), (query) => query.where('worker', 'like', `${server}/%`))
        .executeTakeFirst()
      return Number(result.numUpdatedRows)
    },
  }
}

export interface LeaseContext {
  db: Db
  queue: Queue
  /** Notifies event streams of this ref that there are new events; missing where there are no such streams. */
  notifyEvents?(ref: string): void
}

/** Runs one transaction of a worker. Throws LeaseLost if another attempt has taken over; notifies readers on commit. */
export async function withLease<T>(
  { db, queue, notifyEvents }: LeaseContext,
  claim: Claim,
  write: (trx: Trx) => Promise<T>,
): Promise<T> {
  const result = await db.transaction().execute(async (trx) => {
    await queue.assertLease(trx, claim)
    return write(trx)
  })
  notifyEvents?.(claim.ref)
  return result
}

/** Transactions of one claim, in order, while its work continues. */
export interface LeaseWrites {
  /** Starts `write` after all earlier ones. After a failure the rest is dropped. */
  add(write: (trx: Trx) => Promise<void>): void
  /** Aborts at the first failure, such as a lost lease. Its reason is the error. */
  failed: AbortSignal
  /** Resolves when all writes so far have ended, also if one has failed. */
  ended(): Promise<void>
}

export function createLeaseWrites(context: LeaseContext, claim: Claim): LeaseWrites {
  const failure = new AbortController()
  let last = Promise.resolve()
  return {
    add(write) {
      last = last.then(async () => {
        if (failure.signal.aborted) return
        try {
          await withLease(context, claim, write)
        } catch (error) {
          failure.abort(error)
        }
      })
    },
    failed: failure.signal,
    ended: () => last,
  }
}

/** Work of an account that has not begun; of batches and uploads, what has not ended. */
const backlogs = {
  jobs: (trx: Trx) => trx.selectFrom('tuning_jobs').where('status', '=', 'queued'),
  exports: (trx: Trx) => trx.selectFrom('exports').where('status', '=', 'queued'),
  evaluations: (trx: Trx) => trx.selectFrom('evaluations').where('status', 'in', ['queued', 'running']),
  uploads: (trx: Trx) => trx.selectFrom('uploads').where('status', '=', 'pending'),
  batches: (trx: Trx) =>
    trx.selectFrom('batches').where('status', 'in', ['validating', 'in_progress', 'finalizing', 'cancelling']),
}

/** Throws rate_limit_exceeded if an account has `max` entries waiting, as a longer backlog would delay all others. */
export async function assertBacklogLimit(
  trx: Trx,
  what: keyof typeof backlogs,
  account_id: string,
  max: number,
): Promise<void> {
  const waiting = await countRows(
    (backlogs[what](trx) as ReturnType<typeof backlogs.jobs>).where('account_id', '=', account_id),
  )
  if (waiting < max) return
  throw new ApiError(
    'rate_limit_exceeded',
    `This account has ${waiting} ${what} waiting, as many as it may. Wait for one to begin, or cancel one.`,
    {
      details: { limit: `waiting_${what}`, max, retry_after_seconds: 60 },
    },
  )
}
