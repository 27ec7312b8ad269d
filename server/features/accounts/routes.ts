import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { getPresence, getProfile } from '../../../contract/accounts.ts'
import { listAudit } from '../../../contract/audit.ts'
import { createKey, getKey, listKeys, renameKey, revokeKey } from '../../../contract/keys.ts'
import { addMember, changeMember, getMember, listMembers, removeMember } from '../../../contract/members.ts'
import { changeAccount, createAccount, getAccount, listAccounts } from '../../../contract/operator.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { mount } from '../../platform/http/mount.ts'
import { presence } from '../../platform/http/presence.ts'
import type { Accounts } from './service.ts'

/** The audit actor of a caller that acts as operator of the service, not as a member of an account. */
const asOperator = ({ user_id, key_id, idempotency }: Caller) => ({
  kind: 'operator' as const,
  user_id,
  key_id,
  ...(idempotency && { idempotency }),
})

export function accountRoutes(app: FastifyInstance, accounts: Accounts, stopping: AbortSignal): void {
  const { keys, members, operator } = accounts
  mount(app, getProfile, ({ caller }) => accounts.profile(caller))
  mount(app, getPresence, async ({ query, reply }) => {
    const signal = presence(reply, stopping)
    await sleep(1000 * query.wait_seconds, undefined, { signal }).catch(() => signal.throwIfAborted())
    return { present: true as const }
  })
  mount(app, listAudit, ({ caller, query }) => accounts.audit(caller, query))

  mount(app, createKey, ({ caller, body }) => keys.create(caller, body))
  mount(app, listKeys, ({ caller, query }) => keys.list(caller, query))
  mount(app, getKey, ({ caller, params }) => keys.get(caller, params.key_id))
  mount(app, renameKey, ({ caller, params, body }) => keys.rename(caller, params.key_id, body.name))
  mount(app, revokeKey, ({ caller, params }) => keys.revoke(caller, params.key_id))

  mount(app, addMember, ({ caller, body }) => members.add(caller, body))
  mount(app, listMembers, ({ caller, query }) => members.list(caller, query))
  mount(app, getMember, ({ caller, params }) => members.get(caller, params.user_id))
  mount(app, changeMember, ({ caller, params, body }) => members.change(caller, params.user_id, body))
  mount(app, removeMember, ({ caller, params }) => members.remove(caller, params.user_id))

  mount(app, createAccount, ({ caller, body }) => operator.create(asOperator(caller), body))
  mount(app, listAccounts, ({ query }) => operator.list(query))
  mount(app, getAccount, ({ params }) => operator.get(params.account_id))
  mount(app, changeAccount, ({ caller, params, body }) =>
    operator.change(asOperator(caller), params.account_id, body, caller.account_id),
  )
}
