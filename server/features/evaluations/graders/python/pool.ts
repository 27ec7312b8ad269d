// Sandboxes of Python graders: few processes for all accounts, each of one account's grader alone, kept warm between
// calls.
import { createHash } from 'node:crypto'
import { createFairQueue, type FairQueue } from '../../../../../lib/fair-queue.ts'
import { GraderFailure } from '../template.ts'
import { type GradeCall, type PythonResult, Sandbox, type SandboxLimits, sandboxLimits } from './sandbox.ts'
import { makeSnapshot, type Snapshot } from './snapshot.ts'

export interface PythonGraders {
  /** Scores an answer. Throws GraderFailure with Python's message and line, or the signal's reason. */
  grade(grader: PythonSource, values: PythonValues, signal: AbortSignal): Promise<PythonResult>
  /** Loads a source. Throws GraderFailure if it cannot be used. */
  check(grader: PythonSource, signal?: AbortSignal): Promise<void>
  close(): void
}

export interface PythonSource {
  account_id: string
  source: string
}
export interface PythonValues {
  sample: unknown
  item: unknown
}

interface Options {
  /** Processes at once; 0: Python graders are refused. Each takes some 200 MB. */
  processes: number
  limits?: SandboxLimits
  /** A process ends after this time without a call. */
  idle_ms?: number
}

/** `values` undefined: its source is loaded alone. */
type Call = Omit<GradeCall, 'values'> & { values: string | undefined }

/** A grader with waiting calls. */
interface Line extends PythonSource {
  key: string
  calls: Call[]
  /** Processes that work on its calls, or wait for their turn to. */
  workers: number
}

/** Calls that a process gets at once, and their characters: on a busy machine each exchange waits for a core. */
const batchMax = 32
const batchCharactersMax = 4_000_000
/** How long calls of one grader follow each other while graders of others wait for a process. */
const slice_ms = 3000

export function createPythonGraders({ processes, limits = sandboxLimits, idle_ms = 60_000 }: Options): PythonGraders {
  return new SandboxPool(processes, limits, idle_ms)
}

class SandboxPool implements PythonGraders {
  private readonly processes: number
  private readonly limits: SandboxLimits
  private readonly idle_ms: number
  private readonly inTurn: FairQueue
  private readonly lines = new Map<string, Line>()
  /** Processes that work on no call, the one used last at the end. */
  private idle: Sandbox[] = []
  private readonly busy = new Set<Sandbox>()
  private idleTimer: NodeJS.Timeout | undefined
  private waitingWorkers = 0
  private starting = 0
  private closed = false
  private snapshot: Promise<Snapshot | undefined> | undefined

  constructor(processes: number, limits: SandboxLimits, idle_ms: number) {
    this.processes = processes
    this.limits = limits
    this.idle_ms = idle_ms
    // One account leaves a process to others: a call may take as long as it may.
    const at_once_per_account = Math.max(1, processes - 1)
    this.inTurn = createFairQueue({ at_once: Math.max(1, processes), at_once_per_account })
  }

  grade(grader: PythonSource, values: PythonValues, signal: AbortSignal): Promise<PythonResult> {
    return this.enqueue(grader, values, signal)
  }

  async check(grader: PythonSource, signal?: AbortSignal): Promise<void> {
    await this.enqueue(grader, undefined, signal)
  }

  close(): void {
    this.closed = true
    clearTimeout(this.idleTimer)
    for (const { calls } of this.lines.values()) for (const call of calls.splice(0)) call.reject(stopping())
    for (const sandbox of [...this.idle, ...this.busy]) sandbox.kill()
    this.idle = []
    void this.snapshot?.then((snapshot) => snapshot?.close())
    this.snapshot = undefined
  }

  private async enqueue(
    { account_id, source }: PythonSource,
    values: PythonValues | undefined,
    signal: AbortSignal | undefined,
  ): Promise<PythonResult> {
    if (this.closed) throw stopping()
    if (this.processes === 0)
      throw new GraderFailure('unavailable', 'Python graders are turned off here (TUNERY_PYTHON_GRADERS).')
    signal?.throwIfAborted()
    const key = `${account_id} ${createHash('sha256').update(source).digest('hex')}`
    const line = this.lines.get(key) ?? { account_id, source, key, calls: [], workers: 0 }
    this.lines.set(key, line)
    const { promise, resolve, reject } = Promise.withResolvers<PythonResult>()
    const text = values === undefined ? undefined : JSON.stringify(values)
    line.calls.push({ values: text, signal, resolve, reject })
    if (line.workers < Math.min(this.processes, line.calls.length)) this.startWorker(line)
    const onAbort = () => reject(signal!.reason)
    signal?.addEventListener('abort', onAbort, { once: true })
    return promise.finally(() => signal?.removeEventListener('abort', onAbort))
  }

