// One sealed process that runs Python of one user at a time: start, limits, end.
import os from 'node:os'
import path from 'node:path'
import { type Child, processCpuMs, spawnChild } from '../../../../../lib/child-process.ts'
import { root } from '../../../../../lib/root.ts'
import { GraderFailure } from '../template.ts'
import type { CallReply, PythonReply, PythonRequest } from './messages.ts'

export interface SandboxLimits {
  /** Processor time of one call; by the clock it may take `starvedFactor` times as long. */
  call_ms: number
  /** Memory of the process: Python's, and some 200 MB of its runtime. */
  memory_mb: number
}

export const sandboxLimits: SandboxLimits = { call_ms: 10_000, memory_mb: 700 }

/** As worker.ts has it. */
const python_mib = 256
/** On a busy machine a process waits for a core. */
const starvedFactor = 6
/** After the interrupt: Python code can catch it. */
const grace_ms = 500
const check_ms = 50
const start_ms = 120_000
const lifetime_ms = 7 * 24 * 3_600_000

type Work = { load: string } | { grade: string[] }

/** A call of `grade`, and who waits for it. */
export interface GradeCall {
  /** The JSON of a sample and an item. */
  values: string
  signal: AbortSignal | undefined
  resolve(result: PythonResult): void
  /** With a GraderFailure, or the signal's reason. */
  reject(error: unknown): void
}

/** `ms`: how long the grader took. */
export interface PythonResult {
  score: number
  ms: number
}

/** A request whose calls run. */
interface Exchange {
  onReply(reply: CallReply): void
  reject(error: Error): void
}

/** Its process ended, or has to: the next call needs another. */
class SandboxEnded extends GraderFailure {}

export class Sandbox {
  /** What it has loaded: its owner and source. A sandbox never serves another. */
  key: string | undefined
  readonly started: Promise<void>
  private readonly child: Child
  private readonly limits: SandboxLimits
  private exchange: Exchange | undefined
  private ending: Error | undefined
  private requests = 0
  /** Calls that were answered: the next one is that which runs. */
  private answered = 0

  /** `snapshot`: the file that Python starts from. */
  constructor(limits: SandboxLimits = sandboxLimits, snapshot?: string) {
    this.limits = limits
    const started = Promise.withResolvers<void>()
    this.started = started.promise
    this.started.catch(() => {})
    this.child = spawnChild(process.execPath, nodeArgs(snapshot), {
      // Neither settings nor secrets, and no cache of code: it cannot write. No io_uring that the kernel
      // polls: its requests are no system calls, which the seal could refuse.
      env: { PATH: process.env.PATH, NODE_NO_WARNINGS: '1', UV_USE_IO_URING: '0' },
      stdout: (line) => this.receive(JSON.parse(line) as PythonReply, started),
      limits: { max_ms: lifetime_ms, max_memory_mb: limits.memory_mb },
    })
    // Answers to people come first. Threads that the process starts take its priority over.
    if (this.child.pid !== undefined) lowerPriority(this.child.pid)
    const late = setTimeout(() => {
      started.reject(new SandboxEnded('unavailable', 'The sandbox of Python graders did not start in time.'))
      this.kill()
    }, start_ms)
    this.started.finally(() => clearTimeout(late)).catch(() => {})
    const onEnd = (reason: Error) => {
      this.ending ??= reason
      started.reject(this.ending)
      this.exchange?.reject(this.ending)
    }
    this.child.ended.then(
      ({ exceeded, stderr }) =>
        onEnd(
          exceeded === 'memory'
            ? new SandboxEnded('runtime', `it takes more than ${limits.memory_mb} MB`)
            : new SandboxEnded('unavailable', `The sandbox of Python graders ended. ${stderr.slice(-300)}`.trim()),
        ),
      (error: Error) =>
        onEnd(new SandboxEnded('unavailable', `The sandbox of Python graders failed: ${error.message}`)),
    )
  }

  get ended(): boolean {
    return this.ending !== undefined
  }

  /** Loads the source of a grader. Throws GraderFailure. */
  async load(source: string, signal?: AbortSignal): Promise<void> {
    await this.started
    const onAbort = () => this.kill()
    signal?.addEventListener('abort', onAbort, { once: true })
    try {
      await this.ask({ load: source }, 1, (reply) => {
        if ('error' in reply) throw this.failureOf(reply)
      })
    } catch (error) {
      signal?.throwIfAborted()
      throw error
    } finally {
      signal?.removeEventListener('abort', onAbort)
    }
  }

