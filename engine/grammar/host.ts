// Owner's handle of a worker thread: sends it jobs, watches their time limits and reports its exit.
import { setPriority } from 'node:os'
import { Worker } from 'node:worker_threads'
import { threadTime } from '../../lib/thread-time.ts'
import { control, elapsed, type SessionMemory, stateWord, type VocabData, working } from './session-memory.ts'
import type { FromWorker, GrammarSource, ToWorker, WorkerData } from './worker-messages.ts'

/** A compile or probe job failed. */
export class JobFailed extends Error {
  /** Whether the job itself caused it, by taking too long or crashing the worker. */
  readonly atFault: boolean
  constructor(atFault: boolean, reason: string) {
    super(reason)
    this.atFault = atFault
  }
}

/** State of a session, enough to move it to another worker. */
export interface SessionState {
  id: number
  grammar: string
  memory: SessionMemory
  tokens: number[]
}

interface WorkerOptions {
  vocab: VocabData
  limits: {
    start_ms: number
    compile_ms: number
    probe_ms: number
    probe_masks: number
    mask_ms: number
    memory_bytes: number
    grammars: number
  }
  /** The worker crashed or was terminated for a slow job. `atFault` is the session that it was serving then, if any. */
  onExit(worker: GrammarWorker, atFault: SessionState | null): void
}

const checkEvery_ms = 100
/** A job ends at this many times its limit by the clock, though its thread got no core. */
const starvedFactor = 10
/** About a third of the normal CPU share under load. */
const lowPriority = 5
let jobs = 0

/** A unique number for a job or session. */
export function nextJob(): number {
  jobs = (jobs % 0x3fffffff) + 1
  return jobs
}

type Done = FromWorker & { kind: 'done' }

interface PendingJob {
  resolve(message: Done): void
  reject(error: JobFailed): void
  limit_ms: number
}

export class GrammarWorker {
  private readonly options: WorkerOptions
  private readonly words = new Int32Array(new SharedArrayBuffer(4 * control.words))
  private readonly thread: Worker
  private readonly started_at = Date.now()
  readonly sessions = new Map<number, SessionState>()
  private readonly pendingJobs = new Map<number, PendingJob>()
  private readonly compiled = new Map<string, Promise<number>>()
  private jobsSent = 0
  private state: 'running' | 'ending' | 'gone' = 'running'
  private jobAtFault = 0
  private readonly starting = Promise.withResolvers<void>()
  private timer: NodeJS.Timeout | undefined
  /** Resolves when the worker is ready or has ended. */
  readonly started = this.starting.promise
  /** Time of the last job, in milliseconds. */
  used_at = Date.now()

  constructor(options: WorkerOptions) {
    this.options = options
    const { vocab, limits, onExit } = options

    this.thread = new Worker(new URL('./worker.ts', import.meta.url), {
      workerData: {
        vocab,
        control: this.words.buffer as SharedArrayBuffer,
        memory_bytes: limits.memory_bytes,
      } satisfies WorkerData,
      // XGrammar logs there; errors also come as messages.
      stdout: true,
      stderr: true,
    })
    this.thread.unref()
    this.thread.stdout.resume()
    this.thread.stderr.resume()
    this.timer = setInterval(() => this.check(), checkEvery_ms).unref()
    this.thread.on('message', (message: FromWorker) => {
      if (message.kind === 'started') return this.starting.resolve()
      const pending = this.pendingJobs.get(message.job)
      this.pendingJobs.delete(message.job)
      if (message.kind === 'done') pending?.resolve(message)
      else {
        pending?.reject(new JobFailed(true, message.reason))
        if (this.state === 'running') this.terminate(message.job)
      }
    })
    this.thread.on('error', () => {
      // The cause came as a message, or the worker ran out of memory. `exit` follows.
    })
    this.thread.on('exit', () => {
      clearInterval(this.timer)
      const isEnded = this.state === 'gone'
      if (this.state === 'running') this.jobAtFault = Atomics.load(this.words, control.job)
      this.state = 'gone'
      this.starting.resolve()
      for (const [job, { reject }] of this.pendingJobs)
        reject(new JobFailed(job === this.jobAtFault, 'The worker has ended.'))
      this.pendingJobs.clear()
      if (!isEnded) onExit(this, this.sessions.get(this.jobAtFault) ?? null)
    })
  }

  get memory_bytes(): number {
    return Atomics.load(this.words, control.memory_kib) * 1024
  }

  get isRunning(): boolean {
    return this.state === 'running'
  }

  /** Whether a job is unfinished. */
  get isBusy(): boolean {
    return this.jobsSent !== Atomics.load(this.words, control.done)
  }

