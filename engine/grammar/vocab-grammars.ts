// Grammar workers of one vocabulary. A new grammar first gets a trial in a separate worker. Cheap grammars are then
// served by one shared worker, costly ones keep the worker that compiled them, and hostile ones end with the worker
// that they block.
import { ApiError } from '../../contract/errors.ts'
import { type GrammarWorker, JobFailed, nextJob, type SessionState, startWorker } from './host.ts'
import { createSession, type GrammarSession, type WorkerSession } from './session.ts'
import { createSessionMemory, type VocabData } from './session-memory.ts'
import { createTrials } from './trials.ts'
import { createVerdicts, type Verdict } from './verdicts.ts'
import type { GrammarSource } from './worker-messages.ts'

export const defaultLimits = {
  /** Time limits of a worker's start, a compile, a probe and a mask: CPU time, except that of the start. */
  start_ms: 30_000,
  compile_ms: 6_000,
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
  account_trials: 16,
  trial_wait_ms: 10_000,
  /** How long an idle worker stays, and how long a rejection is cached. */
  idle_ms: 60_000,
  rejection_ms: 60_000,
}
export type GrammarLimits = typeof defaultLimits

interface GrammarRequest {
  account: string
  key: string
  source: GrammarSource
  isTrusted: boolean
  costlyPaths: () => string[]
}