  /**
   * Runs calls one after the other and settles them. Resolves with those that were not run, as the process ended before
   * their turn. Throws GraderFailure if the process did not start.
   */
  async gradeAll(calls: readonly GradeCall[]): Promise<GradeCall[]> {
    await this.started
    let answered = 0
    let isFull = false
    const open = new Set(calls)
    const ended = new AbortController()
    for (const call of calls)
      call.signal?.addEventListener(
        'abort',
        () => {
          call.reject(call.signal!.reason)
          open.delete(call)
          if (open.size === 0) this.kill()
        },
        { once: true, signal: ended.signal },
      )
    try {
      await this.ask({ grade: calls.map(({ values }) => values) }, calls.length, (reply) => {
        const call = calls[answered++]!
        open.delete(call)
        if ('score' in reply && Number.isFinite(reply.score)) call.resolve({ score: reply.score, ms: Number(reply.ms) })
        else call.reject('error' in reply ? this.failureOf(reply) : new GraderFailure('form', 'it gave no number'))
        // What fills its memory may stay there.
        if ('kind' in reply && reply.kind === 'memory') {
          isFull = true
          this.kill()
        }
      })
      return []
    } catch (error) {
      if (!isFull) calls[answered++]?.reject(error)
      return calls.slice(answered).filter(({ signal }) => !signal?.aborted)
    } finally {
      ended.abort()
    }
  }

  kill(): void {
    this.ending ??= new SandboxEnded('unavailable', 'The sandbox of Python graders was ended.')
    this.child.kill('SIGKILL')
    this.exchange?.reject(this.ending)
  }

  private failureOf({ kind, error }: Extract<CallReply, { error: string }>): GraderFailure {
    const message = String(error).slice(0, 2500)
    if (kind === 'timeout') return new GraderFailure('timeout', `${this.tooLong}: ${message}`)
    if (kind === 'memory') return new GraderFailure('runtime', `${message}; it has ${python_mib} MiB`)
    return new GraderFailure(kind === 'form' ? 'form' : 'runtime', message)
  }

  private get tooLong(): string {
    return `it takes longer than ${this.limits.call_ms / 1000} s`
  }

  /** Sends a request with `count` calls; resolves when all are answered. Throws what `onReply` throws. */
  private async ask(work: Work, count: number, onReply: (reply: CallReply) => void): Promise<void> {
    if (this.ending) throw this.ending
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    // The call that runs: when it began, and what the process had used by then.
    let [began, used] = [performance.now(), processCpuMs(this.child.pid)]
    let interrupted_at: number | undefined
    let left = count
    this.exchange = {
      reject,
      onReply: (reply) => {
        this.answered++
        ;[began, used, interrupted_at] = [performance.now(), processCpuMs(this.child.pid), undefined]
        try {
          onReply(reply)
        } catch (error) {
          reject(error)
        }
        if (--left === 0) resolve()
      },
    }
    const timer = setInterval(() => {
      const { call_ms } = this.limits
      const waited = performance.now() - began
      if (interrupted_at !== undefined) {
        if (waited - interrupted_at > grace_ms) this.end(new SandboxEnded('timeout', this.tooLong))
      } else if (processCpuMs(this.child.pid) - used > call_ms || waited > starvedFactor * call_ms) {
        interrupted_at = waited
        this.send({ interrupt: this.answered + 1 })
      }
    }, check_ms)
    try {
      this.send({ id: ++this.requests, ...work })
      await promise
    } finally {
      this.exchange = undefined
      clearInterval(timer)
    }
  }

  private end(reason: SandboxEnded): void {
    this.ending ??= reason
    this.exchange?.reject(this.ending)
    this.kill()
  }

  private send(request: PythonRequest): void {
    this.child.stdin?.write(`${JSON.stringify(request)}\n`)
  }

  private receive(reply: PythonReply, started: { resolve(): void }): void {
    // What it still says is not heard: those calls go to another.
    if (this.ending) return
    if ('ready' in reply) started.resolve()
    else if ('fatal' in reply) {
      const message = String(reply.fatal).slice(0, 500)
      this.end(new SandboxEnded('runtime', `it broke Python: ${message}`))
    } else if (reply.id === this.requests) this.exchange?.onReply(reply)
  }
}

const priority = 5

function lowerPriority(pid: number): void {
  try {
    os.setPriority(pid, priority)
  } catch {
    // It has ended already.
  }
}

/** Permissions of Node beside the seal: it may read files until it is sealed, and load the binding that seals it. */
const nodeArgs = (snapshot: string | undefined) => [
  '--permission',
  `--allow-fs-read=${root}`,
  ...(snapshot === undefined ? [] : [`--allow-fs-read=${snapshot}`]),
  '--allow-addons',
  '--allow-worker',
  '--disallow-code-generation-from-strings',
  path.join(import.meta.dirname, 'child.ts'),
  ...(snapshot === undefined ? [] : [snapshot]),
]
