// The operator's view: all accounts of the installation.
import type { z } from 'zod'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Member } from '../../../contract/members.ts'
import type { Account, changeAccount, createAccount } from '../../../contract/operator.ts'
import { newId } from '../../../lib/ids.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type Actor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import type { Keys } from './keys.ts'
import { toMemberResponse } from './members.ts'
import * as store from './store.ts'

type CreateAccountRequest = z.output<typeof createAccount.body>

export interface Operator {
  /** Inserts an account with its owner, without a key. */
  insertAccount(
    trx: Trx,
    by: Actor,
    request: CreateAccountRequest,
  ): Promise<{ account: store.AccountRow; owner: store.UserRow }>
  create(by: Actor, request: CreateAccountRequest): Promise<{ account: Account; owner: Member; key: string }>
  list(query: ListQuery): Promise<Page<Account>>
  get(id: string): Promise<Account>
  /** `own`: the operator's account, which they cannot suspend. */
  change(by: Actor, id: string, request: z.output<typeof changeAccount.body>, own_id?: string): Promise<Account>
}

interface Options {
  db: Db
  plans: Plans
  defaultTier: string
  keys: Keys
  /** Called after a committed change to what keys may do. */
  announce: Changes['announce']
  now(): number
}

export function createOperator({ db, plans, defaultTier, keys, announce, now }: Options): Operator {
  async function toResponse(row: store.AccountRow): Promise<Account> {
    const { id, name, tier, suspended_at, created_at } = row
    const status = suspended_at === null ? 'active' : 'suspended'
    return { id, name, tier, status, members: await store.countMembers(db, id), created_at: isoTime(created_at) }
  }

  async function find(id: string): Promise<store.AccountRow> {
    const row = await store.findAccount(db, id)
    if (!row) throw new ApiError('account_not_found', `There is no account '${id}'.`)
    return row
  }

  function requireTier(id: string): string {
    if (plans.tier(id)) return id
    throw new ApiError(
      'invalid_request',
      `'tier': there is no tier '${id}'. There are: ${plans.tiers.map((tier) => tier.id).join(', ')}.`,
      { param: 'tier' },
    )
  }

  async function insertAccount(
    trx: Trx,
    by: Actor,
    { name, tier = defaultTier, owner: { name: owner_name, email } }: CreateAccountRequest,
  ) {
    const created_at = now()
    const account = { id: newId('acc'), name, tier: requireTier(tier), suspended_at: null, created_at }
    const account_id = account.id
    const role = 'owner' as const
    const owner = {
      id: newId('usr'),
      account_id,
      name: owner_name,
      email: email?.toLowerCase() ?? null,
      email_accepted_at: null,
      role,
      removed_at: null,
      operator: 0,
      created_at,
    }
    await store.insertAccount(trx, account)
    await store.insertUser(trx, owner)
    await recordAuditEntry(trx, { ...by, account_id }, 'account.created', account_id, { name, tier }, created_at)
    return { account, owner }
  }

  return {
    insertAccount,

    async create(by, request) {
      const created = await db.transaction().execute(async (trx) => {
        const { account, owner } = await insertAccount(trx, by, request)
        return { account, owner, key: await keys.issue(trx, by, owner, { name: 'first key', scopes: 'full' }) }
      })
      return {
        account: await toResponse(created.account),
        owner: toMemberResponse(created.owner),
        key: created.key.key,
      }
    },

    async list({ limit, after }) {
      const last = after ? await find(after) : undefined
      const rows = await store.accounts(db, limit, last)
      return pageOf(await Promise.all(rows.map(toResponse)), limit)
    },

    get: async (id) => toResponse(await find(id)),

    async change(by, id, { name, tier, status }, own_id) {
      const before = await find(id)
      if (status === 'suspended' && id === own_id)
        throw new ApiError(
          'in_use',
          'This is your own account: suspended, you could not reinstate it. `./tunery accounts suspend` on the ' +
            'machine can.',
          { param: 'status' },
        )
      const suspended_at =
        status === undefined ? before.suspended_at : status === 'active' ? null : (before.suspended_at ?? now())
      const values = { name: name ?? before.name, tier: requireTier(tier ?? before.tier), suspended_at }
      await db.transaction().execute(async (trx) => {
        await store.updateAccount(trx, id, values)
        await recordAuditEntry(trx, { ...by, account_id: id }, 'account.changed', id, { name, tier, status }, now())
      })
      await announce(id)
      return toResponse({ ...before, ...values })
    },
  }
}