export interface VocabGrammars {
  open(request: GrammarRequest, signal?: AbortSignal): Promise<GrammarSession>
  /** Ends idle workers. Returns whether any worker is left. */
  sweep(): boolean
  end(): Promise<void>
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

const movesMax = 3
const attemptsMax = 3

export function createVocabGrammars(vocab: VocabData, limits: GrammarLimits): VocabGrammars {
  const verdicts = createVerdicts(limits)
  const costly = new Map<string, GrammarWorker>()
  const openSessions = new Map<number, ServedSession>()
  const sharedTrials = new Map<string, SharedTrial>()
  let shared: GrammarWorker | null = null
  let isEnded = false

  const start = (): GrammarWorker => {
    if (isEnded) throw new ApiError('shutting_down', 'The engine is stopping.')
    return startWorker({ vocab, limits, onExit: onExit })
  }
  const trials = createTrials(start, limits)
  const ensureSharedWorker = (): GrammarWorker => {
    shared ??= start()
    return shared
  }

  const forgetWorker = (worker: GrammarWorker): void => {
    if (shared === worker) shared = null
    trials.detach(worker)
    for (const [key, one] of costly) if (one === worker) costly.delete(key)
  }

  const onExit = (worker: GrammarWorker, atFault: SessionState | null): void => {
    forgetWorker(worker)
    for (const { id } of worker.sessions.values()) {
      const session = openSessions.get(id)
      if (!session) continue
      session.worker = null
      if (id === atFault?.id) {
        verdicts.addStrike(
          session.request.key,
          tooCostly(session.request, `one of its masks took more than ${limits.mask_ms} ms`),
        )
        session.fail(tooCostly(session.request, `one of its masks took more than ${limits.mask_ms} ms`))
      } else void moveToNewWorker(session)
    }
  }

  /** Moves a session to another worker after its worker has ended; replays its tokens. */
  const moveToNewWorker = async (session: ServedSession): Promise<void> => {
    try {
      if (++session.moves > movesMax)
        throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
      await assignWorker(session)
    } catch (error) {
      session.fail(
        error instanceof ApiError
          ? error
          : new ApiError('engine_failed', `The grammar's worker could not be replaced: ${(error as Error).message}`),
      )
    }
  }

  const assignWorker = async (session: ServedSession): Promise<void> => {
    for (let attempt = 1; ; attempt++) {
      const worker = await workerFor(session.request, session.closed.signal)
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
  const workerFor = async (request: GrammarRequest, signal: AbortSignal): Promise<GrammarWorker> => {
    for (let attempt = 1; ; attempt++) {
      try {
        const verdict = request.isTrusted ? 'cheap' : await verdictOf(request, signal)
        if (verdict instanceof ApiError) throw verdict
        const worker =
          verdict === 'cheap'
            ? ensureSharedWorker()
            : (costly.get(request.key) ?? (await compileCostly(request, signal)))
        await worker.compile(request.key, request.source)
        return worker
      } catch (error) {
        if (!(error instanceof JobFailed)) throw error
        if (error.atFault) verdicts.addStrike(request.key, tooCostly(request, 'it takes too long to compile'))
        if (attempt === attemptsMax)
          throw error.atFault
            ? tooCostly(request, 'it takes too long to compile')
            : new ApiError('engine_failed', error.message)
      }
    }
  }

  /** Requests of one account for the same grammar share its trial. It is aborted when none of them is left. */
  const verdictOf = async (request: GrammarRequest, signal: AbortSignal): Promise<Verdict> => {
    const cached = verdicts.get(request.key)
    if (cached) return cached
    const trialKey = JSON.stringify([request.account, request.key])
    const trial = sharedTrials.get(trialKey) ?? startTrial(request)
    const forget = () => sharedTrials.get(trialKey) === trial && sharedTrials.delete(trialKey)
    sharedTrials.set(trialKey, trial)
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

  const startTrial = (request: GrammarRequest): SharedTrial => {
    const abandoned = new AbortController()
    const work = async (worker: GrammarWorker) => verdicts.get(request.key) ?? runTrial(worker, request)
    return { verdict: trials.run(request.account, 'new', work, abandoned.signal), waiters: 0, abandoned }
  }

  const runTrial = async (worker: GrammarWorker, request: GrammarRequest): Promise<Verdict> => {
    // Most grammars are cheap: start the shared worker meanwhile.
    ensureSharedWorker()
    let stage = `it takes more than ${limits.compile_ms} ms to compile, or more memory than a grammar may use`
    try {
      const compile_ms = await worker.compile(request.key, request.source)
      stage = 'its masks take too long'
      const { slowest_ms, stuck } = await worker.probe(request.key)
      if (stuck)
        return verdicts.set(
          request.key,
          new ApiError(
            'schema_not_enforceable',
            'This model has no tokens for the texts that the schema asks for. Use other names and values.',
          ),
        )
      if (slowest_ms > limits.slow_mask_ms) return verdicts.set(request.key, tooCostly(request, stage))
      if (compile_ms <= limits.cheap_compile_ms && slowest_ms <= limits.cheap_mask_ms)
        return verdicts.set(request.key, 'cheap')
      verdicts.set(request.key, 'costly')
      keepAsCostly(worker, request.key)
      return 'costly'
    } catch (error) {
      forgetWorker(worker)
      if (error instanceof JobFailed && error.atFault) return verdicts.set(request.key, tooCostly(request, stage))
      throw error
    }
  }

  const compileCostly = (request: GrammarRequest, signal: AbortSignal): Promise<GrammarWorker> => {
    const work = async (worker: GrammarWorker) => {
      const existing = costly.get(request.key)
      if (existing) return existing
      evictIdleWorker()
      await worker.compile(request.key, request.source)
      keepAsCostly(worker, request.key)
      return worker
    }
    return trials.run(request.account, 'costly', work, signal)
  }

  const keepAsCostly = (worker: GrammarWorker, key: string): void => {
    evictIdleWorker()
    trials.detach(worker)
    costly.set(key, worker)
  }

  const evictIdleWorker = (): void => {
    if (costly.size < limits.costly_workers) return
    const idle = [...costly]
      .filter(([, worker]) => worker.sessions.size === 0 && !worker.isBusy)
      .sort(([, a], [, b]) => a.used_at - b.used_at)[0]
    if (!idle)
      throw new ApiError(
        'overloaded',
        'Too many costly schemas are in use. Try again shortly, or simplify the schema ' +
          '(long maxLength and maxItems, patterns).',
      )
    costly.delete(idle[0])
    void idle[1].end()
  }

  return {
    async open(request, signal) {
      const id = nextJob()
      const session = Object.assign(
        createSession({ id, grammar: request.key, memory: createSessionMemory(vocab.size), tokens: [] }, () => {
          openSessions.delete(id)
          session.closed.abort(new ApiError('engine_unavailable', 'The caller has left.'))
          const { worker } = session
          worker?.close(session)
          if (worker && worker === shared && worker.sessions.size === 0 && worker.memory_bytes > limits.restart_bytes) {
            forgetWorker(worker)
            void worker.end()
          }
        }),
        { request, moves: 0, closed: new AbortController() },
      )
      openSessions.set(id, session)
      try {
        await untilAborted(assignWorker(session), signal)
      } catch (error) {
        session.close()
        throw error
      }
      return session
    },
    sweep() {
      const workers = [shared, ...trials.workers(), ...costly.values()].filter((worker) => worker !== null)
      const idle = workers.filter(
        (worker) => worker.sessions.size === 0 && !worker.isBusy && Date.now() - worker.used_at > limits.idle_ms,
      )
      for (const worker of idle) {
        forgetWorker(worker)
        void worker.end()
      }
      return workers.length > idle.length
    },
    async end() {
      isEnded = true
      for (const session of openSessions.values())
        session.fail(new ApiError('shutting_down', 'The engine is stopping.'))
      await Promise.all([shared, ...trials.workers(), ...costly.values()].map((worker) => worker?.end()))
    },
  }
}

function tooCostly(request: GrammarRequest, reason: string): ApiError {
  const paths = request.costlyPaths()
  const what = paths.length > 0 ? `Simplify ${paths.join(', ')}.` : 'Use fewer alternatives and less nesting.'
  return new ApiError('schema_not_enforceable', `The schema is too costly to enforce: ${reason}. ${what}`, {
    details: { paths },
  })
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
