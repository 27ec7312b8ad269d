// One sealed process that runs Python of one user at a time: start, limits, end.
import os from 'node:os'
import path from 'node:path'
import { type Child, processCpuMs, spawnChild } from '../../../../../lib/child-process.ts'
import { root } from '../../../../../lib/root.ts'
import { GraderFailure } from '../template.ts'
import type { PythonReply, PythonRequest } from './messages.ts'

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

type Answer = Exclude<PythonReply, { ready: true } | { fatal: string }>
type Work = { load: string } | { grade: { sample: unknown; item: unknown } }

/** Its process ended, or has to: the next call needs another. */
export class SandboxEnded extends GraderFailure {}

export class Sandbox {
  /** What it has loaded: its owner and source. A sandbox never serves another. */
  key: string | undefined
  readonly started: Promise<void>
  private readonly child: Child
  private readonly limits: SandboxLimits
  private waiting: { resolve(reply: Answer): void; reject(error: Error): void } | undefined
  private ending: Error | undefined
  private calls = 0

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
      this.waiting?.reject(this.ending)
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
    await this.call({ load: source }, signal)
  }

  /** Throws GraderFailure with Python's message and line, or the signal's reason. */
  async grade(values: { sample: unknown; item: unknown }, signal?: AbortSignal): Promise<number> {
    const reply = await this.call({ grade: values }, signal)
    const score = 'score' in reply ? reply.score : undefined
    // The process may be in the hands of its user.
    if (typeof score !== 'number' || !Number.isFinite(score)) throw this.end('form', 'it gave no number')
    return score
  }

  kill(): void {
    this.ending ??= new SandboxEnded('unavailable', 'The sandbox of Python graders was ended.')
    this.child.kill('SIGKILL')
  }

  private end(kind: 'form' | 'timeout' | 'runtime', message: string): SandboxEnded {
    const ended = new SandboxEnded(kind, message)
    this.ending ??= ended
    this.kill()
    return ended
  }

  private async call(work: Work, signal?: AbortSignal): Promise<Answer> {
    await this.started
    signal?.throwIfAborted()
    if (this.ending) throw this.ending
    const { promise, resolve, reject } = Promise.withResolvers<Answer>()
    this.waiting = { resolve, reject }
    const [began, used] = [performance.now(), processCpuMs(this.child.pid)]
    const { call_ms } = this.limits
    const seconds = call_ms / 1000
    let interrupted_at: number | undefined
    const timer = setInterval(() => {
      const waited = performance.now() - began
      if (interrupted_at !== undefined) {
        if (waited - interrupted_at > grace_ms) reject(this.end('timeout', `it takes longer than ${seconds} s`))
      } else if (processCpuMs(this.child.pid) - used > call_ms || waited > starvedFactor * call_ms) {
        interrupted_at = waited
        this.send({ interrupt: true })
      }
    }, check_ms)
    const onAbort = () => {
      this.kill()
      reject(signal!.reason)
    }
    signal?.addEventListener('abort', onAbort, { once: true })
    try {
      this.send({ id: ++this.calls, ...work })
      const reply = await promise
      if (!('error' in reply)) return reply
      if (reply.kind === 'timeout')
        throw new GraderFailure('timeout', `it takes longer than ${seconds} s: ${String(reply.error)}`)
      const message = String(reply.error).slice(0, 2500)
      // What fills its memory may stay there.
      if (reply.kind === 'memory') throw this.end('runtime', `${message}; it has ${python_mib} MiB`)
      throw new GraderFailure(reply.kind === 'form' ? 'form' : 'runtime', message)
    } finally {
      this.waiting = undefined
      clearInterval(timer)
      signal?.removeEventListener('abort', onAbort)
    }
  }

  private send(request: PythonRequest): void {
    this.child.stdin?.write(`${JSON.stringify(request)}\n`)
  }

  private receive(reply: PythonReply, started: { resolve(): void }): void {
    if ('ready' in reply) started.resolve()
    else if ('fatal' in reply) {
      const message = String(reply.fatal).slice(0, 500)
      this.ending ??= new SandboxEnded('runtime', `it broke Python: ${message}`)
      this.waiting?.reject(this.ending)
      this.kill()
    } else if (reply.id === this.calls) this.waiting?.resolve(reply)
  }
}

const priority = 10

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
