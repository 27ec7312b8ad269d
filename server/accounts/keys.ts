import { crc32 } from 'node:zlib'
import type { z } from 'zod'
import type { ListQuery } from '../../contract/common.ts'
import { ApiError } from '../../contract/errors.ts'
import type { ApiKey, createKey, NewApiKey } from '../../contract/keys.ts'
import { type Role, roleScopes, type Scope, type ScopePreset, scopePresets } from '../../contract/scopes.ts'
import { newId, randomBase62 } from '../../lib/ids.ts'
import type { Db, Trx } from '../db/open.ts'
import { type Actor, recordAct } from '../events/audit.ts'
import type { Caller } from '../http/auth.ts'
import { hashOf } from './callers.ts'
import * as store from './store.ts'

type Asked = z.output<typeof createKey.body>

export interface Keys {
  create(caller: Caller, asked: Asked): Promise<NewApiKey>
  /** Makes a key on behalf of whoever may give a member any scope that their role allows. */
  give(trx: Trx, by: Actor, member: store.UserRow, key: { name: string; scopes: ScopePreset }): Promise<NewApiKey>
  list(caller: Caller, query: ListQuery): Promise<{ items: ApiKey[]; has_more: boolean }>
  get(caller: Caller, id: string): Promise<ApiKey>
  rename(caller: Caller, id: string, name: string): Promise<ApiKey>
  revoke(caller: Caller, id: string): Promise<{ id: string; deleted: true }>
}

/** `changed` is told what keys may do from now on, after it has been committed. */
export function createKeys(db: Db, changed: () => void, now: () => number): Keys {
  const toWire = (row: store.KeyRow): ApiKey => {
    const { id, name, prefix, user_id } = row
    const time = (at: number | null) => (at === null ? null : new Date(at).toISOString())
    return {
      id,
      name,
      prefix,
      user_id,
      scopes: JSON.parse(row.scopes_json),
      status: row.expires_at !== null && row.expires_at <= now() ? 'expired' : 'active',
      created_at: new Date(row.created_at).toISOString(),
      expires_at: time(row.expires_at),
      last_used_at: time(row.last_used_at),
    }
  }

  async function insert(
    trx: Trx,
    by: Actor,
    member: store.UserRow,
    name: string,
    scopes: readonly Scope[],
    expires_at: number | null,
  ): Promise<NewApiKey> {
    const key = newKey()
    const { id: user_id, account_id } = member
    const row = {
      id: newId('key'),
      account_id,
      user_id,
      name,
      prefix: key.slice(0, prefixLength),
      hash: hashOf(key),
      scopes_json: JSON.stringify(scopes),
      created_at: now(),
      expires_at,
      revoked_at: null,
      last_used_at: null,
    }
    await store.insertKey(trx, row)
    await recordAct(trx, { ...by, account_id }, 'key.created', row.id, { name, user_id, scopes }, row.created_at)
    return { ...toWire(row), key }
  }

  const rulesOthers = ({ scopes }: Caller) => scopes.includes('members:write')

  /**
   * Throws unless the member is the caller, or one whom the caller rules over: a key of an owner's is as good as the
   * owner.
   */
  function requireRule(caller: Caller, member: { id: string; role: Role }): void {
    if (member.id !== caller.user_id && member.role === 'owner' && caller.role !== 'owner')
      throw new ApiError(
        'insufficient_permissions',
        'Only an owner of the account may make, change or revoke keys of an owner.',
        {
          details: { role: 'owner' },
        },
      )
  }

  /** The key, where it is the caller's own or the caller rules over members. Whose it is otherwise is not told. */
  async function mine(trx: Db | Trx, caller: Caller, id: string): Promise<store.KeyRow> {
    const row = await store.key(trx, caller.account_id, id)
    if (!row || (row.user_id !== caller.user_id && !rulesOthers(caller)))
      throw new ApiError('key_not_found', `There is no key '${id}'.`)
    return row
  }

  async function changeable(trx: Trx, caller: Caller, id: string): Promise<store.KeyRow> {
    const row = await mine(trx, caller, id)
    requireRule(caller, (await store.userById(trx, row.user_id))!)
    return row
  }

  return {
    give: (trx, by, member, { name, scopes }) =>
      insert(trx, by, member, name, within(scopePresets[scopes], roleScopes[member.role]), null),

    async create(caller, { name, scopes: asked, expires_at, user_id = caller.user_id }) {
      const until = expires_at === null ? null : Date.parse(expires_at)
      if (until !== null && until <= now())
        throw new ApiError('invalid_request', "'expires_at' is in the past. Give a time to come.", {
          param: 'expires_at',
        })
      return db.transaction().execute(async (trx) => {
        const member = await store.member(trx, caller.account_id, user_id)
        if (!member || (member.id !== caller.user_id && !rulesOthers(caller)))
          throw new ApiError('member_not_found', `There is no member '${user_id}'.`)
        requireRule(caller, member)
        return insert(trx, caller, member, name, scopesFor(asked, caller, member.role), until)
      })
    },

    async list(caller, { limit, after }) {
      const last = after ? await store.keyEver(db, caller.account_id, after) : undefined
      if (after && !last) throw new ApiError('key_not_found', `There is no key '${after}' to go on after.`)
      const rows = await store.listKeys(
        db,
        caller.account_id,
        rulesOthers(caller) ? undefined : caller.user_id,
        limit,
        last,
      )
      return { items: rows.slice(0, limit).map(toWire), has_more: rows.length > limit }
    },

    get: async (caller, id) => toWire(await mine(db, caller, id)),

    async rename(caller, id, name) {
      return db.transaction().execute(async (trx) => {
        const row = await changeable(trx, caller, id)
        await store.updateKey(trx, id, { name })
        await recordAct(trx, caller, 'key.renamed', id, { from: row.name, to: name }, now())
        return toWire({ ...row, name })
      })
    },

    async revoke(caller, id) {
      await db.transaction().execute(async (trx) => {
        const { name, user_id } = await changeable(trx, caller, id)
        await store.updateKey(trx, id, { revoked_at: now() })
        await recordAct(trx, caller, 'key.revoked', id, { name, user_id }, now())
      })
      changed()
      return { id, deleted: true }
    },
  }
}

