// Opens the installation's Redis.
import type { Logger } from 'pino'
import { hour_ms } from '../../../lib/utc-day.ts'
import { ConfigError } from '../../config.ts'
import type { Servers } from '../cluster/servers.ts'
import { connectRedis, type Redis, script } from './connection.ts'

/** A prefix that nobody has used for this long is free again. */
const named_s = 86_400

/** Names the prefix after an installation, unless it has another one's name. Replies the name. */
const nameScript = script(`
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then return {found} end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return {ARGV[1]}`)

/**
 * Connects to Redis under the installation's own prefix: its id, so that several installations may use one Redis.
 * Throws a ConfigError if the URL's `?prefix=` is that of another one: they would count each other's requests.
 */
export async function openRedis(
  url: string,
  id: string,
  servers: Pick<Servers, 'id' | 'list'>,
  log: Logger,
): Promise<Redis> {
  const others = (await servers.list()).filter((server) => server.id !== servers.id)
  const redis = await connectRedis(url, `tunery:${id}`, log, others.length + 1)
  const name = async (redis: Pick<Redis, 'run'>) => {
    const [owner] = await redis.run(nameScript, ['installation'], [id, named_s])
    if (owner !== id)
      throw new ConfigError(
        `TUNERY_REDIS_URL: the prefix belongs to the installation ${owner}, and the database to ${id}. Give each ` +
          `installation its own ?prefix=, or none. A prefix that is not used is free after a day.`,
      )
  }
  let named_at = -Infinity
  try {
    if (!redis.isAway()) await name(redis)
  } catch (error) {
    if (!(error instanceof ConfigError)) return redis
    await redis.close()
    throw error
  }
  redis.onBeat(async (beat) => {
    if (performance.now() - named_at < hour_ms) return
    await name(beat)
    named_at = performance.now()
  })
  return redis
}
