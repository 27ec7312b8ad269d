// Which accounts have changed: their keys, members, sessions, names or models. Caches are valid for one version of an
// account, so that a change which has been answered is seen by the next request, on every process that shares the
// Redis.
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Notifications } from '../cluster/notifications.ts'
import { type Redis, script } from './connection.ts'

/**
 * How long the caches of keys, sessions and names hold what they read. A change in the database shows after it at most.
 */
export const cacheTtl_ms = 500

export interface Changes {
  /**
   * The version of an account that this process has heard of last: what was read before may be outdated if it differs.
   * Always undefined without Redis.
   */
  version(account_id: string): string | undefined
  /** Whether versions are known at all, so that a request can be checked against them. */
  readonly shared: boolean
  /** Notes the version that Redis told. */
  note(account_id: string, version: string): void
  /**
   * Call it after a change is committed, and answer the change after it: then no process decides by what it read
   * before. While Redis is away it waits until every cache has ended.
   */
  announce(account_id: string): Promise<void>
  /** Calls `clear` for each change: at once for this process's own, soon for those of others. */
  onAnnounced(clear: () => void): void
}

/** Accounts whose version is remembered. Of a forgotten one, the next request reads again. */
const accounts_max = 100_000
/** Longer than anything read before is used. */
export const version_s = 600

export const versionKey = (account_id: string) => `{${account_id}}:version`
/** Never the same twice: a Redis that lost its data must not seem to be at an earlier version. */
export const newVersion = () => randomBytes(9).toString('base64url')

const announceScript = script(`redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) return {}`)

/** Without Redis other processes learn of a change by a notification, soon. */
export function createChanges(notifications: Notifications, redis?: Redis): Changes {
  const versions = new Map<string, string>()
  const note = (account_id: string, version: string) => {
    if (versions.size >= accounts_max) versions.clear()
    versions.set(account_id, version)
  }
  return {
    shared: redis !== undefined,
    version: (account_id) => versions.get(account_id),
    note,
    onAnnounced: (clear) => notifications.on('account', clear),
    async announce(account_id) {
      notifications.publish('account', account_id)
      if (!redis) return
      const version = newVersion()
      note(account_id, version)
      try {
        await redis.run(announceScript, [versionKey(account_id)], [version, version_s])
      } catch {
        // A timer may end up to a millisecond early.
        await sleep(cacheTtl_ms + 1)
      }
    },
  }
}