  private startWorker(line: Line): void {
    line.workers++
    this.waitingWorkers++
    void this.inTurn(line.account_id, () => {
      this.waitingWorkers--
      return this.work(line)
    }).finally(() => {
      line.workers--
      // Others went first, or calls came meanwhile.
      if (line.calls.length > 0 && line.workers === 0) this.startWorker(line)
      else if (line.workers === 0) this.lines.delete(line.key)
    })
  }

  /** Works on the calls of a grader in one process, until there are none, or others wait and its slice is over. */
  private async work(line: Line): Promise<void> {
    const ends = performance.now() + slice_ms
    let sandbox: Sandbox | undefined
    while (line.calls.length > 0 && !(this.waitingWorkers > 0 && performance.now() > ends)) {
      const calls = takeBatch(line)
      try {
        if (this.closed) throw stopping()
        sandbox ??= await this.take(line)
        await this.load(sandbox, line)
        line.calls.unshift(...(await this.run(sandbox, calls)))
      } catch (error) {
        for (const call of calls) call.reject(error)
      }
      if (sandbox?.ended) {
        this.busy.delete(sandbox)
        sandbox = undefined
      }
    }
    if (sandbox) this.release(sandbox)
  }

  /** Settles calls; resolves with those that need another process. */
  private async run(sandbox: Sandbox, calls: readonly Call[]): Promise<Call[]> {
    const grading: GradeCall[] = []
    for (const call of calls) {
      if (call.signal?.aborted) call.reject(call.signal.reason)
      else if (call.values === undefined) call.resolve({ score: 0, ms: 0 })
      else grading.push(call as GradeCall)
    }
    return grading.length === 0 ? [] : await sandbox.gradeAll(grading)
  }

  /** A process for a grader: its own, a fresh one, or one in the place of the process that was used longest ago. */
  private async take({ key }: Line): Promise<Sandbox> {
    clearTimeout(this.idleTimer)
    this.idle = this.idle.filter(({ ended }) => !ended)
    const index = this.idle.findLastIndex((sandbox) => sandbox.key === key)
    if (index === -1 && this.idle.length + this.busy.size + this.starting >= this.processes) this.idle.shift()?.kill()
    const sandbox = index === -1 ? await this.start() : this.idle.splice(index, 1)[0]!
    this.busy.add(sandbox)
    return sandbox
  }

  private async start(): Promise<Sandbox> {
    this.starting++
    try {
      this.snapshot ??= makeSnapshot()
      const file = (await this.snapshot)?.path
      return new Sandbox(this.limits, file)
    } finally {
      this.starting--
    }
  }

  private async load(sandbox: Sandbox, { key, source }: Line): Promise<void> {
    if (sandbox.key === key) return
    try {
      await sandbox.load(source)
      sandbox.key = key
    } catch (error) {
      // What its source has left there must not meet another's.
      sandbox.kill()
      throw error
    }
  }

  private release(sandbox: Sandbox): void {
    this.busy.delete(sandbox)
    if (this.closed) sandbox.kill()
    else this.keepIdle(sandbox)
  }

  private keepIdle(sandbox: Sandbox): void {
    this.idle.push(sandbox)
    clearTimeout(this.idleTimer)
    this.idleTimer = setTimeout(() => {
      for (const idle of this.idle) idle.kill()
      this.idle = []
    }, this.idle_ms).unref()
  }
}

const stopping = () => new GraderFailure('unavailable', 'The service stops.')

/** The next calls of a grader: a part of those that wait, for the processes that work on them. */
function takeBatch({ calls, workers }: Line): Call[] {
  const count = Math.ceil(Math.min(batchMax, calls.length / workers))
  let characters = 0
  const end = calls.slice(0, count).findIndex(({ values }) => {
    characters += values?.length ?? 0
    return characters > batchCharactersMax
  })
  return calls.splice(0, end === -1 ? count : Math.max(1, end))
}
