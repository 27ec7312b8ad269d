// A durable queue in the database. An entry is enqueued in the caller's transaction, claimed in one statement with a
// lease and an attempt number, and kept by heartbeats; every write of its worker is checked against the attempt, so
// that one who lost its lease can change nothing any more.
import { EventEmitter } from 'node:events'
import { sql } from 'kysely'
import { ApiError } from '../../contract/errors.ts'
import type { Db, Trx } from '../db/open.ts'

export const lease_ms = 20_000

export interface Claim {
  id: number
  kind: string
  ref: string
  attempt: number
}

/**
 * The lease of this claim has passed to another attempt, or its entry has ended: whoever holds it must stop and write
 * nothing.
 */
export class LeaseLost extends Error {
  constructor(claim: Claim) {
    super(`attempt ${claim.attempt} at ${claim.kind} ${claim.ref} is no longer the current one`)
  }
}

export interface Queue {
  /** Adds an entry in the caller's transaction. Call `wake` after it has committed. */
  enqueue(trx: Trx, kind: string, ref: string): Promise<void>
  wake(): void
  /** Resolves at the next `wake`, or after `wait_ms` or when the signal aborts. */
  woken(wait_ms: number, signal: AbortSignal): Promise<void>
  /**
   * The oldest entry of this kind that waits or whose lease ran out, leased to `worker`; undefined where there is none.
   */
  claim(kind: string, worker: string): Promise<Claim | undefined>
  /** What waits or is leased of a kind, in the order in which it is claimed. */
  live(kind: string): Promise<{ ref: string; run_at: number }[]>
  /** Renews the lease. Returns whether it was still held. */
  heartbeat(claim: Claim): Promise<boolean>
  /**
   * Throws LeaseLost unless the claim is the current one; called in the transaction of each write that its worker
   * makes.
   */
  hold(trx: Trx, claim: Claim): Promise<void>
  /** Ends the entry, as done or as dead after too many attempts. */
  finish(trx: Trx, claim: Claim, status: 'done' | 'dead'): Promise<void>
  /** Gives the entry back to be claimed again from `run_at` on. */
  release(trx: Trx, claim: Claim, run_at: number): Promise<void>
  /** Gives back an entry that was not begun, to be claimed again from `run_at` on: its attempt does not count. */
  putBack(claim: Claim, run_at: number): Promise<void>
  /**
   * Ends whatever entry lives for this ref; a worker that holds it loses its lease. Returns the worker's claim where
   * there was one.
   */
  cancel(trx: Trx, kind: string, ref: string): Promise<Claim | undefined>
  /**
   * Lets go of every lease. Only for the process that owns the database alone: the holders are then known to be gone.
   */
  takeOverAll(): Promise<number>
}

export function createQueue(db: Db, now: () => number = Date.now): Queue {
  const bell = new EventEmitter()
  bell.setMaxListeners(0)
  const held = (claim: Claim) => sql<boolean>`id = ${claim.id} and attempt = ${claim.attempt} and status = 'leased'`

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

    wake: () => bell.emit('wake'),

    woken: (wait_ms, signal) =>
      new Promise((resolve) => {
        const done = () => {
          clearTimeout(timer)
          bell.off('wake', done)
          signal.removeEventListener('abort', done)
          resolve()
        }
        const timer = setTimeout(done, wait_ms)
        bell.once('wake', done)
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
            // By their time first: those that were put back let the others by, however many they are.
            .orderBy('run_at')
            .orderBy('id')
            .limit(1),
        )
        .returning(['id', 'kind', 'ref', 'attempt'])
        .executeTakeFirst()
    },

    live: (kind) =>
      db
        .selectFrom('queue_entries')
        .select(['ref', 'run_at'])
        .where('kind', '=', kind)
        .where('status', 'in', ['waiting', 'leased'])
        .orderBy('run_at')
        .orderBy('id')
        .execute(),

    async heartbeat(claim) {
      const result = await db
        .updateTable('queue_entries')
        .set({ lease_until: now() + lease_ms })
        .where(held(claim))
        .executeTakeFirst()
      return result.numUpdatedRows > 0n
    },

    async hold(trx, claim) {
      const row = await trx.selectFrom('queue_entries').select('id').where(held(claim)).executeTakeFirst()
      if (!row) throw new LeaseLost(claim)
    },

    async finish(trx, claim, status) {
      const result = await trx
        .updateTable('queue_entries')
        .set({ status, worker: null, lease_until: null })
        .where(held(claim))
        .executeTakeFirst()
      if (result.numUpdatedRows === 0n) throw new LeaseLost(claim)
    },

    async release(trx, claim, run_at) {
      const result = await trx
        .updateTable('queue_entries')
        .set({ status: 'waiting', worker: null, lease_until: null, run_at })
        .where(held(claim))
        .executeTakeFirst()
      if (result.numUpdatedRows === 0n) throw new LeaseLost(claim)
    },

    async putBack(claim, run_at) {
      await db
        .updateTable('queue_entries')
        .set((eb) => ({ status: 'waiting', worker: null, lease_until: null, run_at, attempt: eb('attempt', '-', 1) }))
        .where(held(claim))
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

    async takeOverAll() {
      const result = await db
        .updateTable('queue_entries')
        .set({ lease_until: 0 })
        .where('status', '=', 'leased')
        .executeTakeFirst()
      return Number(result.numUpdatedRows)
    },
  }
}

interface Working {
  db: Db
  queue: Queue
  /** Tells readers of the events of what is worked on that there are more. */
  changed(ref: string): void
}

/**
 * One transaction of a worker: refused when another attempt has taken over, told to the readers when it has committed.
 */
export async function underClaim<T>(
  { db, queue, changed }: Working,
  claim: Claim,
  write: (trx: Trx) => Promise<T>,
): Promise<T> {
  const result = await db.transaction().execute(async (trx) => {
    await queue.hold(trx, claim)
    return write(trx)
  })
  changed(claim.ref)
  return result
}

/**
 * Throws rate_limit_exceeded where an account has as much waiting as it may: who asks for ever more would hold up all
 * that comes after.
 */
export function requireTurn(waiting: number, max: number, what: 'jobs' | 'exports'): void {
  if (waiting < max) return
  throw new ApiError(
    'rate_limit_exceeded',
    `This account has ${waiting} ${what} waiting, as many as it may. Wait for one to begin, or cancel one.`,
    {
      details: { limit: `waiting_${what}`, max, retry_after_seconds: 60 },
    },
  )
}
