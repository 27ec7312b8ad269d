// Opens the installation's Redis.
import type { Logger } from 'pino'
import type { Db } from '../db/open.ts'
import { connectRedis, type Redis } from './connection.ts'

/**
 * Connects to Redis under a prefix of the installation's own: the id in its database, so that several installations may
 * use one Redis.
 */
export async function openRedis(url: string, db: Db, log: Logger): Promise<Redis> {
  const { id } = await db.selectFrom('installation').select('id').executeTakeFirstOrThrow()
  return await connectRedis(url, `tunery:${id}`, log)
}
