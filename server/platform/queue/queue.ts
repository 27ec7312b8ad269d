// Durable queue in the database. An entry is enqueued in the caller's transaction and claimed in one statement, with a
// lease that heartbeats renew and an attempt number (fencing token): every write of a worker checks its attempt, so a
// worker that lost its lease can change nothing.
import { type RawBuilder, sql } from 'kysely'
import { ApiError } from '../../../contract/errors.ts'
import type { Notifications } from '../cluster/notifications.ts'
import { isPostgres } from '../db/dialect.ts'
import type { Db, Trx } from '../db/open.ts'
import {
  type ClaimOptions,
  dueKinds,
  entryThatWaits,
  mayRun,
  nextEntry,
  oldestEntry,
  type PendingEntry,
  servedAccounts,
} from './turns.ts'

export const lease_ms = 20_000

/** How soon work is found of which no `wake` told: after a missed notification, or when its time has come. */
export const look_ms = 1000

/** The turn of an account whose work has no time slice: how long an entry that comes back goes before all others. */
const turn_ms = 600_000

/** How long a place is promised: longer than work takes to stop, also in a cluster. */
const promise_ms = 240_000

export interface Claim {
  id: number
  kind: string
  ref: string
  attempt: number
  account_id: string
  /** When the account's turn is over (unix ms). */
  turn_until: number
}

/**
 * What becomes of the turn of an entry that comes back. `kept`: until the turn's end the entry goes before all others.
 * `unused`: the work was not begun, so the account's turn is still to come. `passed`: the other accounts have theirs
 * first; in its account the entry keeps its place. `behind`: it goes behind the other entries of its account too.
 */
export type TurnEnd = 'kept' | 'unused' | 'passed' | 'behind'

/** The claim's lease has passed to another attempt, or its entry has ended: the worker must stop and write nothing. */
export class LeaseLost extends Error {
  constructor(claim: Claim) {
    super(`attempt ${claim.attempt} at ${claim.kind} ${claim.ref} is no longer the current one`)
  }
}

interface Options {
  db: Db
  server: string
  notifications: Notifications
  now?: () => number
}

const ofEntry = sql.ref('queue_entries.account_id')

export class Queue {
  /** The id of this server, with which the names of its workers begin. */
  readonly server: string
  private readonly db: Db
  private readonly notifications: Notifications
  private readonly now: () => number
  /** Workers that wait for work, by kind. */
  private readonly waiters = new Map<string, Set<() => void>>()
  private looks: NodeJS.Timeout | undefined
  private looking = false
  private lookAgain = false

  constructor({ db, server, notifications, now = Date.now }: Options) {
    this.db = db
    this.server = server
    this.notifications = notifications
    this.now = now
    notifications.on('work', () => void this.look())
  }

  /** Adds an entry of an account in the caller's transaction. Call `wake` after it has committed. */
  async enqueue(trx: Trx, kind: string, ref: string, account_id: string): Promise<void> {
    const time = this.now()
    await trx
      .insertInto('queue_entries')
      .values({
        kind,
        ref,
        account_id,
        status: 'waiting',
        run_at: time,
        place: time,
        attempt: 0,
        worker: null,
        lease_until: null,
        claimed_at: null,
        turn_until: 0,
        created_at: time,
      })
      .execute()
  }

  wake(): void {
    this.notifications.publish('work')
  }

