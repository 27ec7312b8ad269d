// Keeps one engine process for this machine: starts it, tells when it is gone, starts it again. Speaks to it over a unix socket.
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chmodSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import { root } from '../config.ts'
import { randomBase62 } from '../ids.ts'

const startTimeout_ms = 30_000
const stopTimeout_ms = 15_000

/** One life of the engine. What was loaded into it is gone with it. */
export interface EngineLife {
  readonly socket: string
  readonly agent: http.Agent
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
  /** Why there is no engine, where there is none. */
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
  let stopping = false
  let lastProblem: string | undefined

  async function start(): Promise<EngineLife> {
    // An engine that dies again and again must not be started in a tight loop.
    deaths = deaths.filter((time) => Date.now() - time < 60_000)
    if (deaths.length > 1) await new Promise((resolve) => setTimeout(resolve, Math.min(5000, 100 * 2 ** deaths.length)))
    const socket = socketPath(dataDir)
    const args = [path.join(root, 'engine/main.ts'), '--listen', `unix:${socket}`, '--threads', String(threads), '--parent-pipe', ...options]
    const child = spawn(process.execPath, args, { cwd: root, env: engineEnv(), stdio: ['pipe', 'pipe', 'pipe'] })
    child.stdin.on('error', () => {})
    const gone = new AbortController()
    const said = log.child({ engine: child.pid })
    let tail = ''
    createInterface({ input: child.stderr }).on('line', (line) => {
      tail = `${tail}${line}\n`.slice(-2000)
      said.debug(line)
    })
    const life = new Promise<EngineLife>((resolve, reject) => {
      const timer = setTimeout(() => {
        child.kill('SIGKILL')
        reject(new Error(`it did not answer within ${startTimeout_ms / 1000} s`))
      }, startTimeout_ms)
      createInterface({ input: child.stdout }).on('line', () => {
        clearTimeout(timer)
        lastProblem = undefined
        const agent = new http.Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY })
        resolve({ socket, agent, pid: child.pid!, ended: gone.signal })
      })
      child.on('error', reject)
      child.on('exit', (status, signal) => {
        clearTimeout(timer)
        gone.abort()
        if (current?.child === child) current = undefined
        const how = signal ? `ended by ${signal}` : `ended with status ${status}`
        if (!stopping) {
          deaths.push(Date.now())
          lastProblem = `the engine was ${how}`
          said.error({ tail }, lastProblem)
        }
        reject(new Error(`it ${how}: ${tail.trim().split('\n').at(-1) ?? ''}`))
      })
    })
    const mine: typeof current = { child, life }
    current = mine
    life.then((running) => Object.assign(mine, { running })).catch(() => {})
    return life
  }

  let starting: Promise<EngineLife> | undefined
  return {
    async life() {
      if (stopping) throw new ApiError('shutting_down', 'The service is stopping. Try again in a moment.')
      if (current) return unavailable(current.life)
      starting ??= start().finally(() => {
        starting = undefined
      })
      return unavailable(starting)
    },
    async stop() {
      stopping = true
      const child = current?.child
      if (!child || child.exitCode !== null) return
      const ended = new Promise((resolve) => child.once('exit', resolve))
      child.kill('SIGTERM')
      const kill = setTimeout(() => child.kill('SIGKILL'), stopTimeout_ms)
      await ended
      clearTimeout(kill)
    },
    current: () => current?.running,
    problem: () => lastProblem,
  }
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

// A unix socket's path may have 107 characters at most, which a data folder's can exceed: it lies in the temporary folder, in a
// directory that is this user's alone. Each life has a name of its own, so that an engine that is still ending is never asked.
function socketPath(dataDir: string): string {
  const uid = process.getuid?.() ?? 0
  const folder = path.join(os.tmpdir(), `tunery-${uid}-${createHash('sha256').update(dataDir).digest('hex').slice(0, 12)}`)
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
