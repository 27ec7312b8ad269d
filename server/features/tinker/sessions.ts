// Sessions: what a client makes lives as long as the client is heard of.
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Caller } from '../../platform/http/caller.ts'
import * as store from './store.ts'
import type { CreateSession, FinishSession } from './wire/requests.ts'

/** How often a session's row is told that its client is there. */
const seenEvery_ms = 30_000
/** Sessions of an account that have not ended. */
const openMax = 256

interface Options {
  db: Db
  /** A session ends that was silent for so long. */
  silent_ms: number
  log: Logger
  now(): number
}

export class Sessions {
  private readonly options: Options
  private readonly seen = new Map<string, number>()

  constructor(options: Options) {
    this.options = options
  }

  async create({ account_id, key_id }: Caller, body: CreateSession): Promise<store.SessionRow> {
    const { db, now } = this.options
    const time = now()
    const id = newId('tns')
    await db.transaction().execute(async (trx) => {
      const open = await trx
        .selectFrom('tinker_sessions')
        .select(({ fn }) => fn.countAll().as('count'))
        .where('account_id', '=', account_id)
        .where('ended_at', 'is', null)
        .executeTakeFirstOrThrow()
      if (Number(open.count) >= openMax)
        throw new ApiError(
          'rate_limit_exceeded',
          `${openMax} sessions of this account are open. Close some, or wait until silent ones have ended.`,
          { details: { retry_after_seconds: 60 } },
        )
      await store.insertSession(trx, {
        id,
        account_id,
        key_id,
        display_name: body.display_name ?? null,
        user_metadata_json: JSON.stringify(body.user_metadata ?? {}),
        tags_json: JSON.stringify(body.tags),
        created_at: time,
        last_seen_at: time,
        ended_at: null,
        end_reason: null,
        end_detail: null,
        has_files: 1,
      })
    })
    return (await store.findSession(db, account_id, id))!
  }

  async find(account_id: string, id: string): Promise<store.SessionRow> {
    const session = await store.findSession(this.options.db, account_id, id)
    if (!session) throw new ApiError('not_found', `There is no session '${id.slice(0, 200)}'.`)
    return session
  }

  /** A session that is open. Its client is there. */
  async require(account_id: string, id: string): Promise<store.SessionRow> {
    const session = await this.find(account_id, id)
    if (session.ended_at !== null)
      throw new ApiError(
        'invalid_request',
        session.end_reason === 'silent'
          ? 'This session has ended: its client was not heard of for too long. Make a new service client.'
          : 'This session has ended. Make a new service client.',
      )
    await this.heard(session)
    return session
  }

  /** Ends a session; the first reason stays. */
  async finish(account_id: string, id: string, { reason, detail }: FinishSession): Promise<boolean> {
    const session = await this.find(account_id, id)
    if (session.ended_at !== null) return false
    await this.end(session, reason.type, detail ?? null)
    return true
  }

  async end(
    session: Pick<store.SessionRow, 'id'>,
    end_reason: store.SessionRow['end_reason'],
    end_detail: string | null,
  ) {
    const { db, now } = this.options
    this.seen.delete(session.id)
    await store.updateSession(db, session.id, { ended_at: now(), end_reason, end_detail })
  }

  /** Sessions whose client has been silent for too long. */
  async silent(): Promise<store.SessionRow[]> {
    const { db, silent_ms, now } = this.options
    const rows = await store.silentSessions(db, now() - silent_ms - seenEvery_ms)
    return rows.filter(({ id }) => (this.seen.get(id) ?? 0) < now() - silent_ms)
  }

  private async heard({ id, last_seen_at }: store.SessionRow): Promise<void> {
    const { db, now } = this.options
    const time = now()
    this.seen.set(id, time)
    if (time - Number(last_seen_at) >= seenEvery_ms) await store.updateSession(db, id, { last_seen_at: time })
  }
}
