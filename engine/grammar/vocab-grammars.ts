// The workers of one vocabulary. A grammar is tried out in a worker of its own first: cheap ones are then served by one
// worker for all, costly ones stay where they were compiled, and hostile ones end with the worker that they held up.
import { ApiError } from '../../contract/errors.ts'
import type { GrammarSession } from './grammars.ts'
import { type Host, type HostedSession, JobLost, nextJob, startHost } from './host.ts'
import { type HeldSession, holdSession } from './session.ts'
import { createSessionMemory, type VocabData } from './session-memory.ts'
import { createTrials } from './trials.ts'
import { createVerdicts, type Verdict } from './verdicts.ts'
import type { GrammarSource } from './worker-messages.ts'

export const defaultLimits = {
  /** The longest start of a worker, compile, walk of the trial, and mask. */
  start_ms: 30_000,
  compile_ms: 6_000,
  probe_ms: 1_500,
  mask_ms: 1_000,
  /** Masks of the trial's walk. */
  probe_masks: 50,
  /** A compile and a mask up to these are cheap. */
  cheap_compile_ms: 100,
  cheap_mask_ms: 20,
  /** The slowest mask of a trial's walk that is served at all. */
  slow_mask_ms: 250,
  /** Memory at which a worker's grammar is stopped, and at which an idle worker is started afresh. */
  memory_bytes: 768 * 2 ** 20,
  restart_bytes: 256 * 2 ** 20,
  /** Compiled grammars that a worker keeps, and verdicts that are remembered. */
  grammars: 64,
  /** Workers that serve a costly grammar each. */
  costly_workers: 4,
  slice_ms: 250,
  account_trials: 16,
  trial_wait_ms: 10_000,
  /** How long an idle worker is kept, and how long a refusal for its cost holds. */
  idle_ms: 60_000,
  refusal_ms: 60_000,
}
export type GrammarLimits = typeof defaultLimits

export type Wanted = {
  account: string
  key: string
  source: GrammarSource
  isTrusted: boolean
  heavyPlaces: () => string[]
}

export type VocabGrammars = {
  open(wanted: Wanted, signal?: AbortSignal): Promise<GrammarSession>
  /** Ends what nobody has used for a while; whether a worker is left. */
  sweep(): boolean
  end(): Promise<void>
}

type Served = HeldSession & {
  wanted: Wanted
  moves: number
  /** Aborts when the session is closed. */
  closed: AbortController
}
type Judging = { verdict: Promise<Verdict>; askers: number; given_up: AbortController }

const movesMax = 3
const attemptsMax = 3

