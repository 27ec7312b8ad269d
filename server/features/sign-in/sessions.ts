// Sessions of the dashboard: begun by a sign-in, looked up at every request, ended by the person, or after a time.
import { hash, randomBytes } from 'node:crypto'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import { roleScopes } from '../../../contract/scopes.ts'
import type { Session } from '../../../contract/sign-in.ts'
import { newId } from '../../../lib/ids.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'
import { day_ms, isoTime } from '../../../lib/utc-day.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { type Changes, cacheTtl_ms } from '../../platform/redis/changes.ts'
import * as store from './store.ts'

/** Who begins a session, and from where. */
export interface Beginning {
  begun_by: store.SessionRow['begun_by']
  user_agent: string
  address: string
}

/** Without use, and in all. */
const idle_ms = 30 * day_ms
const lifetime_ms = 90 * day_ms
export const cookieSeconds = lifetime_ms / 1000
const minute_ms = 60_000
/** Sessions of a member; each further one ends the oldest. */
const sessionsMax = 100
const accounts_max = 10_000
const idsPerQuery = 500
/** For the database: user agents may be long. */
const userAgentMax = 200

export const hashOf = (token: string) => hash('sha256', token, 'hex')
export const newToken = () => randomBytes(32).toString('base64url')

const expiryOf = ({ created_at, last_used_at }: Pick<store.SessionRow, 'created_at' | 'last_used_at'>) =>
  Math.min(last_used_at + idle_ms, created_at + lifetime_ms)

type Found = NonNullable<Awaited<ReturnType<typeof store.findSessionByHash>>>

export class Sessions {
  private readonly db: Db
  private readonly changes: Changes
  private readonly now: () => number
  private readonly cache = createTtlCache<{ caller: Caller; expires_at: number }>(cacheTtl_ms)
  /** The accounts of tokens that were right once. */
  private readonly accounts = new Map<string, string>()
  private used = new Map<string, number>()

  constructor(db: Db, changes: Changes, now: () => number) {
    this.db = db
    this.changes = changes
    this.now = now
    this.changes.onAnnounced(this.cache.clear)
  }

  /** Begins a session and returns its token, which only the browser keeps. */
  async begin(
    trx: Trx,
    user: store.UserRow,
    { begun_by, user_agent, address }: Beginning,
  ): Promise<{ token: string; session: Session }> {
    const token = newToken()
    const created_at = this.now()
    const row: store.SessionRow = {
      id: newId('ses'),
      account_id: user.account_id,
      user_id: user.id,
      hash: hashOf(token),
      begun_by,
      user_agent: user_agent.replace(/[^\x20-\x7e]/g, '').slice(0, userAgentMax),
      address,
      created_at,
      last_used_at: created_at,
    }
    await store.insertSession(trx, row)
    await store.keepNewestSessions(trx, user.id, sessionsMax)
    const by = { kind: 'session' as const, account_id: user.account_id, user_id: user.id, key_id: row.id }
    await recordAuditEntry(trx, by, 'session.created', row.id, { begun_by, address }, created_at)
    return { token, session: this.toResponse(row, row.id) }
  }

  /** The caller of a token; undefined for an unknown, ended or expired one. Changes show as fast as with keys. */
  async find(token: string): Promise<Caller | undefined> {
    if (!/^[\w-]{43}$/.test(token)) return undefined
    const tokenHash = hashOf(token)
    const account_id = this.accounts.get(tokenHash)
    const version = account_id === undefined ? undefined : this.changes.version(account_id)
    const entry = await this.cache.getOrLoad(tokenHash, () => this.lookUp(tokenHash, version), version)
    return entry && entry.expires_at > this.now() ? entry.caller : undefined
  }

  /** The callers of those of these sessions that still run, by their id. Looks at the database itself. */
  async current(ids: string[]): Promise<Map<string, Caller>> {
    const callers = new Map<string, Caller>()
    for (let at = 0; at < ids.length; at += idsPerQuery)
      for (const row of await store.sessionsByIds(this.db, ids.slice(at, at + idsPerQuery)))
        if (expiryOf(row) > this.now()) callers.set(row.id, this.callerOf(row, undefined))
    return callers
  }

  async get(caller: Caller): Promise<Session> {
    return this.toResponse(await this.requireSession(caller, caller.key_id), caller.key_id)
  }

  async list(caller: Caller, { limit, after }: ListQuery): Promise<Page<Session>> {
    const last = after ? await this.requireSession(caller, after) : undefined
    const rows = await store.sessions(this.db, caller.user_id, limit, last)
    return pageOf(
      rows.map((row) => this.toResponse(row, caller.key_id)),
      limit,
    )
  }

  async end(caller: Caller, id: string): Promise<{ id: string; deleted: true }> {
    await this.requireSession(caller, id)
    await this.db.transaction().execute(async (trx) => {
      if ((await store.endSession(trx, caller.user_id, id)) > 0)
        await recordAuditEntry(trx, caller, 'session.ended', id, {}, this.now())
    })
    await this.changes.announce(caller.account_id)
    return { id, deleted: true }
  }

  async endOthers(caller: Caller): Promise<{ ended: number }> {
    const ended = await this.db.transaction().execute(async (trx) => {
      const count = await store.endSessions(trx, caller.user_id, caller.key_id)
      if (count > 0) await recordAuditEntry(trx, caller, 'session.others_ended', caller.key_id, { count }, this.now())
      return count
    })
    await this.changes.announce(caller.account_id)
    return { ended }
  }

  /** Writes the times of last use, and removes sessions that have expired. */
  async flush(): Promise<void> {
    const marks = this.used
    this.used = new Map()
    if (marks.size > 0)
      await this.db.transaction().execute(async (trx) => {
        for (const [id, at] of marks) await store.touchSession(trx, id, at)
      })
    await store.removeOldSessions(this.db, this.now() - idle_ms, this.now() - lifetime_ms)
    await store.removeOldTokens(this.db, this.now())
  }

  private toResponse(row: store.SessionRow, current: string): Session {
    return {
      id: row.id,
      current: row.id === current,
      begun_by: row.begun_by,
      user_agent: row.user_agent,
      address: row.address,
      created_at: isoTime(row.created_at),
      last_used_at: isoTime(row.last_used_at),
      expires_at: isoTime(expiryOf(row)),
    }
  }

  private callerOf(row: Found, version: string | undefined): Caller {
    return {
      kind: 'session',
      account_id: row.account_id,
      user_id: row.user_id,
      key_id: row.id,
      role: row.role,
      scopes: roleScopes[row.role].filter((scope) => scope !== 'operator' || row.operator === 1),
      tier: row.tier,
      suspended: row.suspended_at !== null,
      session: { created_at: row.created_at, expires_at: expiryOf(row) },
      ...(this.changes.shared && { version: version ?? '' }),
    }
  }

  private async lookUp(tokenHash: string, version: string | undefined) {
    const row = await store.findSessionByHash(this.db, tokenHash)
    if (!row || expiryOf(row) <= this.now()) return undefined
    const minute = Math.floor(this.now() / minute_ms) * minute_ms
    if (row.last_used_at < minute) this.used.set(row.id, minute)
    const caller = this.callerOf(row, version)
    if (this.accounts.size >= accounts_max) this.accounts.clear()
    if (this.changes.shared) this.accounts.set(tokenHash, row.account_id)
    return { caller, expires_at: expiryOf(row) }
  }

  private async requireSession({ user_id }: Caller, id: string): Promise<store.SessionRow> {
    const row = await store.findSession(this.db, user_id, id)
    if (!row) throw new ApiError('session_not_found', `You have no session '${id}'.`)
    return row
  }
}
