// Keeps one engine process for this machine: starts it, tells when it is gone, starts it again. Speaks to it over a
// unix socket.
import type { ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chmodSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { spawnChild } from '../../../lib/child-process.ts'
import { randomBase62 } from '../../../lib/ids.ts'
import { root } from '../../../lib/root.ts'
import { type Connections, createConnections } from '../replicas/http-client/connection-pool.ts'

const startTimeout_ms = 30_000
const stopTimeout_ms = 15_000

/** One life of the engine. What was loaded into it is gone with it. */
export interface EngineLife {
  readonly socket: string
  readonly connections: Connections
  readonly pid: number
  /** Aborts when the process has ended. */
  readonly ended: AbortSignal
}

export interface EngineProcess {
  /** The running engine; started first where there is none. Throws engine_unavailable where it does not come up. */
  life(): Promise<EngineLife>
  /** The running engine, where there is one. */
  current(): EngineLife | undefined
  /** Asks it to finish what it serves and to end, and kills it where it does not. */
  stop(): Promise<void>
  /**
   * Why no engine can be started, where that is so. One that ends unasked is followed by another without a request for
   * it.
   */
  problem(): string | undefined
}

interface Options {
  dataDir: string
  threads: number
  /** Further arguments of its command line. */
  options: string[]
  log: Logger
}

export function createEngineProcess({ dataDir, threads, options, log }: Options): EngineProcess {
  let current: { child: ChildProcess; life: Promise<EngineLife>; running?: EngineLife } | undefined
  let deaths: number[] = []
  const stop = new AbortController()
  let lastProblem: string | undefined

  /**
   * What the service did not ask for: the next is started at once, or after a wait where that happens again and again.
   */
  function died(): void {
    if (stop.signal.aborted) return
    deaths.push(Date.now())
    // Once those who waited for the one that ended have heard of it.
    setImmediate(() => void engine.life().catch(() => {}))
  }

  async function start(): Promise<EngineLife> {
    // An engine that dies again and again must not be started in a tight loop.
    deaths = deaths.filter((time) => Date.now() - time < 60_000)
    if (deaths.length > 1)
      await sleep(Math.min(5000, 100 * 2 ** deaths.length), undefined, { signal: stop.signal, ref: false }).catch(
        () => {},
      )
    if (stop.signal.aborted) throw new Error('the service is stopping')
    try {
      const socket = socketPath(dataDir)
      const args = [
        path.join(root, 'engine/main.ts'),
        '--listen',
        `unix:${socket}`,
        '--threads',
        String(threads),
        '--parent-pipe',
        ...options,
      ]
      const child = spawnChild(process.execPath, args, { cwd: root, env: engineEnv(), stdio: ['pipe', 'pipe', 'pipe'] })
      return await follow(child, socket)
    } catch (error) {
      if (!stop.signal.aborted) lastProblem = `the engine could not be started: ${(error as Error).message}`
      throw error
    }
  }

  /** Resolves once the process listens on the socket; looks after its end. */
  async function follow(child: ChildProcess, socket: string): Promise<EngineLife> {
    const gone = new AbortController()
    const said = log.child({ engine: child.pid })
    let tail = ''
    const life = new Promise<EngineLife>((resolve, reject) => {
      let over = false
      const ended = (how: string, last: string) => {
        if (over) return
        over = true
        clearTimeout(timer)
        gone.abort()
        if (current?.child === child) current = undefined
        if (!stop.signal.aborted) said.error({ tail }, `the engine ${how}`)
        reject(new Error(`it ${how}: ${last}`))
        died()
      }
      // First of all: a process that there is none of has no pipes either, and ends in no other way.
      child.on('error', (error) => child.pid === undefined && ended('was not started', error.message))
      child.on('exit', (status, signal) =>
        ended(signal ? `was ended by ${signal}` : `ended with status ${status}`, tail.trim().split('\n').at(-1) ?? ''),
      )
      const timer = setTimeout(() => {
        child.kill('SIGKILL')
        reject(new Error(`it did not answer within ${startTimeout_ms / 1000} s`))
      }, startTimeout_ms)
      child.stdin?.on('error', () => {})
      if (child.stderr)
        createInterface({ input: child.stderr }).on('line', (line) => {
          tail = `${tail}${line}\n`.slice(-2000)
          said.debug(line)
        })
      if (child.stdout)
        createInterface({ input: child.stdout }).on('line', () => {
          clearTimeout(timer)
          lastProblem = undefined
          const connections = createConnections({ socketPath: socket }, Number.POSITIVE_INFINITY)
          resolve({ socket, connections, pid: child.pid!, ended: gone.signal })
        })
    })
    const mine: typeof current = { child, life }
    current = mine
    life.then((running) => Object.assign(mine, { running })).catch(() => {})
    return life
  }

  let starting: Promise<EngineLife> | undefined
  const engine: EngineProcess = {
    async life() {
      if (stop.signal.aborted) throw new ApiError('shutting_down', 'The service is stopping. Try again in a moment.')
      if (current) return unavailable(current.life)
      starting ??= start().finally(() => {
        starting = undefined
      })
      return unavailable(starting)
    },
    async stop() {
      stop.abort()
      const child = current?.child
      if (!child || child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
      const ended = new Promise((resolve) => child.once('exit', resolve))
      child.kill('SIGTERM')
      const kill = setTimeout(() => child.kill('SIGKILL'), stopTimeout_ms)
      await ended
      clearTimeout(kill)
    },
    current: () => current?.running,
    problem: () => lastProblem,
  }
  return engine
}

async function unavailable<T>(start: Promise<T>): Promise<T> {
  try {
    return await start
  } catch (error) {
    throw new ApiError(
      'engine_unavailable',
      `The engine could not be started: ${(error as Error).message}. Try again in a moment; the service's log says more.`,
    )
  }
}

// A unix socket's path may have 107 characters at most, which a data folder's can exceed: it lies in the temporary
// folder, in a directory that is this user's alone. Each life has a name of its own, so that an engine that is still
// ending is never asked.
function socketPath(dataDir: string): string {
  const uid = process.getuid?.() ?? 0
  const folder = path.join(
    os.tmpdir(),
    `tunery-${uid}-${createHash('sha256').update(dataDir).digest('hex').slice(0, 12)}`,
  )
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  if (statSync(folder).uid !== uid) throw new Error(`${folder} belongs to another user`)
  chmodSync(folder, 0o700)
  for (const file of readdirSync(folder)) rmSync(path.join(folder, file), { force: true })
  return path.join(folder, `${randomBase62(8)}.sock`)
}

// The engine needs none of the service's settings or secrets.
function engineEnv(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TUNERY_')))
}