export function createVocabGrammars(vocab: VocabData, limits: GrammarLimits): VocabGrammars {
  const verdicts = createVerdicts(limits)
  const costly = new Map<string, Host>()
  const held = new Map<number, Served>()
  const judging = new Map<string, Judging>()
  let shared: Host | null = null
  let isEnded = false

  const start = (isTrial: boolean): Host => {
    if (isEnded) throw new ApiError('shutting_down', 'The engine is stopping.')
    return startHost({ vocab, isTrial, limits, onGone })
  }
  const trials = createTrials(() => start(true), limits)
  const sharedHost = (): Host => {
    shared ??= start(false)
    return shared
  }

  const drop = (host: Host): void => {
    if (shared === host) shared = null
    trials.drop(host)
    for (const [key, one] of costly) if (one === host) costly.delete(key)
  }

  const onGone = (host: Host, guilty: HostedSession | null): void => {
    drop(host)
    for (const { id } of host.sessions.values()) {
      const session = held.get(id)
      if (!session) continue
      session.host = null
      if (id === guilty?.id) {
        verdicts.blame(
          session.wanted.key,
          tooCostly(session.wanted, `one of its masks took more than ${limits.mask_ms} ms`),
        )
        session.fail(tooCostly(session.wanted, `one of its masks took more than ${limits.mask_ms} ms`))
      } else void move(session)
    }
  }

  /** Serves a session on from its tokens after its worker has ended. */
  const move = async (session: Served): Promise<void> => {
    try {
      if (++session.moves > movesMax)
        throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
      await place(session)
    } catch (error) {
      session.fail(
        error instanceof ApiError
          ? error
          : new ApiError('engine_failed', `The grammar's worker could not be replaced: ${(error as Error).message}`),
      )
    }
  }

  const place = async (session: Served): Promise<void> => {
    for (let attempt = 1; ; attempt++) {
      const host = await hostFor(session.wanted, session.closed.signal)
      if (session.isClosed) return
      if (host.isRunning) {
        session.host = host
        return host.open(session)
      }
      if (attempt === attemptsMax)
        throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
    }
  }

  /** A worker that has this grammar compiled. */
  const hostFor = async (wanted: Wanted, signal: AbortSignal): Promise<Host> => {
    for (let attempt = 1; ; attempt++) {
      try {
        const verdict = wanted.isTrusted ? 'cheap' : await judge(wanted, signal)
        if (verdict instanceof ApiError) throw verdict
        const host =
          verdict === 'cheap' ? sharedHost() : (costly.get(wanted.key) ?? (await compileCostly(wanted, signal)))
        await host.compile(wanted.key, wanted.source)
        return host
      } catch (error) {
        if (!(error instanceof JobLost)) throw error
        if (error.guilty) verdicts.blame(wanted.key, tooCostly(wanted, 'it takes too long to compile'))
        if (attempt === attemptsMax)
          throw error.guilty
            ? tooCostly(wanted, 'it takes too long to compile')
            : new ApiError('engine_failed', error.message)
      }
    }
  }

  /** Requests of one account for one grammar share its trial, which ends when none of them is left. */
  const judge = async (wanted: Wanted, signal: AbortSignal): Promise<Verdict> => {
    const known = verdicts.get(wanted.key)
    if (known) return known
    const asked = JSON.stringify([wanted.account, wanted.key])
    const shared = judging.get(asked) ?? startJudging(wanted)
    const forget = () => judging.get(asked) === shared && judging.delete(asked)
    judging.set(asked, shared)
    shared.askers++
    const giveUp = () => {
      if (--shared.askers > 0) return
      forget()
      shared.given_up.abort()
    }
    signal.addEventListener('abort', giveUp)
    try {
      return await shared.verdict
    } finally {
      forget()
      signal.removeEventListener('abort', giveUp)
    }
  }

  const startJudging = (wanted: Wanted): Judging => {
    const given_up = new AbortController()
    const work = async (host: Host) => verdicts.get(wanted.key) ?? tryOut(host, wanted)
    return { verdict: trials.run(wanted.account, 'new', work, given_up.signal), askers: 0, given_up }
  }

  const tryOut = async (host: Host, wanted: Wanted): Promise<Verdict> => {
    // Most grammars turn out cheap: the worker that will serve them starts meanwhile.
    sharedHost()
    let stage = `it takes more than ${limits.compile_ms} ms to compile, or more memory than a grammar may use`
    try {
      const compile_ms = await host.compile(wanted.key, wanted.source)
      stage = 'its masks take too long'
      const { slowest_ms, stuck } = await host.probe(wanted.key)
      if (stuck)
        return verdicts.set(
          wanted.key,
          new ApiError(
            'schema_not_enforceable',
            'This model has no tokens for the texts that the schema asks for. Use other names and values.',
          ),
        )
      if (slowest_ms > limits.slow_mask_ms) return verdicts.set(wanted.key, tooCostly(wanted, stage))
      if (compile_ms <= limits.cheap_compile_ms && slowest_ms <= limits.cheap_mask_ms)
        return verdicts.set(wanted.key, 'cheap')
      verdicts.set(wanted.key, 'costly')
      promote(host, wanted.key)
      return 'costly'
    } catch (error) {
      drop(host)
      if (error instanceof JobLost && error.guilty) return verdicts.set(wanted.key, tooCostly(wanted, stage))
      throw error
    }
  }

  const compileCostly = (wanted: Wanted, signal: AbortSignal): Promise<Host> => {
    const work = async (host: Host) => {
      const made = costly.get(wanted.key)
      if (made) return made
      makeRoom()
      await host.compile(wanted.key, wanted.source)
      promote(host, wanted.key)
      return host
    }
    return trials.run(wanted.account, 'costly', work, signal)
  }

  const promote = (host: Host, key: string): void => {
    makeRoom()
    trials.drop(host)
    costly.set(key, host)
  }

  const makeRoom = (): void => {
    if (costly.size < limits.costly_workers) return
    const idle = [...costly]
      .filter(([, host]) => host.sessions.size === 0 && !host.isBusy)
      .sort(([, a], [, b]) => a.used_at - b.used_at)[0]
    if (!idle)
      throw new ApiError(
        'overloaded',
        'Too many costly schemas are in use. Try again shortly, or simplify the schema (long maxLength and maxItems, patterns).',
      )
    costly.delete(idle[0])
    void idle[1].end()
  }

  return {
    async open(wanted, signal) {
      const id = nextJob()
      const session = Object.assign(
        holdSession({ id, grammar: wanted.key, memory: createSessionMemory(vocab.size), tokens: [] }, () => {
          held.delete(id)
          session.closed.abort(new ApiError('engine_unavailable', 'The caller has left.'))
          const { host } = session
          host?.close(session)
          if (host && host === shared && host.sessions.size === 0 && host.memory_bytes > limits.restart_bytes) {
            drop(host)
            void host.end()
          }
        }),
        { wanted, moves: 0, closed: new AbortController() },
      )
      held.set(id, session)
      try {
        await untilAborted(place(session), signal)
      } catch (error) {
        session.close()
        throw error
      }
      return session
    },
    sweep() {
      const hosts = [shared, ...trials.hosts(), ...costly.values()].filter((host) => host !== null)
      const idle = hosts.filter(
        (host) => host.sessions.size === 0 && !host.isBusy && Date.now() - host.used_at > limits.idle_ms,
      )
      for (const host of idle) {
        drop(host)
        void host.end()
      }
      return hosts.length > idle.length
    },
    async end() {
      isEnded = true
      for (const session of held.values()) session.fail(new ApiError('shutting_down', 'The engine is stopping.'))
      await Promise.all([shared, ...trials.hosts(), ...costly.values()].map((host) => host?.end()))
    },
  }
}

function tooCostly(wanted: Wanted, why: string): ApiError {
  const places = wanted.heavyPlaces()
  const what = places.length > 0 ? `Simplify ${places.join(', ')}.` : 'Use fewer alternatives and less nesting.'
  return new ApiError('schema_not_enforceable', `The schema is too costly to enforce: ${why}. ${what}`, {
    details: { paths: places },
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
