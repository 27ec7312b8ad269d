// All accounts of the installation, as its operator sees them.
import type { z } from 'zod'
import type { ListQuery } from '../../contract/common.ts'
import { ApiError } from '../../contract/errors.ts'
import type { Member } from '../../contract/members.ts'
import type { Account, changeAccount, createAccount } from '../../contract/operator.ts'
import { newId } from '../../lib/ids.ts'
import type { Db, Trx } from '../db/open.ts'
import { type Actor, recordAct } from '../events/audit.ts'
import type { Plans } from '../plans.ts'
import type { Keys } from './keys.ts'
import { memberToWire } from './members.ts'
import * as store from './store.ts'

type Asked = z.output<typeof createAccount.body>

export interface Operator {
  /** Makes an account with its owner, who has no key yet. */
  make(trx: Trx, by: Actor, asked: Asked): Promise<{ account: store.AccountRow; owner: store.UserRow }>
  create(by: Actor, asked: Asked): Promise<{ account: Account; owner: Member; key: string }>
  list(query: ListQuery): Promise<{ items: Account[]; has_more: boolean }>
  get(id: string): Promise<Account>
  change(by: Actor, id: string, asked: z.output<typeof changeAccount.body>): Promise<Account>
}

interface Options {
  db: Db
  plans: Plans
  defaultTier: string
  keys: Keys
  /** Told that what keys may do has changed, after it has been committed. */
  changed(): void
  now(): number
}

export function createOperator({ db, plans, defaultTier, keys, changed, now }: Options): Operator {
  async function toWire(row: store.AccountRow): Promise<Account> {
    const { id, name, tier, suspended_at, created_at } = row
    const status = suspended_at === null ? 'active' : 'suspended'
    return {
      id,
      name,
      tier,
      status,
      members: await store.countMembers(db, id),
      created_at: new Date(created_at).toISOString(),
    }
  }

  async function find(id: string): Promise<store.AccountRow> {
    const row = await store.account(db, id)
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

  async function make(trx: Trx, by: Actor, { name, tier = defaultTier, owner: { name: owner_name, email } }: Asked) {
    const created_at = now()
    const account = { id: newId('acc'), name, tier: requireTier(tier), suspended_at: null, created_at }
    const account_id = account.id
    const role = 'owner' as const
    const owner = {
      id: newId('usr'),
      account_id,
      name: owner_name,
      email: email?.toLowerCase() ?? null,
      role,
      removed_at: null,
      created_at,
    }
    await store.insertAccount(trx, account)
    await store.insertUser(trx, owner)
    await recordAct(trx, { ...by, account_id }, 'account.created', account_id, { name, tier }, created_at)
    return { account, owner }
  }

  return {
    make,

    async create(by, asked) {
      const made = await db.transaction().execute(async (trx) => {
        const { account, owner } = await make(trx, by, asked)
        return { account, owner, key: await keys.give(trx, by, owner, { name: 'first key', scopes: 'full' }) }
      })
      return { account: await toWire(made.account), owner: memberToWire(made.owner), key: made.key.key }
    },

    async list({ limit, after }) {
      const last = after ? await find(after) : undefined
      const rows = await store.accounts(db, limit, last)
      return { items: await Promise.all(rows.slice(0, limit).map(toWire)), has_more: rows.length > limit }
    },

    get: async (id) => toWire(await find(id)),

    async change(by, id, { name, tier, status }) {
      const before = await find(id)
      const suspended_at =
        status === undefined ? before.suspended_at : status === 'active' ? null : (before.suspended_at ?? now())
      const values = { name: name ?? before.name, tier: requireTier(tier ?? before.tier), suspended_at }
      await db.transaction().execute(async (trx) => {
        await store.updateAccount(trx, id, values)
        await recordAct(trx, { ...by, account_id: id }, 'account.changed', id, { name, tier, status }, now())
      })
      changed()
      return toWire({ ...before, ...values })
    },
  }
}
