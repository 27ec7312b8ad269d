// Resolves an API key to the caller it belongs to.
import { timingSafeEqual } from 'node:crypto'
import type { Logger } from 'pino'
import { roleScopes, type Scope } from '../../contract/scopes.ts'
import { createTtlCache } from '../../lib/ttl-cache.ts'
import type { Db } from '../db/open.ts'
import type { Caller } from '../http/auth.ts'
import { type Changes, cacheTtl_ms } from '../redis/changes.ts'
import { hashOf, isWellFormed, prefixLength } from './key-format.ts'
import * as store from './store.ts'

export interface Callers {
  /**
   * The caller of a key; undefined for a malformed, unknown, revoked or expired key. A change made by another process
   * takes effect within half a second, and with Redis when the caller's version is checked. `knownOnly`: look up only
   * keys that were valid before.
   */
  find(key: string, knownOnly?: boolean): Promise<Caller | undefined>
  /** Writes the last-used times of keys. */
  flush(): Promise<void>
}

const verified_max = 10_000
/** The resolution of last-used times. */
const minute_ms = 60_000

export function createCallers(db: Db, changes: Changes, log: Logger, now: () => number): Callers {
  const known = createTtlCache<{ caller: Caller; expires_at: number }>(cacheTtl_ms)
  changes.onAnnounced(known.clear)
  /**
   * Hashes of keys that were valid once, with their account: they are still accepted from an address throttled for wrong
   * keys.
   */
  const verifiedHashes = new Map<string, string>()
  let used = new Map<string, number>()

  async function lookUp(key: string, keyHash: string, version: string | undefined) {
    for (const row of await store.usable(db, key.slice(0, prefixLength))) {
      if (!timingSafeEqual(Buffer.from(keyHash, 'hex'), Buffer.from(row.hash, 'hex'))) continue
      const minute = Math.floor(now() / minute_ms) * minute_ms
      if ((row.last_used_at ?? 0) < minute) used.set(row.id, minute)
      const granted = JSON.parse(row.scopes_json) as Scope[]
      const { account_id, user_id, tier } = row
      const caller: Caller = {
        kind: 'key',
        account_id,
        user_id,
        key_id: row.id,
        role: row.role,
        scopes: granted.filter((scope) => roleScopes[row.role].includes(scope)),
        tier,
        suspended: row.suspended_at !== null,
        ...(changes.shared && { version: version ?? '' }),
      }
      if (verifiedHashes.size >= verified_max) verifiedHashes.clear()
      verifiedHashes.set(keyHash, account_id)
      return { caller, expires_at: row.expires_at ?? Number.POSITIVE_INFINITY }
    }
    return undefined
  }

  return {
    async find(key, knownOnly = false) {
      if (!isWellFormed(key)) return undefined
      const keyHash = hashOf(key)
      const account_id = verifiedHashes.get(keyHash)
      if (knownOnly && account_id === undefined) return undefined
      // As it was before the lookup: a change during it must show.
      const version = account_id === undefined ? undefined : changes.version(account_id)
      const found = await known.getOrLoad(keyHash, () => lookUp(key, keyHash, version), version)
      return found && found.expires_at > now() ? found.caller : undefined
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
