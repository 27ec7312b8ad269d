// What a soak test kills: one server on SQLite, or several that share Postgres, Redis and a folder of artifacts.
import { mkdirSync, readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { until } from '../support/client.ts'
import { startPostgres } from '../support/postgres.ts'
import { startRedis } from '../support/redis.ts'
import { alive, children, type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'

const programs = { engine: 'engine/main.ts', trainer: 'trainer.cli.(train|prepared)' } as const
type Victim = 'server' | keyof typeof programs | 'postgres' | 'redis'

export interface Installation {
  key: string
  dataDir: string
  database_url: string | undefined
  victims: readonly Victim[]
  /** The addresses of all servers; each start has another. */
  urls(): string[]
  start(): Promise<void>
  /**
   * Kills one process of this kind, or a server if none starts in time, and starts again what nothing else would.
   * Resolves with what was killed; undefined if another call has that one down already.
   */
  kill(victim: Victim, random: () => number): Promise<Victim | undefined>
  /** Ends all servers and resolves with what was wrong about it. */
  end(): Promise<string[]>
  /** Kills everything that still runs. */
  stop(): Promise<void>
}

/** The folder of Postgres, beside `folder`, which only its owner may enter: Postgres runs as a user of its own. */
export const postgresFolder = (folder: string) => `${folder}-postgres`

/** In `folder`, which a resumed run finds again. */
export async function createInstallation(folder: string, servers: number): Promise<Installation> {
  const shared =
    servers > 1
      ? { postgres: await startPostgres({ kept: postgresFolder(folder) }), redis: await startRedis() }
      : undefined
  const storage = path.join(folder, 'storage')
  // As a mount: the service creates none.
  mkdirSync(storage, { recursive: true })
  const settings: Record<string, string> = {
    TUNERY_CHECKPOINT_SECONDS: '1',
    TUNERY_PREPARED_TRAINER_SECONDS: '600',
    TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8',
    ...(shared && {
      TUNERY_DATABASE_URL: shared.postgres.url,
      TUNERY_REDIS_URL: shared.redis.url,
      TUNERY_STORAGE_URL: `file://${storage}`,
      TUNERY_SECRET_KEY_FILE: path.join(folder, 'secret.key'),
    }),
  }
  const folders = Array.from({ length: servers }, (_, index) =>
    dataFolder('soak', settings, { dataDir: path.join(folder, index === 0 ? 'data' : `data-${index + 1}`) }),
  )
  const key = folders[0]!.key()
  const running: RunningServer[] = []

  const down = new Set<Victim | number>()
  /** Resolves with undefined, and does nothing, while it is in progress for the same one. */
  async function once<T>(what: Victim | number, work: () => Promise<T>): Promise<T | undefined> {
    if (down.has(what)) return undefined
    down.add(what)
    try {
      return await work()
    } finally {
      down.delete(what)
    }
  }

  async function killServer(index: number): Promise<void> {
    const { dataDir } = folders[index]!
    const server = running[index]!
    const own = processesOn(dataDir).filter((pid) => pid !== server.pid)
    await server.end('SIGKILL')
    await until('the server’s children to end', () => !own.some(alive))
    // As a service manager does: Postgres may be killed in the middle of the start.
    for (let tries = 0; ; tries++)
      try {
        running[index] = await folders[index]!.start()
        return
      } catch (error) {
        if (tries === 5) throw error
      }
  }

  return {
    key,
    dataDir: folders[0]!.dataDir,
    database_url: shared?.postgres.url,
    victims: shared ? ['server', 'engine', 'trainer', 'postgres', 'redis'] : ['server', 'server', 'engine', 'trainer'],
    urls: () => running.map(({ url }) => url),

    async start() {
      for (const each of folders) running.push(await each.start())
    },

    async kill(victim, random) {
      if (victim === 'postgres' || victim === 'redis')
        return await once(victim, async () => {
          await shared![victim].kill()
          await sleep(random() * 1000)
          await shared![victim].start()
          return victim
        })
      for (let tries = 0; victim !== 'server' && tries < 50; tries++) {
        const pids = running.flatMap(({ pid }) => children(pid, programs[victim]))
        const pid = pids[Math.floor(random() * pids.length)]
        if (pid !== undefined && killed(pid)) return victim
        await sleep(100)
      }
      const index = Math.floor(random() * servers)
      return await once(index, async () => {
        await killServer(index)
        return 'server' as const
      })
    },

    async end() {
      const faults: string[] = []
      for (const server of running) {
        const status = await server.end('SIGTERM')
        if (status !== 0) faults.push(`a server ended with ${status}`)
      }
      const left = folders.flatMap(({ dataDir }) => processesOn(dataDir))
      if (left.length > 0) faults.push(`processes are left: ${left.join(', ')}`)
      return faults
    },

    async stop() {
      for (const each of folders) each.kill()
      await shared?.redis.stop()
      await shared?.postgres.stop()
    },
  }
}

/** Kills a process. False if it had ended: another kill may have been of its server. */
function killed(pid: number): boolean {
  try {
    return process.kill(pid, 'SIGKILL')
  } catch {
    return false
  }
}

/** Processes with this data folder in their environment, whatever their parent. */
function processesOn(dataDir: DataFolder['dataDir']): number[] {
  const setting = `TUNERY_DATA_DIR=${dataDir}\0`
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return alive(pid) && readFileSync(`/proc/${pid}/environ`, 'latin1').includes(setting)
      } catch {
        return false
      }
    })
}
