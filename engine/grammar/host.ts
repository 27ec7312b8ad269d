// One worker thread as its owner sees it: what it was asked, how long it is at it, and its end.
import { Worker } from 'node:worker_threads'
import { control, elapsed, type SessionMemory, stateWord, type VocabData, working } from './session-memory.ts'
import type { FromWorker, GrammarSource, ToWorker, WorkerData } from './worker-messages.ts'

/** Why a job of compiling or probing came to nothing. */
export class JobLost extends Error {
  /** The job itself was at fault: it took too long, or the worker broke at it. */
  readonly guilty: boolean
  constructor(guilty: boolean, why: string) {
    super(why)
    this.guilty = guilty
  }
}

/** A session as hosts know it; it outlives the host that serves it. */
export type HostedSession = { id: number; grammar: string; memory: SessionMemory; tokens: number[] }

export type Host = {
  /** Resolves once it can work, or has ended. */
  readonly started: Promise<void>
  readonly sessions: Map<number, HostedSession>
  readonly memory_bytes: number
  readonly isRunning: boolean
  /** Something that it was asked is not done yet. */
  readonly isBusy: boolean
  /** When it was last asked something, in milliseconds. */
  used_at: number
  /** Compiles once; how long that took, in milliseconds. Rejects with JobLost. */
  compile(grammar: string, source: GrammarSource): Promise<number>
  probe(grammar: string): Promise<{ slowest_ms: number; stuck: boolean }>
  /** Serves a session, from its tokens on; its grammar is compiled. */
  open(session: HostedSession): void
  accept(session: HostedSession, token: number): void
  close(session: HostedSession): void
  /** Ends the worker when the job that it is at takes too long. */
  check(): void
  end(): Promise<void>
}

export type HostOptions = {
  vocab: VocabData
  /** It tries grammars out, and gives way to other work. */
  isTrial: boolean
  limits: {
    start_ms: number
    compile_ms: number
    probe_ms: number
    probe_masks: number
    mask_ms: number
    memory_bytes: number
    grammars: number
  }
  /**
   * The worker has ended by itself or was ended at a job that took too long; `guilty` is the session that it was at, if
   * it was at one.
   */
  onGone(host: Host, guilty: HostedSession | null): void
}

const checkEvery_ms = 100
let jobs = 0

/** A number that no other job or session has. */
export function nextJob(): number {
  jobs = (jobs % 0x3fffffff) + 1
  return jobs
}

type Waiting = { resolve(message: FromWorker & { kind: 'done' }): void; reject(error: JobLost): void; limit_ms: number }

export function startHost({ vocab, isTrial, limits, onGone }: HostOptions): Host {
  const words = new Int32Array(new SharedArrayBuffer(4 * control.words))
  const worker = new Worker(new URL('./worker.ts', import.meta.url), {
    workerData: {
      vocab,
      control: words.buffer as SharedArrayBuffer,
      memory_bytes: limits.memory_bytes,
      isTrial,
    } satisfies WorkerData,
    // XGrammar writes its complaints there; what matters of them comes as a message.
    stdout: true,
    stderr: true,
  })
  worker.unref()
  worker.stdout.resume()
  worker.stderr.resume()

  const started_at = Date.now()
  const sessions = new Map<number, HostedSession>()
  const waiting = new Map<number, Waiting>()
  const compiled = new Map<string, Promise<number>>()
  let sent = 0
  let state: 'running' | 'ending' | 'gone' = 'running'
  let guilty = 0
  const started = Promise.withResolvers<void>()
  let timer: NodeJS.Timeout | undefined

  const post = (message: ToWorker): void => {
    host.used_at = Date.now()
    if (state !== 'running') return
    sent++
    worker.postMessage(message)
    timer ??= setInterval(check, checkEvery_ms).unref()
  }

  const ask = (message: ToWorker & { kind: 'compile' | 'probe' }, limit_ms: number) =>
    new Promise<FromWorker & { kind: 'done' }>((resolve, reject) => {
      if (state !== 'running') return reject(new JobLost(false, 'The worker has ended.'))
      waiting.set(message.job, { resolve, reject, limit_ms })
      post(message)
    })

  const check = (): void => {
    if (state !== 'running') return
    const isStarted = Atomics.load(words, control.started) === 1
    if (isStarted && sent === Atomics.load(words, control.done)) {
      clearInterval(timer)
      timer = undefined
      return
    }
    const job = Atomics.load(words, control.job)
    const since = Atomics.load(words, control.since)
    const isLate =
      job === 0
        ? !isStarted && Date.now() - started_at > limits.start_ms
        : elapsed(since) > (waiting.get(job)?.limit_ms ?? limits.mask_ms)
    // Read again: the worker may have gone on between the two words.
    if (isLate && Atomics.load(words, control.job) === job && Atomics.load(words, control.since) === since) stop(job)
  }

  const stop = (job: number): void => {
    state = 'ending'
    guilty = job
    void worker.terminate()
  }

  timer = setInterval(check, checkEvery_ms).unref()
  worker.on('message', (message: FromWorker) => {
    if (message.kind === 'started') return started.resolve()
    const asked = waiting.get(message.job)
    waiting.delete(message.job)
    if (message.kind === 'done') asked?.resolve(message)
    else {
      asked?.reject(new JobLost(true, message.why))
      if (state === 'running') stop(message.job)
    }
  })
  worker.on('error', () => {
    // What it was is in the message before, or it ran out of memory; `exit` follows.
  })
  worker.on('exit', () => {
    clearInterval(timer)
    const isEnded = state === 'gone'
    if (state === 'running') guilty = Atomics.load(words, control.job)
    state = 'gone'
    started.resolve()
    for (const [job, { reject }] of waiting) reject(new JobLost(job === guilty, 'The worker has ended.'))
    waiting.clear()
    if (!isEnded) onGone(host, sessions.get(guilty) ?? null)
  })

  const forgetOldest = (): void => {
    const oldest = compiled.keys().next().value
    if (compiled.size < limits.grammars || oldest === undefined) return
    compiled.delete(oldest)
    // Sessions that use it keep it alive.
    post({ kind: 'forget', job: nextJob(), grammar: oldest })
  }

  const host: Host = {
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
      return sent !== Atomics.load(words, control.done)
    },
    compile(grammar, source) {
      let made = compiled.get(grammar)
      if (made) compiled.delete(grammar)
      else {
        forgetOldest()
        made = ask({ kind: 'compile', job: nextJob(), grammar, source }, limits.compile_ms).then(
          ({ elapsed_ms }) => elapsed_ms,
        )
        made.catch(() => compiled.delete(grammar))
      }
      compiled.set(grammar, made)
      return made
    },
    async probe(grammar) {
      const { slowest_ms = 0, stuck = false } = await ask(
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
      await worker.terminate()
    },
  }
  return host
}
