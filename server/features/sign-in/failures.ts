// Tries to sign in that have not succeeded, and how long the next one has to wait: in this process, or in the Redis
// that several processes share.
import { type Redis, RedisAway, script } from '../../platform/redis/connection.ts'

export interface Failures {
  /** Counts a try. Resolves with the milliseconds to wait, without counting, while tries are blocked; else with 0. */
  begin(key: string): Promise<number>
  /** Takes one try back, and ends the block. */
  forget(key: string): Promise<void>
  clear(key: string): Promise<void>
}

/** Failures before tries are blocked, for twice as long with each further one. */
const failuresAllowed = 5
const firstBlock_s = 15
const longestBlock_s = 900
/** Remembered in this process. */
const keys_max = 10_000
/** Redis forgets failures this long after the last. */
const memory_s = 86_400

const beginScript = script(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local before = redis.call('HMGET', KEYS[1], 'count', 'blocked_until')
local blocked = tonumber(before[2] or 0)
if blocked > now then return {blocked - now} end
local count = tonumber(before[1] or 0) + 1
local over = count - ${failuresAllowed}
blocked = over < 0 and 0 or now + 1000 * math.min(${longestBlock_s}, ${firstBlock_s} * 2 ^ math.min(over, 20))
redis.call('HSET', KEYS[1], 'count', count, 'blocked_until', string.format('%d', blocked))
redis.call('EXPIRE', KEYS[1], ${memory_s})
return {0}`)

const forgetScript = script(`
local count = tonumber(redis.call('HGET', KEYS[1], 'count') or 0)
if ARGV[1] == 'one' and count > 1 then redis.call('HSET', KEYS[1], 'count', count - 1, 'blocked_until', 0)
else redis.call('DEL', KEYS[1]) end
return {}`)

export function createFailures(now: () => number, redis?: Redis): Failures {
  const memory = createMemoryFailures(now)
  if (!redis) return memory
  const keyOf = (key: string) => `{failures:${key}}`
  const orAlone = async <T>(shared: () => Promise<T>, alone: () => Promise<T>) => {
    try {
      return await shared()
    } catch (error) {
      if (error instanceof RedisAway) return alone()
      throw error
    }
  }
  return {
    begin: (key) =>
      orAlone(
        async () => Number((await redis.run(beginScript, [keyOf(key)], []))[0]),
        () => memory.begin(key),
      ),
    forget: (key) =>
      orAlone(
        async () => void (await redis.run(forgetScript, [keyOf(key)], ['one'])),
        () => memory.forget(key),
      ),
    clear: (key) =>
      orAlone(
        async () => void (await redis.run(forgetScript, [keyOf(key)], ['all'])),
        () => memory.clear(key),
      ),
  }
}

function createMemoryFailures(now: () => number): Failures {
  const failures = new Map<string, { count: number; until: number }>()
  return {
    async begin(key) {
      const before = failures.get(key)
      if (before && before.until > now()) return before.until - now()
      const count = (before?.count ?? 0) + 1
      const over = count - failuresAllowed
      const until = over < 0 ? 0 : now() + 1000 * Math.min(longestBlock_s, firstBlock_s * 2 ** over)
      // The oldest goes: clearing all would unblock who fills it.
      failures.delete(key)
      if (failures.size >= keys_max) failures.delete(failures.keys().next().value!)
      failures.set(key, { count, until })
      return 0
    },
    async forget(key) {
      const { count = 0 } = failures.get(key) ?? {}
      if (count > 1) failures.set(key, { count: count - 1, until: 0 })
      else failures.delete(key)
    },
    async clear(key) {
      failures.delete(key)
    },
  }
}
