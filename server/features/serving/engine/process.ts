// Supervises this machine's engine process: starts it, restarts it when it dies, stops it. It listens on a unix socket.
import { createHash } from 'node:crypto'
import { chmodSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../../../contract/errors.ts'
import { type Child, childEnv, spawnChild } from '../../../../lib/child-process.ts'
import { randomBase62 } from '../../../../lib/ids.ts'
import { root } from '../../../../lib/root.ts'
import type { Config } from '../../../config.ts'
import { type ConnectionPool, createConnectionPool } from '../http-client/connection-pool.ts'
import { relayEngineLog } from './log.ts'

const startTimeout_ms = 30_000
const stopTimeout_ms = 15_000

type EngineConfig = Pick<
  Config,
  'engine_options' | 'parse_control_tokens' | 'keep_original_weights' | 'eight_bit_cache' | 'min_free_disk_mb'
>

/** The engine's options by the settings, for this machine's engine and for replicas on it. */
export const engineOptions = (config: EngineConfig): string[] => [
  '--min-free-disk-mb',
  String(Math.max(1, config.min_free_disk_mb)),
  ...(config.keep_original_weights ? ['--no-eight-bits'] : []),
  ...(config.eight_bit_cache ? ['--eight-bit-cache'] : []),
  ...(config.parse_control_tokens ? ['--parse-control-tokens'] : []),
  ...config.engine_options,
]

/** One run of the engine process. Its loaded models are lost when it ends. */
export interface EngineInstance {
  readonly socket: string
  readonly pool: ConnectionPool
  readonly pid: number
  /** Aborts when the process has ended. */
  readonly ended: AbortSignal
}

export interface EngineProcess {
  /** The running engine; starts one if none runs. Throws engine_unavailable if it does not start. */
  instance(): Promise<EngineInstance>
  /** The running engine; undefined if none runs. */
  current(): EngineInstance | undefined
  /** Lets the engine finish its requests and exit (SIGTERM), and kills it after a timeout. */
  stop(): Promise<void>
  /** Why the engine cannot start; undefined if it can. A crashed engine is restarted without waiting for a request. */
  problem(): string | undefined
}

interface Options {
  dataDir: string
  threads: number
  /** Additional command line arguments. */
  options: string[]
  /** Tells the engines of this process apart; by default the shared one. */
  name?: string
  /** Additional environment, such as the GPUs that it sees. */
  env?: NodeJS.ProcessEnv
  /** The cores that it may use. */
  cores?: readonly number[] | undefined
  /** Called with each process before it gets a request. */
  onStart?: (instance: EngineInstance) => Promise<void>
  /** Whether another is started when it dies. If not, it runs once: `instance` rejects afterwards. */
  restarts?: boolean
  log: Logger
}

export function createEngineProcess({
  dataDir,
  threads,
  options,
  name = '',
  env = {},
  cores,
  restarts = true,
  onStart = async () => {},
  log,
}: Options): EngineProcess {
  let current: { child: Child; instance: Promise<EngineInstance>; running?: EngineInstance } | undefined
  let deaths: number[] = []
  const stop = new AbortController()
  let lastProblem: string | undefined

  /** Restarts the engine after a crash; `start` backs off if crashes repeat. */
  function onUnexpectedExit(): void {
    if (stop.signal.aborted) return
    deaths.push(Date.now())
    if (!restarts) return
    // In a later tick, so that waiting requests see the failure first.
    setImmediate(() => void engine.instance().catch(() => {}))
  }

  async function start(): Promise<EngineInstance> {
    // Exponential back-off if the engine crashed more than once in the last minute.
    deaths = deaths.filter((time) => Date.now() - time < 60_000)
    if (deaths.length > 1)
      await sleep(Math.min(5000, 100 * 2 ** deaths.length), undefined, { signal: stop.signal, ref: false }).catch(
        () => {},
      )
    if (stop.signal.aborted) throw new Error('the service is stopping')
    try {
      const socket = socketPath(dataDir, name)
      const args = [
        path.join(root, 'engine/main.ts'),
        '--listen',
        `unix:${socket}`,
        '--threads',
        String(threads),
        '--parent-pipe',
        ...options,
      ]
      return await waitUntilListening(args, socket)
    } catch (error) {
      if (!stop.signal.aborted) lastProblem = `the engine could not be started: ${(error as Error).message}`
      throw error
    }
  }

  /** Starts the process, and resolves once it listens on the socket; handles its exit. */
  async function waitUntilListening(args: string[], socket: string): Promise<EngineInstance> {
    const exited = new AbortController()
    const listening = Promise.withResolvers<void>()
    const child = spawnChild(process.execPath, args, {
      // The engine exports its own spans.
      env: { ...childEnv(/^OTEL_/), OTEL_SERVICE_NAME: `${process.env.OTEL_SERVICE_NAME || 'tunery'}-engine`, ...env },
      cores,
      // It prints its address once it listens.
      stdout: () => listening.resolve(),
      onStderr: (text) => relayEngineLog(text, childLog),
    })
    const childLog = log.child({ engine: child.pid })
    const instance = new Promise<EngineInstance>((resolve, reject) => {
      const ended = (how: string, tail: string) => {
        clearTimeout(timer)
        exited.abort()
        if (current?.child === child) current = undefined
        if (!stop.signal.aborted) childLog.error({ tail }, `the engine ${how}`)
        reject(new Error(`it ${how}: ${tail.split('\n').at(-1)}`))
        onUnexpectedExit()
      }
      child.ended.then(
        ({ status, killed_by, stderr }) =>
          ended(killed_by ? `was ended by ${killed_by}` : `ended with status ${status}`, stderr),
        (error: Error) => ended('was not started', error.message),
      )
      const timer = setTimeout(() => {
        child.kill('SIGKILL')
        reject(new Error(`it did not answer within ${startTimeout_ms / 1000} s`))
      }, startTimeout_ms)
      listening.promise.then(() => {
        clearTimeout(timer)
        lastProblem = undefined
        const pool = createConnectionPool({ socketPath: socket }, Number.POSITIVE_INFINITY)
        const running = { socket, pool, pid: child.pid!, ended: exited.signal }
        onStart(running).then(
          () => resolve(running),
          (error) => {
            child.kill('SIGKILL')
            reject(error)
          },
        )
      })
    })
    const started: typeof current = { child, instance }
    current = started
    instance.then((running) => Object.assign(started, { running })).catch(() => {})
    return instance
  }

  let starting: Promise<EngineInstance> | undefined
  const engine: EngineProcess = {
    async instance() {
      if (stop.signal.aborted) throw new ApiError('shutting_down', 'The service is stopping. Try again in a moment.')
      if (current) return orUnavailable(current.instance)
      if (!restarts && deaths.length > 0) return orUnavailable(Promise.reject(new Error('it has ended')))
      starting ??= start().finally(() => {
        starting = undefined
      })
      return orUnavailable(starting)
    },
    async stop() {
      stop.abort()
      const child = current?.child
      if (!child) return
      child.kill('SIGTERM')
      child.killAfter(stopTimeout_ms)
      await child.ended.catch(() => {})
    },
    current: () => current?.running,
    problem: () => lastProblem,
  }
  return engine
}

async function orUnavailable<T>(start: Promise<T>): Promise<T> {
  try {
    return await start
  } catch (error) {
    throw new ApiError(
      'engine_unavailable',
      `The engine could not be started: ${(error as Error).message}. Try again in a moment; ` +
        "the service's log says more.",
    )
  }
}

// A unix socket's path is limited to 107 characters, which a path in the data folder can exceed. So it is in the
// temporary folder, in a directory that only this user can access. Each instance has its own name, so that no request
// reaches a previous engine that is still shutting down. Each engine of this process has its own directory.
function socketPath(dataDir: string, name: string): string {
  const uid = process.getuid?.() ?? 0
  const folder = path.join(
    os.tmpdir(),
    `tunery-${uid}-${createHash('sha256')
      .update(name ? `${dataDir}\n${name}` : dataDir)
      .digest('hex')
      .slice(0, 12)}`,
  )
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  if (statSync(folder).uid !== uid) throw new Error(`${folder} belongs to another user`)
  chmodSync(folder, 0o700)
  for (const file of readdirSync(folder)) rmSync(path.join(folder, file), { force: true })
  return path.join(folder, `${randomBase62(8)}.sock`)
}