  /** CPU time of the worker, in milliseconds; the clock where the kernel does not tell. Only differences count. */
  used_ms(): number {
    return threadTime(this.words[control.thread]!) ?? performance.now()
  }

  /** From now on decoding comes first. */
  lowerPriority(): void {
    // On Linux a thread has a priority of its own.
    if (process.platform === 'linux' && this.words[control.thread])
      setPriority(this.words[control.thread]!, lowPriority)
  }

  /** Compiles a grammar once. Returns the CPU time of that, in milliseconds. Rejects with JobFailed. */
  compile(grammar: string, source: GrammarSource, limit_ms = this.options.limits.compile_ms): Promise<number> {
    let compilation = this.compiled.get(grammar)
    if (compilation !== undefined) this.compiled.delete(grammar)
    else {
      this.forgetOldest()
      compilation = this.request({ kind: 'compile', job: nextJob(), grammar, source }, limit_ms).then(
        ({ elapsed_ms }) => elapsed_ms,
      )
      compilation.catch(() => this.compiled.delete(grammar))
    }
    this.compiled.set(grammar, compilation)
    return compilation
  }

  async probe(grammar: string): Promise<{ slowest_ms: number; stuck: boolean }> {
    const { limits } = this.options
    const { slowest_ms = 0, stuck = false } = await this.request(
      { kind: 'probe', job: nextJob(), grammar, masks: limits.probe_masks, total_ms: limits.probe_ms },
      limits.probe_ms + limits.mask_ms,
    )
    return { slowest_ms, stuck }
  }

  /** Serves a session after its `tokens`. The grammar must be compiled. */
  open(session: SessionState): void {
    this.sessions.set(session.id, session)
    Atomics.store(session.memory.state, 0, stateWord(session.tokens.length, working))
    this.post({
      kind: 'open',
      job: session.id,
      grammar: session.grammar,
      memory: session.memory.buffer,
      tokens: session.tokens,
    })
  }

  accept(session: SessionState, token: number): void {
    this.post({ kind: 'accept', job: session.id, token })
  }

  close(session: SessionState): void {
    if (this.sessions.delete(session.id)) this.post({ kind: 'close', job: session.id })
  }

  /** Terminates the worker if its current job exceeds its time limit. */
  check(): void {
    const { limits } = this.options
    if (this.state !== 'running') return
    const isStarted = Atomics.load(this.words, control.started) === 1
    if (isStarted && this.jobsSent === Atomics.load(this.words, control.done)) {
      clearInterval(this.timer)
      this.timer = undefined
      return
    }
    const job = Atomics.load(this.words, control.job)
    const since = Atomics.load(this.words, control.since)
    const isLate =
      job === 0
        ? !isStarted && Date.now() - this.started_at > limits.start_ms
        : this.isOver(elapsed(since), this.pendingJobs.get(job)?.limit_ms ?? limits.mask_ms)
    // Read again: the worker may have started another job between the two reads.
    if (isLate && Atomics.load(this.words, control.job) === job && Atomics.load(this.words, control.since) === since)
      this.terminate(job)
  }

  async end(): Promise<void> {
    clearInterval(this.timer)
    this.state = 'gone'
    await this.thread.terminate()
  }

  private post(message: ToWorker): void {
    this.used_at = Date.now()
    if (this.state !== 'running') return
    this.jobsSent++
    this.thread.postMessage(message)
    this.timer ??= setInterval(() => this.check(), checkEvery_ms).unref()
  }

  private request(message: ToWorker & { kind: 'compile' | 'probe' }, limit_ms: number): Promise<Done> {
    return new Promise((resolve, reject) => {
      if (this.state !== 'running') return reject(new JobFailed(false, 'The worker has ended.'))
      this.pendingJobs.set(message.job, { resolve, reject, limit_ms })
      this.post(message)
    })
  }

  /** Whether the current job, which began `waited_ms` ago, has had more CPU time than this. */
  private isOver(waited_ms: number, limit_ms: number): boolean {
    if (waited_ms <= limit_ms) return false
    const used = threadTime(this.words[control.thread]!)
    return used === undefined || used - this.words[control.used]! > limit_ms || waited_ms > starvedFactor * limit_ms
  }

  private terminate(job: number): void {
    this.state = 'ending'
    this.jobAtFault = job
    void this.thread.terminate()
  }

  private forgetOldest(): void {
    const { limits } = this.options
    const oldest = this.compiled.keys().next().value
    if (this.compiled.size < limits.grammars || oldest === undefined) return
    this.compiled.delete(oldest)
    // Open sessions keep the grammar alive.
    this.post({ kind: 'forget', job: nextJob(), grammar: oldest })
  }
}
