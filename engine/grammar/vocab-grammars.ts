// Grammar workers of one vocabulary. A new grammar first gets a trial in a separate worker. Cheap grammars are then
// served by one shared worker, costly ones keep the worker that compiled them, and hostile ones end with the worker
// that they block.
import { setTimeout } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import { createFairQueue } from '../../lib/fair-queue.ts'
import { GrammarWorker, JobFailed, nextJob, type SessionState } from './host.ts'
import { createSession, type GrammarSession, type NamedSchema, type WorkerSession } from './session.ts'
import { createSessionMemory, type VocabData } from './session-memory.ts'
import { Trials } from './trials.ts'
import { createVerdicts, type Verdict, type Verdicts } from './verdicts.ts'
import type { GrammarSource } from './worker-messages.ts'

export const defaultLimits = {
  /** Time limits of a worker's start, a compile, a probe and a mask: CPU time, except that of the start. */
  start_ms: 30_000,
  compile_ms: 6_000,
  /** Limit of a compile if another grammar can stand in for this one. */
  short_compile_ms: 1_000,
  probe_ms: 1_500,
  mask_ms: 1_000,
  /** Masks computed in a probe. */
  probe_masks: 50,
  /** Up to these CPU times a grammar is cheap. */
  cheap_compile_ms: 100,
  cheap_mask_ms: 20,
  /** A grammar with a slower mask in the probe is rejected. */
  slow_mask_ms: 250,
  /** Memory at which a worker is stopped, and above which an idle worker is restarted. */
  memory_bytes: 768 * 2 ** 20,
  restart_bytes: 256 * 2 ** 20,
  /** Cached compiled grammars per worker, and cached verdicts. */
  grammars: 64,
  /** Limit of workers that serve one costly grammar each. */
  costly_workers: 4,
  slice_ms: 250,
  account_trials: 256,
  /** How long an idle worker stays, and how long a rejection is cached. */
  idle_ms: 60_000,
  rejection_ms: 60_000,
}
export type GrammarLimits = typeof defaultLimits

export interface GrammarRequest {
  account: string
  key: string
  source: GrammarSource
  isTrusted: boolean
  /** False if another grammar can stand in for it. */
  mayTakeLong: boolean
  /** The schemas to simplify, with pointers into them. */
  costlyParts: () => (NamedSchema & { paths: string[] })[]
}

interface ServedSession extends WorkerSession {
  request: GrammarRequest
  moves: number
  /** Aborts when the session closes. */
  closed: AbortController
}
interface SharedTrial {
  verdict: Promise<Verdict>
  waiters: number
  abandoned: AbortController
}

/** How often a wait looks whether a worker is free. */
const freeCheck_ms = 50
const movesMax = 3
const attemptsMax = 3

export class VocabGrammars {
  private readonly vocab: VocabData
  private readonly limits: GrammarLimits
  private readonly verdicts: Verdicts
  private readonly costly = new Map<string, GrammarWorker>()
  private readonly openSessions = new Map<number, ServedSession>()
  private readonly sharedTrials = new Map<string, SharedTrial>()
  private shared: GrammarWorker | null = null
  private isEnded = false
  private readonly trials: Trials
  /** Accounts in turn wait for a worker of their own. */
  private readonly costlyTurns = createFairQueue()

  constructor(vocab: VocabData, limits: GrammarLimits) {
    this.vocab = vocab
    this.limits = limits
    this.verdicts = createVerdicts(this.limits)
    this.trials = new Trials(() => this.start(), this.limits)
  }

  async open(request: GrammarRequest, signal?: AbortSignal): Promise<GrammarSession> {
    const id = nextJob()
    const initial = { id, grammar: request.key, memory: createSessionMemory(this.vocab.size), tokens: [] }
    const session = Object.assign(
      createSession(initial, request.source, () => {
        this.openSessions.delete(id)
        session.closed.abort(new ApiError('engine_unavailable', 'The caller has left.'))
        const { worker } = session
        worker?.close(session)
        if (
          worker &&
          worker === this.shared &&
          worker.sessions.size === 0 &&
          worker.memory_bytes > this.limits.restart_bytes
        ) {
          this.forgetWorker(worker)
          void worker.end()
        }
      }),
      { request, moves: 0, closed: new AbortController() },
    )
    this.openSessions.set(id, session)
    try {
      await untilAborted(this.assignWorker(session), signal)
    } catch (error) {
      session.close()
      throw error
    }
    return session
  }

