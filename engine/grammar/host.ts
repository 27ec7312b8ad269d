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

export interface GrammarWorker {
  /** Resolves when the worker is ready or has ended. */
  readonly started: Promise<void>
  readonly sessions: Map<number, SessionState>
  readonly memory_bytes: number
  readonly isRunning: boolean
  /** Whether a job is unfinished. */
  readonly isBusy: boolean
  /** Time of the last job, in milliseconds. */
  used_at: number
  /** CPU time of the worker, in milliseconds; the clock where the kernel does not tell. Only differences count. */
  used_ms(): number
  /** From now on decoding comes first. */
  lowerPriority(): void
  /** Compiles a grammar once. Returns the CPU time of that, in milliseconds. Rejects with JobFailed. */
  compile(grammar: string, source: GrammarSource): Promise<number>
  probe(grammar: string): Promise<{ slowest_ms: number; stuck: boolean }>
  /** Serves a session after its `tokens`. The grammar must be compiled. */
  open(session: SessionState): void
  accept(session: SessionState, token: number): void
  close(session: SessionState): void
  /** Terminates the worker if its current job exceeds its time limit. */
  check(): void
  end(): Promise<void>
}

export interface WorkerOptions {
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

interface PendingJob {
  resolve(message: FromWorker & { kind: 'done' }): void
  reject(error: JobFailed): void
  limit_ms: number
}

export function startWorker({ vocab, limits, onExit }: WorkerOptions): GrammarWorker {
  const words = new Int32Array(new SharedArrayBuffer(4 * control.words))
  const thread = new Worker(new URL('./worker.ts', import.meta.url), {
    workerData: {
      vocab,
      control: words.buffer as SharedArrayBuffer,
      memory_bytes: limits.memory_bytes,
    } satisfies WorkerData,
    // XGrammar logs there; errors also come as messages.
    stdout: true,
    stderr: true,
  })
  thread.unref()
  thread.stdout.resume()
  thread.stderr.resume()

  const started_at = Date.now()
  const sessions = new Map<number, SessionState>()
  const pendingJobs = new Map<number, PendingJob>()
  const compiled = new Map<string, Promise<number>>()
  let jobsSent = 0
  let state: 'running' | 'ending' | 'gone' = 'running'
  let jobAtFault = 0
  const started = Promise.withResolvers<void>()
  let timer: NodeJS.Timeout | undefined

  const post = (message: ToWorker): void => {
    self.used_at = Date.now()
    if (state !== 'running') return
    jobsSent++
    thread.postMessage(message)
    timer ??= setInterval(check, checkEvery_ms).unref()
  }

  const request = (message: ToWorker & { kind: 'compile' | 'probe' }, limit_ms: number) =>
    new Promise<FromWorker & { kind: 'done' }>((resolve, reject) => {
      if (state !== 'running') return reject(new JobFailed(false, 'The worker has ended.'))
      pendingJobs.set(message.job, { resolve, reject, limit_ms })
      post(message)
    })

  const check = (): void => {
    if (state !== 'running') return
    const isStarted = Atomics.load(words, control.started) === 1
    if (isStarted && jobsSent === Atomics.load(words, control.done)) {
      clearInterval(timer)
      timer = undefined
      return
    }
    const job = Atomics.load(words, control.job)
    const since = Atomics.load(words, control.since)
    const isLate =
      job === 0
        ? !isStarted && Date.now() - started_at > limits.start_ms
        : isOver(elapsed(since), pendingJobs.get(job)?.limit_ms ?? limits.mask_ms)
    // Read again: the worker may have started another job between the two reads.
    if (isLate && Atomics.load(words, control.job) === job && Atomics.load(words, control.since) === since)
      terminate(job)
  }

  /** Whether the current job, which began `waited_ms` ago, has had more CPU time than this. */
  const isOver = (waited_ms: number, limit_ms: number): boolean => {
    if (waited_ms <= limit_ms) return false
    const used = threadTime(words[control.thread]!)
    return used === undefined || used - words[control.used]! > limit_ms || waited_ms > starvedFactor * limit_ms
  }

  const terminate = (job: number): void => {
    state = 'ending'
    jobAtFault = job
    void thread.terminate()
  }

  timer = setInterval(check, checkEvery_ms).unref()
  thread.on('message', (message: FromWorker) => {
    if (message.kind === 'started') return started.resolve()
    const pending = pendingJobs.get(message.job)
    pendingJobs.delete(message.job)
    if (message.kind === 'done') pending?.resolve(message)
    else {
      pending?.reject(new JobFailed(true, message.reason))
      if (state === 'running') terminate(message.job)
    }
  })
  thread.on('error', () => {
    // The cause came as a message, or the worker ran out of memory. `exit` follows.
  })
  thread.on('exit', () => {
    clearInterval(timer)
    const isEnded = state === 'gone'
    if (state === 'running') jobAtFault = Atomics.load(words, control.job)
    state = 'gone'
    started.resolve()
    for (const [job, { reject }] of pendingJobs) reject(new JobFailed(job === jobAtFault, 'The worker has ended.'))
    pendingJobs.clear()
    if (!isEnded) onExit(self, sessions.get(jobAtFault) ?? null)
  })

  const forgetOldest = (): void => {
    const oldest = compiled.keys().next().value
    if (compiled.size < limits.grammars || oldest === undefined) return
    compiled.delete(oldest)
    // Open sessions keep the grammar alive.
    post({ kind: 'forget', job: nextJob(), grammar: oldest })
  }

  const self: GrammarWorker = {
    started: started.promise,
    sessions,
    used_at: Date.now(),
    get memory_bytes() {
      return Atomics.load(words, control.memory_kib) * 1024
    },
    get isRunning() {
      return state === 'running'
    },
    get isBusy() {
      return jobsSent !== Atomics.load(words, control.done)
    },
    used_ms: () => threadTime(words[control.thread]!) ?? performance.now(),
    lowerPriority() {
      // On Linux a thread has a priority of its own.
      if (process.platform === 'linux' && words[control.thread]) setPriority(words[control.thread]!, lowPriority)
    },
    compile(grammar, source) {
      let compilation = compiled.get(grammar)
      if (compilation !== undefined) compiled.delete(grammar)
      else {
        forgetOldest()
        compilation = request({ kind: 'compile', job: nextJob(), grammar, source }, limits.compile_ms).then(
          ({ elapsed_ms }) => elapsed_ms,
        )
        compilation.catch(() => compiled.delete(grammar))
      }
      compiled.set(grammar, compilation)
      return compilation
    },
    async probe(grammar) {
      const { slowest_ms = 0, stuck = false } = await request(
        { kind: 'probe', job: nextJob(), grammar, masks: limits.probe_masks, total_ms: limits.probe_ms },
        limits.probe_ms + limits.mask_ms,
      )
      return { slowest_ms, stuck }
    },
    open(session) {
      sessions.set(session.id, session)
      Atomics.store(session.memory.state, 0, stateWord(session.tokens.length, working))
      post({
        kind: 'open',
        job: session.id,
        grammar: session.grammar,
        memory: session.memory.buffer,
        tokens: session.tokens,
      })
    },
    accept(session, token) {
      post({ kind: 'accept', job: session.id, token })
    },
    close(session) {
      if (sessions.delete(session.id)) post({ kind: 'close', job: session.id })
    },
    check,
    async end() {
      clearInterval(timer)
      state = 'gone'
      await thread.terminate()
    },
  }
  return self
}
