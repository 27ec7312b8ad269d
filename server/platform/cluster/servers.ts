// The server processes that share a database, and the tasks that one of them runs for all.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import type { Logger } from 'pino'
import { newId } from '../../../lib/ids.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { ConfigError } from '../../config.ts'
import { isPostgres } from '../db/dialect.ts'
import type { Db } from '../db/open.ts'
import type { Row } from '../db/schema.ts'
import type { Running } from './notifications.ts'

type ServerRow = Row<'servers'>

export interface Servers {
  /** The id of this server: the same after a restart on its data folder. */
  id: string
  /**
   * Enters this process into the list of servers, and keeps it there until closed. Throws a ConfigError if an earlier
   * one lives with which it has no files or no secret key in common.
   */
  start(): Promise<Running>
  /** The servers that live, this one included. Empty on SQLite, where there is one. */
  list(): Promise<ServerRow[]>
  /**
   * Runs `work` unless another server has begun it in the last `every_ms`: call it that often in each process, and it
   * runs once in that time. A server that dies during its turn is succeeded in the next one.
   */
  oncePer(task: string, every_ms: number, work: () => Promise<void>): Promise<void>
}

const heartbeat_ms = 5000
/** Without a heartbeat for this long a server is gone: as long as the leases of its work. */
const gone_ms = 20_000
/** Timers of several processes drift: a turn that comes a little early counts. */
const turnShare = 0.9

interface Options {
  db: Db
  dataDir: string
  /** Undefined: the files of this server are in its data folder alone. */
  storage_url?: string | undefined
  /** See `Secrets`. */
  secret_key_id: string
  version: string
  log: Logger
  now(): number
}

export function createServers(options: Options): Servers {
  const { db, dataDir, storage_url, secret_key_id, version, log, now } = options
  // Without the endpoint, which may have another name in another network.
  const storage = storage_url?.split('?')[0] ?? null
  const shared = isPostgres(db)
  const id = shared ? readOrCreateId(dataDir) : `server-${process.pid}`
  const started_at = now()

  const beat = async () => {
    const row = {
      id,
      host: os.hostname(),
      pid: process.pid,
      version,
      secret_key_id,
      storage_url: storage,
      started_at,
      seen_at: now(),
    }
    await db
      .insertInto('servers')
      .values(row)
      .onConflict((conflict) => conflict.column('id').doUpdateSet(row))
      .execute()
  }

  const list = () =>
    db
      .selectFrom('servers')
      .selectAll()
      .where('seen_at', '>', now() - gone_ms)
      .orderBy('started_at')
      .orderBy('id')
      .execute()

  const leave = () => db.deleteFrom('servers').where('id', '=', id).execute()

  async function requireCommonGround(): Promise<void> {
    const [first] = await list()
    if (!first || first.id === id) return
    const problem =
      storage_url === undefined
        ? 'It would not find the files of this one: set TUNERY_STORAGE_URL to the same storage for all servers, or ' +
          `stop the other one and start again ${gone_ms / 1000} seconds later.`
        : first.storage_url !== storage
          ? `Its TUNERY_STORAGE_URL is ${first.storage_url}: set it to the same storage for all servers.`
          : first.secret_key_id !== secret_key_id
            ? 'It encrypts secrets with another key: set TUNERY_SECRET_KEY_FILE to a file with the same 32 bytes on ' +
              'all servers.'
            : undefined
    if (!problem) return
    await leave()
    throw new ConfigError(`Another server uses this database (${first.host}, process ${first.pid}). ${problem}`)
  }

  return {
    id,

    async start() {
      if (!shared) return { async close() {} }
      await beat()
      await requireCommonGround()
      const beating = runPeriodically(
        heartbeat_ms,
        () => beat().catch((error) => log.warn({ err: error }, 'the heartbeat of this server could not be written')),
        { delayed: true },
      )
      return {
        async close() {
          await beating.close()
          await leave().catch(() => {})
        },
      }
    },

    list: async () => (shared ? await list() : []),

    async oncePer(task, every_ms, work) {
      if (shared) {
        const time = now()
        const turn = { server: id, until: Math.round(time + every_ms * turnShare) }
        const taken = await db
          .insertInto('periodic_tasks')
          .values({ name: task, ...turn })
          .onConflict((conflict) => conflict.column('name').doUpdateSet(turn).where('periodic_tasks.until', '<=', time))
          .returning('name')
          .executeTakeFirst()
        if (!taken) return
      }
      await work()
    },
  }
}

/** The id in the data folder, which one process at a time has locked. */
function readOrCreateId(dataDir: string): string {
  const previousId = readServerId(dataDir)
  if (previousId !== undefined) return previousId
  const id = newId('srv')
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  writeFileSync(idFile(dataDir), `${id}\n`)
  return id
}

/** The id of the server of a data folder; undefined before its first start on Postgres. */
export function readServerId(dataDir: string): string | undefined {
  try {
    return /^srv_\w+$/.exec(readFileSync(idFile(dataDir), 'utf8').trim())?.[0]
  } catch {
    return undefined
  }
}

const idFile = (dataDir: string) => path.join(dataDir, 'server-id')
