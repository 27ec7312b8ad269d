import type { Scope } from '../../contract/scopes.ts'
import { newId } from '../../lib/ids.ts'
import type { Trx } from '../db/open.ts'

/** On whose behalf something is changed. */
export interface Actor {
  kind: 'key' | 'operator' | 'command_line' | 'service'
  user_id: string | null
  key_id: string | null
  /** Where the request may come again: writes, in the transaction that creates something, what was created. */
  once?: { mark(trx: Trx, target: string): Promise<void> }
}

/** Someone who changes something that belongs to an account. */
export interface By extends Actor {
  account_id: string
  /** What a key carries, where one asks. */
  scopes?: readonly Scope[]
}

export const commandLine: Actor = { kind: 'command_line', user_id: null, key_id: null }
/** What the service does of itself. */
export const theService: Actor = { kind: 'service', user_id: null, key_id: null }

/**
 * Records who changed what, in the transaction that changes it. `action` is a noun and a verb in the past, such as
 * `key.created`; `target` the id of what was changed; `details` what else an owner would want to know, and never a
 * secret.
 */
export async function recordAct(
  trx: Trx,
  by: By,
  action: string,
  target: string,
  details: Record<string, unknown>,
  created_at: number,
): Promise<void> {
  const { account_id, kind, user_id, key_id, once } = by
  await once?.mark(trx, target)
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
