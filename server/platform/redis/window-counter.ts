// Counters of windows that open with their first count: in this process, or in the Redis that several processes share.
import { type Redis, RedisAway, script } from './connection.ts'

interface WindowCount {
  count: number
  /** Milliseconds to the window's end; the whole window if none is open. */
  left_ms: number
}

interface WindowCounter {
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

/** Windows in this process. */
export interface FixedWindows {
  /** Adds to the key's window, which its first count opens. */
  add(key: string, step?: number): { count: number; resets_at: number }
  /** The key's open window. */
  get(key: string): { count: number; resets_at: number } | undefined
  /** Windows in memory, ended ones with them. */
  size(): number
}

export function createFixedWindows(window_ms: number, now: () => number): FixedWindows {
  // In the order in which they were opened, which is that of their ends.
  const windows = new Map<string, { count: number; resets_at: number }>()
  const get = (key: string) => {
    const entry = windows.get(key)
    return entry && entry.resets_at > now() ? entry : undefined
  }
  return {
    get,
    size: () => windows.size,
    add(key, step = 1) {
      let open = get(key)
      if (!open) {
        const time = now()
        for (const [each, { resets_at }] of windows) {
          if (resets_at > time) break
          windows.delete(each)
        }
        open = { count: 0, resets_at: time + window_ms }
        windows.set(key, open)
      }
      open.count += step
      return open
    },
  }
}

function createMemoryCounter(window_ms: number): WindowCounter {
  const windows = createFixedWindows(window_ms, Date.now)
  const read = (entry: ReturnType<FixedWindows['get']>): WindowCount =>
    entry ? { count: entry.count, left_ms: entry.resets_at - Date.now() } : { count: 0, left_ms: window_ms }
  return {
    add: async (key) => read(windows.add(key)),
    async subtract(key) {
      const open = windows.get(key)
      if (open && open.count > 0) open.count--
    },
    get: async (key) => read(windows.get(key)),
  }
}
