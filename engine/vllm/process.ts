// Supervises one vLLM process, which serves one base: starts it, restarts it when it dies, stops it.
import { execFile } from 'node:child_process'
import { lstatSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import { type Child, childEnv, spawnChild } from '../../lib/child-process.ts'
import { randomBase62 } from '../../lib/ids.ts'
import { type Connection, createConnection } from './connection.ts'
import { Asleep } from './sleep.ts'

/** Weights of hundreds of gigabytes take minutes to read, and a first start compiles. */
const startTimeout_ms = 30 * 60_000
const stopTimeout_ms = 15_000
/** How long an interpreter may take to say its version of vLLM. */
const lookUp_ms_max = 60_000
const poll_ms = 200
/** The longest break before the next start. */
const backOff_ms_max = 60_000
/** After this long without a crash the next start is immediate. */
const stable_ms = 60_000
const program = path.join(import.meta.dirname, 'serve.py')

/** One run of the process. Adapters that it has loaded are lost when it ends. */
export interface Instance {
  readonly pid: number
  readonly connection: Connection
  /** Aborts when the process has ended. */
  readonly ended: AbortSignal
  /** Adapters by name: resolved when they are loaded. */
  readonly adapters: Map<string, Promise<void>>
}

export interface ProcessOptions {
  /** The interpreter that has vLLM. */
  python: string
  /** What `vllm serve` is started with, without where it listens. */
  args: readonly string[]
  /** Additional environment, such as the GPU that it sees. */
  env: NodeJS.ProcessEnv
  log: Logger
}

export class VllmProcess {
  private readonly options: ProcessOptions
  private current: { child: Child; instance: Promise<Instance>; running?: Instance } | undefined
  private starting: Promise<Instance> | undefined
  private readonly stopping = new AbortController()
  /** Not started, and not started again, until `resume`. */
  private isPaused = false
  /** It ends because it was asked to. */
  private isEnding = false
  private deaths = 0
  private started_at = 0
  private output = createTail()

  constructor(options: ProcessOptions) {
    this.options = options
  }

  /** The latest error that vLLM printed. */
  reason(): string | undefined {
    return this.output.reason()
  }

  running(): Instance | undefined {
    return this.current?.running
  }

  /** The running process; starts one if none runs. Throws engine_unavailable with vLLM's reason. */
  async instance(): Promise<Instance> {
    if (this.stopping.signal.aborted) throw new ApiError('engine_unavailable', 'The model was unloaded.')
    if (this.isPaused) throw new Asleep()
    if (this.current) return this.current.instance
    this.starting ??= this.start().finally(() => {
      this.starting = undefined
    })
    return this.starting
  }

  async stop(): Promise<void> {
    this.stopping.abort()
    await this.end()
  }

  /** Keeps it from being started again if it ends. `end`: ends it now, which gives back all that it has. */
  async pause(end: boolean): Promise<void> {
    this.isPaused = true
    if (end) await this.end()
  }

  /** Lets it run again: starts it, unless it still runs. */
  resume(): void {
    this.isPaused = false
    if (!this.current) this.restart()
  }

  private async end(): Promise<void> {
    if (!this.current) return
    const { child, running } = this.current
    this.isEnding = true
    try {
      // One that still starts has nothing to finish, and would not hear a SIGTERM for seconds.
      if (running) child.kill('SIGTERM')
      const ended = await Promise.race([
        child.ended.then(() => true).catch(() => true),
        sleep(running ? stopTimeout_ms : 0, false, { ref: false }),
      ])
      if (!ended) {
        child.kill('SIGKILL')
        killGroup(child.pid)
      }
      await child.ended.catch(() => {})
    } finally {
      this.isEnding = false
    }
  }

  /** Ends a process that hangs; it is started again. */
  kill(instance: Instance): void {
    if (!instance.ended.aborted) killGroup(instance.pid)
  }

  private async start(): Promise<Instance> {
    if (Date.now() - this.started_at > stable_ms) this.deaths = Math.min(this.deaths, 1)
    if (this.deaths > 1) {
      const ms = Math.min(backOff_ms_max, 500 * 2 ** this.deaths)
      await sleep(ms, undefined, { signal: this.stopping.signal, ref: false }).catch(() => {})
    }
    if (this.stopping.signal.aborted) throw new ApiError('engine_unavailable', 'The model was unloaded.')
    if (this.isPaused) throw new Asleep()
    return this.launch()
  }

  private launch(): Promise<Instance> {
    const { python, args, env, log } = this.options
    // Only this user can enter it. A socket's path is limited to 107 characters.
    const folder = mkdtempSync(path.join(os.tmpdir(), `${folderPrefix}${process.pid}-`))
    const socket = path.join(folder, socketName)
    const api_key = randomBase62(32)
    const exited = new AbortController()
    const output = createTail()
    this.output = output
    this.started_at = Date.now()
    const child = spawnChild(python, [program, 'serve', ...args, '--uds', socket], {
      env: { ...vllmEnv(api_key), ...env },
      stdout: (line) => output.add(line),
      onStderr: (text) => output.add(text),
      // Those that it started would keep the device, and its output open.
      onExit: () => killGroup(child.pid),
    })
    const connection = createConnection(socket, api_key)
    const cleanUp = () => {
      rmSync(folder, { recursive: true, force: true })
      killGroup(child.pid)
    }
    process.once('exit', cleanUp)
    const instance = new Promise<Instance>((resolve, reject) => {
      const fail = (reason: string) => {
        if (exited.signal.aborted) return
        exited.abort()
        connection.close()
        process.off('exit', cleanUp)
        cleanUp()
        const wasRunning = this.current?.running !== undefined
        if (this.current?.child === child) this.current = undefined
        reject(new ApiError('engine_unavailable', `vLLM could not be started: ${reason}`))
        if (this.stopping.signal.aborted || this.isEnding) return
        this.deaths++
        log.error({ vllm: child.pid, tail: output.text() }, `vLLM ended: ${reason}`)
        // A first start that fails is its caller's to handle. In a later tick, so that requests see the failure first.
        if (wasRunning) setImmediate(() => this.restart())
      }
      child.ended.then(
        ({ status, killed_by }) => fail(output.reason() ?? (killed_by ? `ended by ${killed_by}` : `status ${status}`)),
        (error: Error) => fail(error.message),
      )
      const inTime = AbortSignal.timeout(startTimeout_ms)
      const wait = async () => {
        while (!exited.signal.aborted) {
          if (await connection.answers('/health', AbortSignal.any([exited.signal, inTime]))) {
            const running: Instance = { pid: child.pid!, connection, ended: exited.signal, adapters: new Map() }
            if (this.current?.child === child) this.current.running = running
            return resolve(running)
          }
          if (inTime.aborted) return child.kill('SIGKILL')
          await sleep(poll_ms, undefined, { ref: false })
        }
      }
      void wait()
    })
    this.current = { child, instance }
    instance.catch(() => {})
    return instance
  }

  /** Starts it again, with growing breaks, until it runs or is stopped. */
  private restart(): void {
    if (this.stopping.signal.aborted || this.isPaused) return
    this.instance().catch(() => this.restart())
  }
}

/** Followed by the process id of the engine. */
const folderPrefix = 'tunery-vllm-'
const socketName = 'v.sock'

/** Removes the folders of sockets that killed engines of this user have left. */
export async function removeStaleFolders(parent = os.tmpdir()): Promise<void> {
  for (const name of readdirSync(parent)) {
    const pid = /^tunery-vllm-(\d+)-/.exec(name)?.[1]
    const folder = path.join(parent, name)
    if (pid === undefined || isRunning(Number(pid))) continue
    // Another user's cannot be removed.
    if (lstatSync(folder, { throwIfNoEntry: false })?.uid !== process.getuid?.()) continue
    // Containers that share a folder for temporary files do not see each other's processes.
    if (await answers(path.join(folder, socketName))) continue
    rmSync(folder, { recursive: true, force: true })
  }
}

const answers = (socketPath: string) =>
  new Promise<boolean>((resolve) => {
    const socket = connect(socketPath)
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as { code?: string }).code === 'EPERM'
  }
}