  /** Ends idle workers. Returns whether any worker is left. */
  sweep(): boolean {
    const workers = [this.shared, ...this.trials.workers(), ...this.costly.values()].filter((worker) => worker !== null)
    const idle = workers.filter(
      (worker) => worker.sessions.size === 0 && !worker.isBusy && Date.now() - worker.used_at > this.limits.idle_ms,
    )
    for (const worker of idle) {
      this.forgetWorker(worker)
      void worker.end()
    }
    return workers.length > idle.length
  }

  async end(): Promise<void> {
    this.isEnded = true
    for (const session of this.openSessions.values())
      session.fail(new ApiError('shutting_down', 'The engine is stopping.'))
    await Promise.all([this.shared, ...this.trials.workers(), ...this.costly.values()].map((worker) => worker?.end()))
  }

  private start(): GrammarWorker {
    if (this.isEnded) throw new ApiError('shutting_down', 'The engine is stopping.')
    return new GrammarWorker({
      vocab: this.vocab,
      limits: this.limits,
      onExit: (worker, atFault) => this.onExit(worker, atFault),
    })
  }

  private ensureSharedWorker(): GrammarWorker {
    this.shared ??= this.start()
    return this.shared
  }

  private forgetWorker(worker: GrammarWorker): void {
    if (this.shared === worker) this.shared = null
    this.trials.detach(worker)
    for (const [key, one] of this.costly) if (one === worker) this.costly.delete(key)
  }

  private onExit(worker: GrammarWorker, atFault: SessionState | null): void {
    this.forgetWorker(worker)
    for (const { id } of worker.sessions.values()) {
      const session = this.openSessions.get(id)
      if (!session) continue
      session.worker = null
      if (id === atFault?.id) {
        const stage = `one of its masks took more than ${this.limits.mask_ms / 1000} s of a processor`
        const verdict = tooCostly(session.request, stage)
        this.verdicts.addStrike(session.request.key, verdict)
        session.fail(verdict)
      } else void this.moveToNewWorker(session)
    }
  }

  /** Moves a session to another worker after its worker has ended; replays its tokens. */
  private async moveToNewWorker(session: ServedSession): Promise<void> {
    try {
      if (++session.moves > movesMax)
        throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
      await this.assignWorker(session)
    } catch (error) {
      session.fail(
        error instanceof ApiError
          ? error
          : new ApiError('engine_failed', `The grammar's worker could not be replaced: ${(error as Error).message}`),
      )
    }
  }

