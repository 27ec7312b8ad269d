import { hash, timingSafeEqual } from 'node:crypto'
import type { z } from 'zod'
import type { Profile } from '../../contract/accounts.ts'
import { type Tier, tiers } from '../../contract/hub.ts'
import { type Scope, type ScopePreset, scopePresets } from '../../contract/route.ts'
import type { Db } from '../db/open.ts'
import type { Caller } from '../http/auth.ts'
import { newId } from '../ids.ts'
import { createShortCache } from '../short-cache.ts'
import { isWellFormed, newKey, prefixLength } from './key-format.ts'
import * as store from './store.ts'

export interface NewKey {
  id: string
  name: string
  key: string
  scopes: readonly Scope[]
}

export interface Accounts {
  /** Makes the owner's account and user where there is no account yet. */
  ensureOwner(): Promise<void>
  /** Makes the owner's first key where no key has ever been made; else undefined. */
  createFirstKey(): Promise<NewKey | undefined>
  createAccount(name: string): Promise<{ account_id: string; user_id: string }>
  /** Makes a key for a user, by default the installation's owner. The key itself is not stored and cannot be shown again. */
  createKey(name: string, preset: ScopePreset, user_id?: string): Promise<NewKey>
  /** Whose key it is. One that is revoked, by whatever process, is not found any more within half a second. */
  findKey(key: string): Promise<Caller | undefined>
  profile(caller: Caller): Promise<z.input<typeof Profile>>
}

const hashOf = (key: string) => hash('sha256', key, 'hex')
/** How long a key is believed without asking the database: another process may revoke it there. */
const keyKept_ms = 500

export function createAccounts(db: Db, defaultTier: Tier['id'], now: () => number = Date.now): Accounts {
  async function makeKey(account_id: string, user_id: string, name: string, preset: ScopePreset): Promise<NewKey> {
    const key = newKey()
    const row = {
      id: newId('key'),
      account_id,
      user_id,
      name,
      prefix: key.slice(0, prefixLength),
      hash: hashOf(key),
      scopes_json: JSON.stringify(scopePresets[preset]),
    }
    await store.insertKey(db, { ...row, created_at: now() })
    return { id: row.id, name, key, scopes: scopePresets[preset] }
  }

  async function createAccount(name: string) {
    const account_id = newId('acc')
    const user_id = newId('usr')
    await db
      .transaction()
      .execute((trx) =>
        store.insertAccount(
          trx,
          { id: account_id, name, tier: defaultTier, created_at: now() },
          { id: user_id, account_id, name, email: null, role: 'owner', created_at: now() },
        ),
      )
    return { account_id, user_id }
  }

  const callers = createShortCache<Caller>(keyKept_ms)
  async function callerOf(key: string, keyHash: string): Promise<Caller | undefined> {
    for (const row of await store.keysByPrefix(db, key.slice(0, prefixLength)))
      if (timingSafeEqual(Buffer.from(keyHash, 'hex'), Buffer.from(row.hash, 'hex')))
        return { account_id: row.account_id, user_id: row.user_id, key_id: row.id, scopes: JSON.parse(row.scopes_json) as Scope[] }
    return undefined
  }

  return {
    createAccount,

    async ensureOwner() {
      if ((await store.countAccounts(db)) === 0) await createAccount('Owner')
    },

    async createFirstKey() {
      return (await store.anyKey(db)) ? undefined : this.createKey('first key', 'full')
    },

    async createKey(name, preset, user_id) {
      const user = user_id ? await store.userById(db, user_id) : await store.firstOwner(db)
      if (!user) throw new Error('there is no account yet: start the service once with `npm start`')
      return makeKey(user.account_id, user.id, name, preset)
    },

    async findKey(key) {
      if (!isWellFormed(key)) return undefined
      const keyHash = hashOf(key)
      return callers.find(keyHash, () => callerOf(key, keyHash))
    },

    async profile(caller) {
      const user = await store.userById(db, caller.user_id)
      const account = await store.accountById(db, caller.account_id)
      const key = await store.keyById(db, caller.key_id)
      return {
        id: user.id,
        name: user.name,
        email: user.email,
        role: user.role,
        account: { id: account.id, name: account.name },
        tier: tiers.find((tier) => tier.id === account.tier)!,
        key: { id: key.id, name: key.name, prefix: key.prefix, scopes: [...caller.scopes], created_at: new Date(key.created_at).toISOString() },
      }
    },
  }
}
