// From a key to who makes the request.
import { hash, timingSafeEqual } from 'node:crypto'
import type { Logger } from 'pino'
import { roleScopes, type Scope } from '../../contract/scopes.ts'
import { createShortCache } from '../../lib/ttl-cache.ts'
import type { Db } from '../db/open.ts'
import type { Caller } from '../http/auth.ts'
import { isWellFormed, prefixLength } from './keys.ts'
import * as store from './store.ts'

export interface Callers {
  /**
   * Whose key it is; undefined for one that is mistyped, unknown, revoked or expired. What another process changes is
   * seen within half a second.
   */
  find(key: string, knownOnly?: boolean): Promise<Caller | undefined>
  /** Something about keys, members or accounts has changed: the next request sees it. */
  changed(): void
  /** Writes when keys were last used. */
  flush(): Promise<void>
}

export const hashOf = (key: string) => hash('sha256', key, 'hex')

/** How long a key is believed without asking the database: another process may revoke it there. */
const kept_ms = 500
const right_max = 10_000
/** How exactly the last use of a key is told. */
const minute_ms = 60_000

export function createCallers(db: Db, log: Logger, now: () => number): Callers {
  const known = createShortCache<{ caller: Caller; expires_at: number }>(kept_ms)
  /** Hashes of keys that were right once: their owners are let in from an address that others guess from. */
  const right = new Set<string>()
  let used = new Map<string, number>()

  async function lookUp(key: string, keyHash: string) {
    for (const row of await store.usable(db, key.slice(0, prefixLength))) {
      if (!timingSafeEqual(Buffer.from(keyHash, 'hex'), Buffer.from(row.hash, 'hex'))) continue
      const minute = Math.floor(now() / minute_ms) * minute_ms
      if ((row.last_used_at ?? 0) < minute) used.set(row.id, minute)
      const carried = JSON.parse(row.scopes_json) as Scope[]
      const { account_id, user_id, tier } = row
      const caller: Caller = {
        kind: 'key',
        account_id,
        user_id,
        key_id: row.id,
        role: row.role,
        scopes: carried.filter((scope) => roleScopes[row.role].includes(scope)),
        tier,
        suspended: row.suspended_at !== null,
      }
      if (right.size >= right_max) right.clear()
      right.add(keyHash)
      return { caller, expires_at: row.expires_at ?? Number.POSITIVE_INFINITY }
    }
    return undefined
  }

  return {
    async find(key, knownOnly = false) {
      if (!isWellFormed(key)) return undefined
      const keyHash = hashOf(key)
      if (knownOnly && !right.has(keyHash)) return undefined
      const found = await known.find(keyHash, () => lookUp(key, keyHash))
      return found && found.expires_at > now() ? found.caller : undefined
    },

    changed: known.clear,

    async flush() {
      if (used.size === 0) return
      const marks = used
      used = new Map()
      try {
        await db.transaction().execute(async (trx) => {
          for (const [id, at] of marks) await store.updateKey(trx, id, { last_used_at: at })
        })
      } catch (error) {
        // It tells an owner which keys lie idle; a gap in that is no reason for more.
        log.warn({ err: error, keys: marks.size }, 'when keys were last used could not be written')
      }
    },
  }
}
