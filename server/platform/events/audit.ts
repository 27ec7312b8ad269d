import type { Scope } from '../../../contract/scopes.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db, Trx } from '../db/open.ts'

/** Who makes a change. */
export interface Actor {
  kind: 'key' | 'session' | 'operator' | 'command_line' | 'service'
  user_id: string | null
  /** The key, or the session, that makes it. */
  key_id: string | null
  /** Set for a request with an idempotency key: records the created object, in the transaction that creates it. */
  idempotency?: { mark(trx: Trx, target: string): Promise<void> }
}

/** Who makes a change to an account's data. */
export interface AccountActor extends Actor {
  account_id: string
  /** The scopes of the API key, if there is one. */
  scopes?: readonly Scope[]
}

export const commandLineActor: Actor = { kind: 'command_line', user_id: null, key_id: null }
/** Changes that the service makes by itself. */
export const serviceActor: Actor = { kind: 'service', user_id: null, key_id: null }

/**
 * Adds an audit log entry, in the transaction that makes the change. `action` is a noun and a past participle, such as
 * `key.created`; `target` is the id of the changed object; `details` must not contain secrets.
 */
export async function recordAuditEntry(
  trx: Trx,
  by: AccountActor,
  action: string,
  target: string,
  details: Record<string, unknown>,
  created_at: number,
): Promise<void> {
  const { account_id, kind, user_id, key_id, idempotency } = by
  await idempotency?.mark(trx, target)
  await trx
    .insertInto('audit')
    .values({
      id: newId('aud'),
      account_id,
      created_at,
      action,
      target,
      details_json: JSON.stringify(details),
      kind,
      user_id,
      key_id,
    })
    .execute()
}

/** When an object of an account was created, by one of these actions; also of one that was deleted since. */
export async function creationTime(
  db: Db,
  account_id: string,
  actions: string[],
  target: string,
): Promise<number | undefined> {
  const entry = await db
    .selectFrom('audit')
    .select('created_at')
    .where('account_id', '=', account_id)
    .where('target', '=', target)
    .where('action', 'in', actions)
    .executeTakeFirst()
  return entry?.created_at
}