/** Ends vLLM, and the processes that it started, which may outlive it. */
function killGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL')
  } catch {
    // All have ended, or there is no group yet.
  }
}

function vllmEnv(api_key: string): NodeJS.ProcessEnv {
  return {
    ...childEnv(),
    VLLM_API_KEY: api_key,
    VLLM_ALLOW_RUNTIME_LORA_UPDATING: 'true',
    VLLM_NO_USAGE_STATS: '1',
    // Checkpoints are folders of this machine.
    HF_HUB_OFFLINE: '1',
  }
}

const tail_characters = 8000
const noReasons =
  /Engine core initialization failed|See root cause above|WorkerProc initialization failed|EngineDeadError/

/** The last lines of a program, and the one that says why it ended. */
function createTail() {
  let tail = ''
  let last: string | undefined
  return {
    add(text: string) {
      for (const line of text.split('\n')) {
        // Behind vLLM's own prefix: (EngineCore pid=1) ERROR 11-28 12:00:00 [core.py:1].
        const error = /(?:^|[\s\]])(\w*(?:Error|Exception|error): .+)/.exec(line)?.[1]
        if (error && !noReasons.test(error)) last = error.slice(0, 500)
      }
      tail = `${tail}${text}\n`.slice(-tail_characters)
    },
    text: () => tail,
    reason: () => last,
  }
}

/** The version of vLLM that an interpreter has: with `+cpu` at its end where it computes on processors. */
export async function vllmVersion(python: string): Promise<string> {
  const script = "import importlib.metadata as m; print(m.version('vllm'))"
  const running = promisify(execFile)(python, ['-c', script], { timeout: lookUp_ms_max, killSignal: 'SIGKILL' })
  const end = () => running.child.kill('SIGKILL')
  process.once('exit', end)
  const { stdout } = await running
    .catch((error) => {
      if (error.killed) throw new Error(`${python} did not say its version of vLLM within ${lookUp_ms_max / 1000} s.`)
      const last = String(error.stderr || error.message)
        .trim()
        .split('\n')
        .at(-1)
      throw new Error(`${python} has no vLLM (${last}). Run \`npm run setup -- --with vllm\`.`)
    })
    .finally(() => process.off('exit', end))
  return stdout.trim()
}