const within = (scopes: readonly Scope[], bounds: readonly Scope[]) => scopes.filter((scope) => bounds.includes(scope))

/**
 * What the new key carries: of a preset, what its maker may do; of a list, all of it, or an error that says what the
 * maker may not do.
 */
function scopesFor(asked: Asked['scopes'], { scopes: own }: Caller, role: Role): readonly Scope[] {
  const scopes = typeof asked === 'string' ? within(scopePresets[asked], own) : [...new Set(asked)]
  const beyond = scopes.find((scope) => !own.includes(scope))
  if (beyond)
    throw new ApiError(
      'insufficient_permissions',
      `You may not do '${beyond}' yourself, so you cannot make a key that may.`,
      { details: { scope: beyond } },
    )
  const useful = within(scopes, roleScopes[role])
  if (useful.length > 0 && (typeof asked === 'string' || useful.length === scopes.length)) return useful
  throw new ApiError(
    'invalid_request',
    `A member of the role '${role}' may do nothing of that, or not all of it. Allowed are: ${roleScopes[role].join(', ')}.`,
    {
      param: 'scopes',
    },
  )
}

// `tny_`, 30 characters of base62 (178 bits), 6 of checksum: secret scanners can find such a key, and a typo is told
// apart from a wrong key without a look-up.
const pattern = /^tny_[0-9A-Za-z]{36}$/
export const prefixLength = 12

const checksum = (body: string) => toBase62(crc32(body)).padStart(6, '0')

export function newKey(): string {
  const body = randomBase62(30)
  return `tny_${body}${checksum(body)}`
}

/** Whether the text could be a key at all. */
export function isWellFormed(key: string): boolean {
  return pattern.test(key) && key.slice(34) === checksum(key.slice(4, 34))
}

function toBase62(value: number): string {
  const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
  let text = ''
  for (let rest = value; rest > 0; rest = Math.floor(rest / 62)) text = alphabet[rest % 62] + text
  return text
}
