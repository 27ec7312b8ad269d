import type { z } from 'zod'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { ApiKey, createKey, NewApiKey } from '../../../contract/keys.ts'
import { type Role, roleScopes, type Scope, type ScopePreset, scopePresets } from '../../../contract/scopes.ts'
import { newId } from '../../../lib/ids.ts'
import { hashOf, newKey, prefixLength } from '../../../lib/key-format.ts'
import { day_ms, isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type Actor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import { requireStillGood } from './authority.ts'
import * as store from './store.ts'

type CreateKeyRequest = z.output<typeof createKey.body>

/** A key for the operator that the API makes lasts no longer: the command line on the machine makes lasting ones. */
const operatorKey_ms = 31 * day_ms

interface Options {
  db: Db
  /** Called after a committed change to what keys may do. */
  announce: Changes['announce']
  /** Active keys of an account. */
  keysMax: number
  now(): number
}

export class Keys {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  /** Creates a key for the operator or the command line: the preset limited by the member's role only. */
  issue(
    trx: Trx,
    by: Actor,
    member: store.UserRow,
    { name, scopes }: { name: string; scopes: ScopePreset },
  ): Promise<NewApiKey> {
    return this.insert(trx, by, member, name, intersect(scopePresets[scopes], roleScopes[member.role]), null)
  }

  async create(
    caller: Caller,
    { name, scopes: requested, expires_at, user_id = caller.user_id }: CreateKeyRequest,
  ): Promise<NewApiKey> {
    const { db, keysMax, now } = this.options
    const until = expires_at === null ? null : Date.parse(expires_at)
    if (until !== null && until <= now())
      throw new ApiError('invalid_request', "'expires_at' is in the past. Give a time to come.", {
        param: 'expires_at',
      })
    return db.transaction().execute(async (trx) => {
      await requireStillGood(trx, caller, now())
      // A server may still know the role that the caller had; a key that it allowed would stay.
      const { role } = (await store.findMember(trx, caller.account_id, caller.user_id))!
      const by = { ...caller, role, scopes: intersect(caller.scopes, roleScopes[role]) }
      const member = await store.findMember(trx, caller.account_id, user_id)
      if (!member || (member.id !== caller.user_id && !managesMembers(by)))
        throw new ApiError('member_not_found', `There is no member '${user_id}'.`)
      requireAuthorityOver(by, member)
      const scopes = scopesFor(requested, by, member.role)
      this.requireBoundedLife(by, scopes, until)
      if ((await store.countKeys(trx, caller.account_id, now())) >= keysMax)
        throw new ApiError(
          'too_many',
          `This account has ${keysMax} active keys, the most there may be. Revoke one first.`,
        )
      return this.insert(trx, caller, member, name, scopes, until)
    })
  }

  async list(caller: Caller, { limit, after }: ListQuery): Promise<Page<ApiKey>> {
    const { db } = this.options
    const last = after ? await store.findKeyEver(db, caller.account_id, after) : undefined
    if (after && !last) throw new ApiError('key_not_found', `There is no key '${after}' to continue after.`)
    const rows = await store.listKeys(
      db,
      caller.account_id,
      managesMembers(caller) ? undefined : caller.user_id,
      limit,
      last,
    )
    return pageOf(
      rows.map((row) => this.toResponse(row)),
      limit,
    )
  }

  async get(caller: Caller, id: string): Promise<ApiKey> {
    return this.toResponse(await this.findVisible(this.options.db, caller, id))
  }

  async rename(caller: Caller, id: string, name: string): Promise<ApiKey> {
    const { db, now } = this.options
    return db.transaction().execute(async (trx) => {
      const row = await this.findChangeable(trx, caller, id)
      await store.updateKey(trx, id, { name })
      await recordAuditEntry(trx, caller, 'key.renamed', id, { from: row.name, to: name }, now())
      return this.toResponse({ ...row, name })
    })
  }

  async revoke(caller: Caller, id: string): Promise<{ id: string; deleted: true }> {
    const { db, announce, now } = this.options
    await db.transaction().execute(async (trx) => {
      const { name, user_id } = await this.findChangeable(trx, caller, id)
      await store.updateKey(trx, id, { revoked_at: now() })
      await recordAuditEntry(trx, caller, 'key.revoked', id, { name, user_id }, now())
    })
    await announce(caller.account_id)
    return { id, deleted: true }
  }

  private toResponse(row: store.KeyRow): ApiKey {
    const { id, name, prefix, user_id } = row
    return {
      id,
      name,
      prefix,
      user_id,
      scopes: fromJson(row.scopes_json),
      status: row.expires_at !== null && row.expires_at <= this.options.now() ? 'expired' : 'active',
      created_at: isoTime(row.created_at),
      expires_at: isoTime(row.expires_at),
      last_used_at: isoTime(row.last_used_at),
    }
  }

  private async insert(
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
      created_at: this.options.now(),
      expires_at,
      revoked_at: null,
      last_used_at: null,
    }
    await store.insertKey(trx, row)
    await recordAuditEntry(trx, { ...by, account_id }, 'key.created', row.id, { name, user_id, scopes }, row.created_at)
    return { ...this.toResponse(row), key }
  }

  /**
   * Throws invalid_request for a key that would outlast the one that makes it, or lets operate the service for long.
   */
  private requireBoundedLife(caller: Caller, scopes: readonly Scope[], until: number | null): void {
    const tooLong = (message: string) => new ApiError('invalid_request', message, { param: 'expires_at' })
    const lasts = until ?? Number.POSITIVE_INFINITY
    if (caller.kind === 'key' && lasts > (caller.expires_at ?? Number.POSITIVE_INFINITY))
      throw tooLong(
        `'expires_at': a key that expires makes only keys that expire no later. Give ${isoTime(caller.expires_at!)} ` +
          'or earlier.',
      )
    if (scopes.includes('operator') && lasts > this.options.now() + operatorKey_ms)
      throw tooLong(
        `'expires_at': a key with the scope operator lasts ${operatorKey_ms / day_ms} days at most. On the machine ` +
          'of the service, `./tunery keys create --scopes operator` makes a lasting one.',
      )
  }

  /** The caller's own key, or any key of the account for a caller that manages members. Throws key_not_found. */
  private async findVisible(trx: Queryable, caller: Caller, id: string): Promise<store.KeyRow> {
    const row = await store.findKey(trx, caller.account_id, id)
    if (!row || (row.user_id !== caller.user_id && !managesMembers(caller)))
      throw new ApiError('key_not_found', `There is no key '${id}'.`)
    return row
  }

  private async findChangeable(trx: Trx, caller: Caller, id: string): Promise<store.KeyRow> {
    const row = await this.findVisible(trx, caller, id)
    requireAuthorityOver(caller, (await store.findUserUnscoped(trx, row.user_id))!)
    return row
  }
}

