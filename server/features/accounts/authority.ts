// Nobody grants more than they have: the one rule for every way to make a member, to raise one, or to decide who signs
// in as one.
import { ApiError } from '../../../contract/errors.ts'
import { type Role, roleScopes, type Scope } from '../../../contract/scopes.ts'
import type { Queryable, Trx } from '../../platform/db/open.ts'
import type { AccountActor } from '../../platform/events/audit.ts'
import { endedCredential } from '../../platform/http/auth.ts'
import * as store from './store.ts'

/**
 * What the actor lacks of what a member of `role` may do; undefined if nothing. The service itself lacks nothing.
 * `operator` is no right of a role.
 */
export async function missingRights(
  db: Queryable,
  { kind, account_id, user_id, scopes = [] }: AccountActor,
  role: Role,
): Promise<Scope | 'owner' | undefined> {
  if (kind === 'service') return undefined
  const member = user_id === null ? undefined : await store.findMember(db, account_id, user_id)
  if (role === 'owner' && member?.role !== 'owner') return 'owner'
  const allowed = member ? scopes.filter((scope) => roleScopes[member.role].includes(scope)) : []
  return roleScopes[role].find((scope) => scope !== 'operator' && !allowed.includes(scope))
}

/**
 * Throws unless the key or session of the caller is still good, in the transaction that makes another one or a member:
 * a server may remember a caller for half a second after another server has ended them.
 */
export async function requireStillGood(trx: Trx, by: AccountActor, now: number): Promise<void> {
  if ((by.kind !== 'key' && by.kind !== 'session') || by.key_id === null) return
  const good = by.kind === 'key' ? await store.isGoodKey(trx, by.key_id, now) : await store.isSession(trx, by.key_id)
  if (!good) throw endedCredential({ kind: by.kind })
}

/**
 * Throws insufficient_permissions unless the actor may do all that a member of `role` may: before they make somebody
 * one, or change the email with which one signs in. Throws invalid_api_key or session_ended if they have ended.
 */
export async function requireRights(trx: Trx, by: AccountActor, role: Role, now: number): Promise<void> {
  await requireStillGood(trx, by, now)
  const missing = await missingRights(trx, by, role)
  if (missing === undefined) return
  if (missing === 'owner') throw ownersOnly()
  throw new ApiError(
    'insufficient_permissions',
    `To make a member of the role '${role}', or to change the email of one, you need all that they may do; ` +
      `'${missing}' is missing.`,
    { details: { scope: missing } },
  )
}

export const ownersOnly = () =>
  new ApiError(
    'insufficient_permissions',
    'Only an owner of the account may invite, make, change or remove an owner.',
    { details: { role: 'owner' } },
  )
