// Opens the installation's Redis.
import type { Logger } from 'pino'
import type { Servers } from '../cluster/servers.ts'
import type { Db } from '../db/open.ts'
import { connectRedis, type Redis } from './connection.ts'

/**
 * Connects to Redis under the installation's own prefix: the id in its database, so that several installations may
 * use one Redis.
 */
export async function openRedis(
  url: string,
  db: Db,
  servers: Pick<Servers, 'id' | 'list'>,
  log: Logger,
): Promise<Redis> {
  const { id } = await db.selectFrom('installation').select('id').executeTakeFirstOrThrow()
  const others = (await servers.list()).filter((each) => each.id !== servers.id)
  return await connectRedis(url, `tunery:${id}`, log, others.length + 1)
}