  private async assignWorker(session: ServedSession): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      const worker = await this.workerFor(session.request, session.closed.signal)
      if (session.isClosed) return
      if (worker.isRunning) {
        session.worker = worker
        return worker.open(session)
      }
      if (attempt === attemptsMax)
        throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
    }
  }

  /** Returns a worker that has compiled the grammar. */
  private async workerFor(request: GrammarRequest, signal: AbortSignal): Promise<GrammarWorker> {
    for (let attempt = 1; ; attempt++) {
      try {
        const verdict = request.isTrusted ? 'cheap' : await this.verdictOf(request, signal)
        if (verdict instanceof ApiError) throw verdict
        const worker =
          verdict === 'cheap'
            ? this.ensureSharedWorker()
            : (this.costly.get(request.key) ?? (await this.compileCostly(request, signal)))
        await worker.compile(request.key, request.source)
        return worker
      } catch (error) {
        if (!(error instanceof JobFailed)) throw error
        if (error.atFault) this.verdicts.addStrike(request.key, tooCostly(request, 'it takes too long to compile'))
        if (attempt === attemptsMax)
          throw error.atFault
            ? tooCostly(request, 'it takes too long to compile')
            : new ApiError('engine_failed', error.message)
      }
    }
  }

  /** Requests of one account for the same grammar share its trial. It is aborted when none of them is left. */
  private async verdictOf(request: GrammarRequest, signal: AbortSignal): Promise<Verdict> {
    const cached = this.verdicts.get(request.key)
    if (cached) return cached
    const trialKey = JSON.stringify([request.account, request.key])
    const trial = this.sharedTrials.get(trialKey) ?? this.startTrial(request)
    const forget = () => this.sharedTrials.get(trialKey) === trial && this.sharedTrials.delete(trialKey)
    this.sharedTrials.set(trialKey, trial)
    trial.waiters++
    const giveUp = () => {
      if (--trial.waiters > 0) return
      forget()
      trial.abandoned.abort()
    }
    signal.addEventListener('abort', giveUp)
    try {
      return await trial.verdict
    } finally {
      forget()
      signal.removeEventListener('abort', giveUp)
    }
  }

  private startTrial(request: GrammarRequest): SharedTrial {
    const abandoned = new AbortController()
    const work = async (worker: GrammarWorker) => this.verdicts.get(request.key) ?? this.runTrial(worker, request)
    return { verdict: this.trials.run(request.account, 'new', work, abandoned.signal), waiters: 0, abandoned }
  }

  private async runTrial(worker: GrammarWorker, request: GrammarRequest): Promise<Verdict> {
    // Most grammars are cheap: start the shared worker meanwhile.
    this.ensureSharedWorker()
    const limit_ms = request.mayTakeLong ? this.limits.compile_ms : this.limits.short_compile_ms
    let stage = `it takes more than ${limit_ms / 1000} s of a processor to compile, or more memory than it may use`
    try {
      const compile_ms = await worker.compile(request.key, request.source, limit_ms)
      stage = 'its masks take too long'
      const { slowest_ms, stuck } = await worker.probe(request.key)
      if (stuck)
        return this.verdicts.set(
          request.key,
          new ApiError(
            'schema_not_enforceable',
            'This model has no tokens for the texts that the schema asks for. Use other names and values.',
          ),
        )
      if (slowest_ms > this.limits.slow_mask_ms) return this.verdicts.set(request.key, tooCostly(request, stage))
      if (compile_ms <= this.limits.cheap_compile_ms && slowest_ms <= this.limits.cheap_mask_ms)
        return this.verdicts.set(request.key, 'cheap')
      if (this.makeRoom()) this.keepAsCostly(worker, request.key)
      return this.verdicts.set(request.key, 'costly')
    } catch (error) {
      this.forgetWorker(worker)
      if (error instanceof JobFailed && error.atFault) return this.verdicts.set(request.key, tooCostly(request, stage))
      throw error
    }
  }

  /** Waits until a worker for costly grammars is free. */
  private compileCostly(request: GrammarRequest, signal: AbortSignal): Promise<GrammarWorker> {
    const { account, key, source } = request
    const work = async (worker: GrammarWorker) => {
      await worker.compile(key, source)
      if (!this.makeRoom()) return null
      this.keepAsCostly(worker, key)
      return worker
    }
    const turn = async () => {
      for (;;) {
        const existing = this.costly.get(key)
        if (existing) return existing
        const compiled = this.makeRoom() && (await this.trials.run(account, 'costly', work, signal))
        if (compiled) return compiled
        await setTimeout(freeCheck_ms, undefined, { signal })
      }
    }
    return this.costlyTurns(account, turn, signal)
  }

  private keepAsCostly(worker: GrammarWorker, key: string): void {
    this.trials.detach(worker)
    this.costly.set(key, worker)
  }

  /** Whether one more worker may serve a costly grammar: ends an idle one for it. */
  private makeRoom(): boolean {
    if (this.costly.size < this.limits.costly_workers) return true
    const idle = [...this.costly]
      .filter(([, worker]) => worker.sessions.size === 0 && !worker.isBusy)
      .sort(([, a], [, b]) => a.used_at - b.used_at)[0]
    if (!idle) return false
    this.costly.delete(idle[0])
    void idle[1].end()
    return true
  }
}

function tooCostly(request: GrammarRequest, reason: string): ApiError {
  const parts = request.costlyParts()
  const paths = parts.flatMap(({ paths }) => paths)
  const named = [...new Set(parts.map(({ of }) => of))].filter((of) => of !== '')
  const which = named.length > 0 ? ` of ${named.join(', ')}` : ''
  const what = paths.length > 0 ? `Simplify ${paths.join(', ')}` : 'Use fewer alternatives and less nesting'
  const param = parts.find(({ param }) => param !== '')?.param
  const orElse = param?.startsWith('tools.') ? ', or leave out "strict"' : ''
  return new ApiError(
    'schema_not_enforceable',
    `The schema${which} is too costly to enforce: ${reason}. ${what}${orElse}.`,
    { details: { paths }, ...(param !== undefined && { param }) },
  )
}

async function untilAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work
  const aborted = Promise.withResolvers<never>()
  const abort = () => aborted.reject(signal.reason)
  signal.addEventListener('abort', abort)
  try {
    return await Promise.race([work, aborted.promise])
  } finally {
    signal.removeEventListener('abort', abort)
  }
}
