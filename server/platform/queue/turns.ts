// Turns by account: which entry is claimed next, and whether work that has had its turn keeps others from theirs.
//
// The next entry is that of the account with the fewest running entries, then of the one that was served least
// recently, and within an account the one with the first place. An entry that came back before its turn was over goes
// first.
import { type RawBuilder, sql } from 'kysely'
import { isPostgres } from '../db/dialect.ts'
import type { Db } from '../db/open.ts'

export interface ClaimOptions {
  /** The length of a turn. */
  turn_ms?: number | undefined
  /** Leaves the work of accounts that have some running to other workers. */
  idle_accounts_only?: boolean | undefined
  /** The work is the installation's, whoever asked for it: that of suspended accounts is claimed too. */
  suspended_too?: boolean | undefined
}

interface Account {
  account_id: string
  /** Its entries with a lease that has not expired. */
  running: number
  /** When its last claim was (unix ms). */
  served_at: number | null
}

export interface PendingEntry {
  id: number
  ref: string
  account_id: string
  run_at: number
  place: number
  turn_until: number
  status: 'waiting' | 'leased'
}

/** As text, so that SQLite sees that the index of live entries has all of them. */
const isLive = sql`status in ('waiting', 'leased')`
const isDue = (time: number) =>
  sql`((status = 'waiting' and run_at <= ${time}) or (status = 'leased' and lease_until < ${time}))`
const running = (kind: string, account: RawBuilder<unknown>, time: number) => sql`
  select count(*) from queue_entries
  where kind = ${kind} and account_id = ${account} and status = 'leased' and lease_until >= ${time}`
const served = (kind: string, account: RawBuilder<unknown>) => sql`
  select max(claimed_at) from queue_entries
  where kind = ${kind} and account_id = ${account} and claimed_at is not null`

/** The accounts with live entries: one look into an index for each account, however many entries it has. */
const liveAccounts = (kind: string) => sql`
  with recursive live (account_id) as (
    select min(account_id) from queue_entries where kind = ${kind} and ${isLive}
    union all
    select (select min(account_id) from queue_entries
      where kind = ${kind} and ${isLive} and account_id > live.account_id)
    from live where live.account_id is not null
  )`

const ofAccount = sql.ref('live.account_id')

/** The work of a suspended account waits, and nobody waits for it. */
export const mayRun = (account: RawBuilder<unknown>) => sql<boolean>`
  not exists (select 1 from accounts where accounts.id = ${account} and accounts.suspended_at is not null)`
const mayRunOrAny = (account: RawBuilder<unknown>, any: boolean | undefined) => (any ? sql`1 = 1` : mayRun(account))

/** Selects the id of the entry to claim. */
export const nextEntry = (
  db: Db,
  kind: string,
  time: number,
  { idle_accounts_only, suspended_too }: ClaimOptions = {},
) => sql<number>`
  ${liveAccounts(kind)}, candidates as (
    select live.account_id,
      (select id from queue_entries
        where kind = ${kind} and account_id = ${ofAccount} and ${isLive} and ${isDue(time)}
        order by place, id limit 1) as id,
      (${running(kind, ofAccount, time)}) as running,
      (${served(kind, ofAccount)}) as served_at
    from live where live.account_id is not null and ${mayRunOrAny(ofAccount, suspended_too)}
  )
  select entry.id from candidates join queue_entries as entry on entry.id = candidates.id
  where ${isDue(time)}
    ${idle_accounts_only ? sql`and candidates.running = 0` : sql``}
  order by case when entry.turn_until > ${time} then 0 else 1 end,
    candidates.running, coalesce(candidates.served_at, 0), entry.run_at, entry.id
  limit 1 ${isPostgres(db) ? sql`for update of entry skip locked` : sql``}`

/** Selects the id of the oldest due entry: where other processes claim those of all accounts at this moment. */
export const oldestEntry = (kind: string, time: number, { suspended_too }: ClaimOptions = {}) => sql<number>`
  select id from queue_entries
  where kind = ${kind} and ${isDue(time)} and ${mayRunOrAny(sql.ref('queue_entries.account_id'), suspended_too)}
  order by run_at, id limit 1 for update skip locked`

/**
 * Selects the entry that an account other than this should have a place for: the account has due work, none that runs,
 * and nobody gives way to it yet.
 */
export const entryThatWaits = (kind: string, account_id: string, time: number) => sql<number>`
  ${liveAccounts(kind)}, candidates as (
    select (select id from queue_entries
        where kind = ${kind} and account_id = ${ofAccount} and ${isLive} and ${isDue(time)}
        order by place, id limit 1) as id,
      (${served(kind, ofAccount)}) as served_at
    from live
    where live.account_id <> ${account_id} and ${mayRun(ofAccount)}
      and (${running(kind, ofAccount, time)}) = 0
      and not exists (select 1 from queue_entries
        where kind = ${kind} and account_id = ${ofAccount} and ${isLive} and ${isDue(time)}
          and promised_until > ${time})
  )
  select id from candidates where id is not null
  order by coalesce(served_at, 0), id limit 1`

/** Those of these kinds that have a due entry, whoever may run it. */
export async function dueKinds(db: Db, kinds: readonly string[], time: number): Promise<string[]> {
  if (kinds.length === 0) return []
  // Not as one text: on SQLite that would take a turn of the thread that writes.
  const found = await db
    .selectNoFrom(
      kinds.map((kind, index) =>
        sql<number | boolean>`exists (select 1 from queue_entries
          where kind = ${kind} and ${isLive} and ${isDue(time)})`.as(String(index)),
      ),
    )
    .executeTakeFirstOrThrow()
  return kinds.filter((_, index) => found[String(index)])
}

/** The accounts with live entries of a kind. */
export async function servedAccounts(db: Db, kind: string, time: number): Promise<Account[]> {
  const { rows } = await sql<Account>`
    ${liveAccounts(kind)}
    select account_id, (${running(kind, ofAccount, time)}) as running, (${served(kind, ofAccount)}) as served_at
    from live where account_id is not null`.execute(db)
  return rows
}