const managesMembers = ({ scopes }: Caller) => scopes.includes('members:write')

/** Throws insufficient_permissions if the member is an owner and the caller is not. */
function requireAuthorityOver(caller: Caller, member: { id: string; role: Role }): void {
  if (member.id !== caller.user_id && member.role === 'owner' && caller.role !== 'owner')
    throw new ApiError(
      'insufficient_permissions',
      'Only an owner of the account may make, change or revoke keys of an owner.',
      { details: { role: 'owner' } },
    )
}

const intersect = (scopes: readonly Scope[], bounds: readonly Scope[]) =>
  scopes.filter((scope) => bounds.includes(scope))

/**
 * The scopes of the new key. A preset is reduced to the scopes of its creator; a list must be within them, or
 * insufficient_permissions is thrown.
 */
function scopesFor(requested: CreateKeyRequest['scopes'], { scopes: held }: Caller, role: Role): readonly Scope[] {
  const scopes = typeof requested === 'string' ? intersect(scopePresets[requested], held) : [...new Set(requested)]
  const missing = scopes.find((scope) => !held.includes(scope))
  if (missing)
    throw new ApiError(
      'insufficient_permissions',
      `You may not do '${missing}' yourself, so you cannot make a key that may.`,
      { details: { scope: missing } },
    )
  const effective = intersect(scopes, roleScopes[role])
  if (effective.length > 0 && (typeof requested === 'string' || effective.length === scopes.length)) return effective
  throw new ApiError(
    'invalid_request',
    `A member of the role '${role}' may do nothing of that, or not all of it. Allowed are: ` +
      `${roleScopes[role].join(', ')}.`,
    { param: 'scopes' },
  )
}