  /**
   * Resolves when work of this kind may be due, or when the signal aborts. One look at the database, at each `wake` and
   * each second, is for the workers of all kinds: an idle service asks for nothing else.
   */
  waitForWork(kind: string, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const waiters = this.waiters.get(kind) ?? new Set()
      const done = () => {
        waiters.delete(done)
        if (waiters.size === 0 && this.waiters.get(kind) === waiters) this.waiters.delete(kind)
        if (this.waiters.size === 0) {
          clearTimeout(this.looks)
          this.looks = undefined
        }
        signal.removeEventListener('abort', done)
        resolve()
      }
      this.waiters.set(kind, waiters.add(done))
      this.looks ??= this.lookLater()
      signal.addEventListener('abort', done, { once: true })
      if (signal.aborted) done()
    })
  }

  /**
   * The moment varies: what one server claims and leaves to another would always become due just before the first one
   * looks again.
   */
  private lookLater(): NodeJS.Timeout {
    return setTimeout(
      () => {
        this.looks = this.lookLater()
        void this.look()
      },
      look_ms * (0.75 + Math.random() / 2),
    )
  }

  /** Wakes the workers whose kinds have due entries. */
  private async look(): Promise<void> {
    if (this.looking) {
      this.lookAgain = true
      return
    }
    this.looking = true
    do {
      this.lookAgain = false
      const kinds = [...this.waiters.keys()]
      // Where the database is away, each claim says so.
      const due = await dueKinds(this.db, kinds, this.now()).catch(() => kinds)
      for (const kind of due) for (const done of [...(this.waiters.get(kind) ?? [])]) done()
    } while (this.lookAgain)
    this.looking = false
  }

  /**
   * Leases a due entry of this kind, waiting or with an expired lease, to `worker`, accounts in turn (turns.ts);
   * undefined if there is none.
   */
  async claim(kind: string, worker: string, options: ClaimOptions = {}): Promise<Claim | undefined> {
    const { turn_ms: length_ms = turn_ms, idle_accounts_only } = options
    const time = this.now()
    const lease = async (entry: RawBuilder<number>) =>
      await this.db
        .updateTable('queue_entries')
        .set((eb) => ({
          status: 'leased',
          worker,
          lease_until: time + lease_ms,
          attempt: eb('attempt', '+', 1),
          claimed_at: time,
          turn_until: sql<number>`case when turn_until > ${time} then turn_until else ${time + length_ms} end`,
        }))
        .where('id', '=', sql<number>`(${entry})`)
        .returning(['id', 'kind', 'ref', 'attempt', 'account_id', 'turn_until'])
        .executeTakeFirst()
    const claim = await lease(nextEntry(this.db, kind, time, options))
    // Workers of several processes claim at once, and wait for nobody.
    return claim ?? (isPostgres(this.db) && !idle_accounts_only ? lease(oldestEntry(kind, time, options)) : undefined)
  }

  /**
   * Entries of a kind that run or wait for their turn, by place, and when each of their accounts was last served (unix
   * ms).
   */
  async pending(kind: string): Promise<{ entries: PendingEntry[]; served: Map<string, number> }> {
    const entries = await this.db
      .selectFrom('queue_entries')
      .select(['id', 'ref', 'account_id', 'run_at', 'place', 'turn_until', 'status'])
      .where('kind', '=', kind)
      .where(sql<boolean>`status in ('waiting', 'leased')`)
      .where(({ or, eb }) => or([eb('status', '=', 'leased'), mayRun(ofEntry)]))
      .orderBy('place')
      .orderBy('id')
      .execute()
    const accounts = await servedAccounts(this.db, kind, this.now())
    return {
      entries: entries as PendingEntry[],
      served: new Map(accounts.map(({ account_id, served_at }) => [account_id, served_at ?? 0])),
    }
  }

  /** Waiting and leased entries by kind, and when the oldest waiting one was enqueued (unix ms). */
  async counts(): Promise<{ kind: string; waiting: number; running: number; oldest_at: number | null }[]> {
    const count = (status: string) => sql<number>`sum(case when status = ${status} then 1 else 0 end)`
    return await this.db
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
  }

  /** Those of these accounts that are suspended. */
  async suspended(account_ids: readonly string[]): Promise<Set<string>> {
    const accounts = await this.db
      .selectFrom('accounts')
      .select('id')
      .where('id', 'in', [...new Set(account_ids)])
      .where('suspended_at', 'is not', null)
      .execute()
    return new Set(accounts.map(({ id }) => id))
  }

  /** Whether due work of the same kind waits: long work lets it run after a time slice. */
  async othersWait({ kind, ref }: Pick<Claim, 'kind' | 'ref'>): Promise<boolean> {
    const time = this.now()
    const counts = await this.db
      .selectFrom('queue_entries')
      .select('id')
      .where('kind', '=', kind)
      .where('status', 'in', ['waiting', 'leased'])
      .where('ref', '!=', ref)
      .where('run_at', '<=', time)
      .where(mayRun(ofEntry))
      .limit(1)
      .executeTakeFirst()
    return counts !== undefined
  }

  /**
   * Whether running work should give its place to another account, which has due work of the same kind and none that
   * runs. True for one caller for each such account, on all servers; for another one if the place is not taken within
   * minutes.
   */
  async giveWay({ kind, account_id }: Pick<Claim, 'kind' | 'account_id'>): Promise<boolean> {
    const time = this.now()
    const waiting = entryThatWaits(kind, account_id, time)
    // Most of the time nobody waits: a look takes no turn to write.
    if ((await waiting.execute(this.db)).rows.length === 0) return false
    const { numUpdatedRows } = await this.db
      .updateTable('queue_entries')
      .set({ promised_until: time + promise_ms })
      .where('id', '=', sql<number>`(${waiting})`)
      .executeTakeFirstOrThrow()
    return numUpdatedRows > 0n
  }

  /** Renews the lease. Returns whether the claim still held it. */
  async renewLease(claim: Claim): Promise<boolean> {
    const result = await this.db
      .updateTable('queue_entries')
      .set({ lease_until: this.now() + lease_ms })
      .where(leasedBy(claim))
      .executeTakeFirst()
    return result.numUpdatedRows > 0n
  }

  /** Throws LeaseLost unless the claim is current. Call it in the transaction of each write of the worker. */
  async assertLease(trx: Trx, claim: Claim): Promise<void> {
    const row = await trx.selectFrom('queue_entries').select('id').where(leasedBy(claim)).executeTakeFirst()
    if (!row) throw new LeaseLost(claim)
  }

  /** Ends the entry: done, or dead after too many attempts. Throws LeaseLost. */
  async finish(trx: Trx, claim: Claim, status: 'done' | 'dead'): Promise<void> {
    const result = await trx
      .updateTable('queue_entries')
      .set({ status, worker: null, lease_until: null })
      .where(leasedBy(claim))
      .executeTakeFirst()
    if (result.numUpdatedRows === 0n) throw new LeaseLost(claim)
  }

  /** Makes the entry claimable again from `run_at` on (unix ms). The attempt counts. Throws LeaseLost. */
  async requeue(trx: Trx, claim: Claim, run_at: number, turn: TurnEnd = 'kept'): Promise<void> {
    const result = await trx
      .updateTable('queue_entries')
      .set({ status: 'waiting', worker: null, lease_until: null, run_at, ...turnColumns(turn, this.now()) })
      .where(leasedBy(claim))
      .executeTakeFirst()
    if (result.numUpdatedRows === 0n) throw new LeaseLost(claim)
  }

  /**
   * Like `requeue`, for work that was not started or did not fail: the attempt does not count. Its number is given
   * again, so write nothing under the claim afterwards. By default it may be claimed again at once.
   */
  async defer(claim: Claim, run_at = this.now(), turn: TurnEnd = 'kept'): Promise<void> {
    const columns = turnColumns(turn, this.now())
    await this.db
      .updateTable('queue_entries')
      .set((eb) => ({
        status: 'waiting',
        worker: null,
        lease_until: null,
        run_at,
        attempt: eb('attempt', '-', 1),
        ...columns,
      }))
      .where(leasedBy(claim))
      .execute()
  }

  /** Ends the live entry of this ref, if any; its worker loses the lease. Returns that worker's claim, if any. */
  async cancel(trx: Trx, kind: string, ref: string): Promise<Claim | undefined> {
    const entry = await trx
      .selectFrom('queue_entries')
      .select(['id', 'kind', 'ref', 'attempt', 'account_id', 'turn_until', 'status'])
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
  }

  /** Whether a worker has a lease that has not expired. */
  async isLeased(trx: Trx, kind: string, ref: string): Promise<boolean> {
    const entry = await trx
      .selectFrom('queue_entries')
      .select('id')
      .where('kind', '=', kind)
      .where('ref', '=', ref)
      .where('status', '=', 'leased')
      .where('lease_until', '>=', this.now())
      .executeTakeFirst()
    return entry !== undefined
  }

  /** Whether the ref has an entry that has not ended. */
  async isLive(trx: Trx, kind: string, ref: string): Promise<boolean> {
    const entry = await trx
      .selectFrom('queue_entries')
      .select('id')
      .where('kind', '=', kind)
      .where('ref', '=', ref)
      .where(sql<boolean>`status in ('waiting', 'leased')`)
      .executeTakeFirst()
    return entry !== undefined
  }

  /** Makes a waiting entry the next one to be claimed. */
  async hasten(trx: Trx, kind: string, ref: string): Promise<void> {
    await trx
      .updateTable('queue_entries')
      .set({ run_at: 0, place: 0, turn_until: this.now() + turn_ms })
      .where('kind', '=', kind)
      .where('ref', '=', ref)
      .where('status', '=', 'waiting')
      .execute()
  }

  /** Makes waiting entries due that were put off: what they wait for may be there. */
  async recall(kind: string, refs: readonly string[]): Promise<void> {
    if (refs.length === 0) return
    const time = this.now()
    await this.db
      .updateTable('queue_entries')
      .set({ run_at: time })
      .where('kind', '=', kind)
      .where('ref', 'in', refs)
      .where('status', '=', 'waiting')
      .where('run_at', '>', time)
      .execute()
    this.wake()
  }

  /** Expires the leases of an earlier process of this server, which is gone. On SQLite there is no other server. */
  async expireOwnLeases(): Promise<number> {
    const result = await this.db
      .updateTable('queue_entries')
      .set({ lease_until: 0 })
      .where('status', '=', 'leased')
      .$if(isPostgres(this.db), (query) => query.where('worker', 'like', `${this.server}/%`))
      .executeTakeFirst()
    return Number(result.numUpdatedRows)
  }
}

const leasedBy = (claim: Claim) => sql<boolean>`id = ${claim.id} and attempt = ${claim.attempt} and status = 'leased'`

function turnColumns(turn: TurnEnd, time: number) {
  if (turn === 'kept') return {}
  if (turn === 'unused') return { turn_until: 0, claimed_at: null }
  return turn === 'passed' ? { turn_until: 0 } : { turn_until: 0, place: time }
}

/** Throws rate_limit_exceeded if an account has `max` or more waiting, as a longer backlog would delay all others. */
export function assertBacklogLimit(waiting: number, what: string, max: number): void {
  if (waiting < max) return
  throw new ApiError(
    'rate_limit_exceeded',
    `This account has ${waiting} ${what} waiting, as many as it may. Wait for one to begin, or cancel one.`,
    { details: { limit: `waiting_${what}`, max, retry_after_seconds: 60 } },
  )
}
