// Resolves an API key to the caller it belongs to.

import { timingSafeEqual } from 'node:crypto'
import type { Logger } from 'pino'
import { roleScopes } from '../../../contract/scopes.ts'
import { after } from '../../../lib/after.ts'
import { hashOf, isWellFormed, prefixLength } from '../../../lib/key-format.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { type Changes, cacheTtl_ms } from '../../platform/redis/changes.ts'
import * as store from './store.ts'

export interface Callers {
  /**
   * The caller of a key; undefined for a malformed, unknown, revoked or expired key. A change made by another process
   * takes effect within half a second, and with Redis when the caller's version is checked. `knownOnly`: look up only
   * keys that were valid before.
   */
  find(key: string, knownOnly?: boolean): Promise<Caller | undefined> | Caller | undefined
  /** The caller that the key of this one belongs to now; undefined if it was revoked or has expired. */
  findAgain(caller: Caller): Promise<Caller | undefined> | Caller | undefined
  /** The callers of those of these keys that are good now, by the id of the key. Looks at the database itself. */
  current(key_ids: string[]): Promise<Map<string, Caller>>
  /** Writes the last-used times of keys. */
  flush(): Promise<void>
}

/** What is kept of a key: its start, by which its row is found, and its hash. */
interface KeyDigest {
  prefix: string
  hash: string
}

const verified_max = 10_000
const idsPerQuery = 500
/** The resolution of last-used times. */
const minute_ms = 60_000

export function createCallers(db: Db, changes: Changes, log: Logger, now: () => number): Callers {
  const cache = createTtlCache<{ caller: Caller; expires_at: number }>(cacheTtl_ms)
  changes.onAnnounced(cache.clear)
  /**
   * Hashes of keys that were valid once, with their account: they are still accepted from an address throttled for
   * wrong keys.
   */
  const verifiedHashes = new Map<string, string>()
  /** The key with which a caller was found, so that no request hashes it twice. */
  const foundBy = new WeakMap<Caller, KeyDigest>()
  let used = new Map<string, number>()

  const callerOf = (row: store.UsableKey, version: string | undefined): Caller => ({
    kind: 'key',
    account_id: row.account_id,
    user_id: row.user_id,
    key_id: row.id,
    role: row.role,
    scopes: fromJson(row.scopes_json).filter((scope) => roleScopes[row.role].includes(scope)),
    tier: row.tier,
    suspended: row.suspended_at !== null,
    expires_at: row.expires_at,
    ...(changes.shared && { version: version ?? '' }),
  })

  async function lookUp(digest: KeyDigest, version: string | undefined) {
    for (const row of await store.usable(db, digest.prefix)) {
      if (!timingSafeEqual(Buffer.from(digest.hash, 'hex'), Buffer.from(row.hash, 'hex'))) continue
      const minute = Math.floor(now() / minute_ms) * minute_ms
      if ((row.last_used_at ?? 0) < minute) used.set(row.id, minute)
      const caller = callerOf(row, version)
      if (verifiedHashes.size >= verified_max) verifiedHashes.clear()
      verifiedHashes.set(digest.hash, row.account_id)
      foundBy.set(caller, digest)
      return { caller, expires_at: row.expires_at ?? Number.POSITIVE_INFINITY }
    }
    return undefined
  }

  const unexpired = (entry: { caller: Caller; expires_at: number } | undefined) =>
    entry && entry.expires_at > now() ? entry.caller : undefined

  function findByDigest(digest: KeyDigest, account_id: string | undefined) {
    // As it was before the lookup: a change during it must show.
    const version = account_id === undefined ? undefined : changes.version(account_id)
    return after(
      cache.getOrLoad(digest.hash, () => lookUp(digest, version), version),
      unexpired,
    )
  }

  return {
    find(key, knownOnly = false) {
      const digest = { prefix: key.slice(0, prefixLength), hash: hashOf(key) }
      const account_id = verifiedHashes.get(digest.hash)
      if (account_id === undefined && (knownOnly || !isWellFormed(key))) return undefined
      return findByDigest(digest, account_id)
    },

    findAgain(caller) {
      const digest = foundBy.get(caller)
      if (!digest) throw new Error('a caller that no key was found for was asked for again')
      return findByDigest(digest, caller.account_id)
    },

    async current(key_ids) {
      const callers = new Map<string, Caller>()
      for (let at = 0; at < key_ids.length; at += idsPerQuery)
        for (const row of await store.usableByIds(db, key_ids.slice(at, at + idsPerQuery)))
          if ((row.expires_at ?? Number.POSITIVE_INFINITY) > now()) callers.set(row.id, callerOf(row, undefined))
      return callers
    },

    async flush() {
      if (used.size === 0) return
      const marks = used
      used = new Map()
      try {
        await db.transaction().execute(async (trx) => {
          for (const [id, at] of marks) await store.updateKey(trx, id, { last_used_at: at })
        })
      } catch (error) {
        // The times only help owners find idle keys: a gap is acceptable.
        log.warn({ err: error, keys: marks.size }, 'the last-used times of keys could not be written')
      }
    },
  }
}
