// Counters of windows that open with their first count: in this process, or in the Redis that several processes share.
import { RateLimiterMemory } from 'rate-limiter-flexible'
import { type Redis, RedisAway, script } from './connection.ts'

interface WindowCount {
  count: number
  /** Milliseconds to the window's end; the whole window if none is open. */
  left_ms: number
}

export interface WindowCounter {
  add(key: string): Promise<WindowCount>
  /** Takes one back. */
  subtract(key: string): Promise<void>
  get(key: string): Promise<WindowCount>
}

/** Makes the counter of a name. */
export type WindowCounters = (name: string, window_ms: number) => WindowCounter

/** KEYS: counter. ARGV: what to add, ms of the window. */
const addScript = script(`
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
local step = tonumber(ARGV[1])
if step > 0 or (step < 0 and count > 0) then count = redis.call('INCRBY', KEYS[1], step) end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  left = tonumber(ARGV[2])
  redis.call('PEXPIRE', KEYS[1], left)
end
return {count, left}`)

export const createWindowCounters =
  (redis?: Redis): WindowCounters =>
  (name, window_ms) => {
    const memory = createMemoryCounter(window_ms)
    if (!redis) return memory
    /** While Redis is away each process counts alone. These windows only bound guessing. */
    const count = async (key: string, step: number, otherwise: () => Promise<WindowCount>): Promise<WindowCount> => {
      try {
        const [count, left] = await redis.run(addScript, [`{${name}:${key}}`], [step, window_ms])
        return { count: Number(count), left_ms: Number(left) }
      } catch (error) {
        if (error instanceof RedisAway) return otherwise()
        throw error
      }
    }
    return {
      add: (key) => count(key, 1, () => memory.add(key)),
      get: (key) => count(key, 0, () => memory.get(key)),
      async subtract(key) {
        await count(key, -1, async () => {
          await memory.subtract(key)
          return memory.get(key)
        })
      },
    }
  }

function createMemoryCounter(window_ms: number): WindowCounter {
  const limiter = new RateLimiterMemory({ points: Number.MAX_SAFE_INTEGER, duration: window_ms / 1000 })
  return {
    async add(key) {
      const { consumedPoints, msBeforeNext } = await limiter.consume(key)
      return { count: consumedPoints, left_ms: msBeforeNext }
    },
    async subtract(key) {
      await limiter.reward(key)
    },
    async get(key) {
      const found = await limiter.get(key)
      return { count: found?.consumedPoints ?? 0, left_ms: found ? Math.max(0, found.msBeforeNext) : window_ms }
    },
  }
}
