// The workers of one vocabulary. A grammar is tried out in a worker of its own first: cheap ones are then served by one worker for all, costly ones stay
// where they were compiled, and hostile ones end with the worker that they held up.
import { ApiError } from '../../contract/errors.ts'
import type { GrammarSession } from './grammars.ts'
import { type Host, type HostedSession, JobLost, nextJob, startHost } from './host.ts'
import { type HeldSession, holdSession } from './session.ts'
import { createSessionMemory, type VocabData } from './session-memory.ts'
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
  trials_waiting: 16,
  /** How long a grammar waits for the trials before its own. */
  trial_wait_ms: 10_000,
  /** How long an idle worker is kept, and how long a refusal for its cost holds. */
  idle_ms: 60_000,
  refusal_ms: 60_000,
}
export type GrammarLimits = typeof defaultLimits

export type Wanted = { key: string; source: GrammarSource; isTrusted: boolean; heavyPlaces: () => string[] }

export type VocabGrammars = {
  open(wanted: Wanted, signal?: AbortSignal): Promise<GrammarSession>
  /** Ends what nobody has used for a while; whether a worker is left. */
  sweep(): boolean
  end(): Promise<void>
}

const movesMax = 3
const attemptsMax = 3

export function createVocabGrammars(vocab: VocabData, limits: GrammarLimits): VocabGrammars {
  const verdicts = createVerdicts(limits)
  const costly = new Map<string, Host>()
  const held = new Map<number, HeldSession & { wanted: Wanted; moves: number }>()
  const judging = new Map<string, Promise<Verdict>>()
  let shared: Host | null = null
  let trial: Host | null = null
  let lastTrial: Promise<unknown> = Promise.resolve()
  let trials = 0
  let isEnded = false

  const start = (): Host => {
    if (isEnded) throw new ApiError('shutting_down', 'The engine is stopping.')
    return startHost({ vocab, limits, onGone })
  }
  const sharedHost = (): Host => {
    shared ??= start()
    return shared
  }

  const drop = (host: Host): void => {
    if (shared === host) shared = null
    if (trial === host) trial = null
    for (const [key, one] of costly) if (one === host) costly.delete(key)
  }

  const onGone = (host: Host, guilty: HostedSession | null): void => {
    drop(host)
    for (const { id } of host.sessions.values()) {
      const session = held.get(id)
      if (!session) continue
      session.host = null
      if (id === guilty?.id) {
        verdicts.blame(session.wanted.key, tooCostly(session.wanted, `one of its masks took more than ${limits.mask_ms} ms`))
        session.fail(tooCostly(session.wanted, `one of its masks took more than ${limits.mask_ms} ms`))
      } else void move(session)
    }
  }

  /** Serves a session on from its tokens after its worker has ended. */
  const move = async (session: HeldSession & { wanted: Wanted; moves: number }): Promise<void> => {
    try {
      if (++session.moves > movesMax) throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
      await place(session)
    } catch (error) {
      session.fail(error instanceof ApiError ? error : new ApiError('engine_failed', `The grammar's worker could not be replaced: ${(error as Error).message}`))
    }
  }

  const place = async (session: HeldSession & { wanted: Wanted }): Promise<void> => {
    for (let attempt = 1; ; attempt++) {
      const host = await hostFor(session.wanted)
      if (session.isClosed) return
      if (host.isRunning) {
        session.host = host
        return host.open(session)
      }
      if (attempt === attemptsMax) throw new ApiError('engine_failed', 'The worker of the grammar ended again and again. Try again.')
    }
  }

  /** A worker that has this grammar compiled. */
  const hostFor = async (wanted: Wanted): Promise<Host> => {
    for (let attempt = 1; ; attempt++) {
      try {
        const verdict = wanted.isTrusted ? 'cheap' : await judge(wanted)
        if (verdict instanceof ApiError) throw verdict
        const host = verdict === 'cheap' ? sharedHost() : (costly.get(wanted.key) ?? (await inTurn(() => compileCostly(wanted))))
        await host.compile(wanted.key, wanted.source)
        return host
      } catch (error) {
        if (!(error instanceof JobLost)) throw error
        if (error.guilty) verdicts.blame(wanted.key, tooCostly(wanted, 'it takes too long to compile'))
        if (attempt === attemptsMax) throw error.guilty ? tooCostly(wanted, 'it takes too long to compile') : new ApiError('engine_failed', error.message)
      }
    }
  }

  const judge = (wanted: Wanted): Promise<Verdict> | Verdict => {
    const known = verdicts.get(wanted.key)
    if (known) return known
    let judged = judging.get(wanted.key)
    if (!judged) {
      judged = inTurn(() => tryOut(wanted)).finally(() => judging.delete(wanted.key))
      judging.set(wanted.key, judged)
    }
    return judged
  }

  /** One trial at a time: they are the work that strangers' schemas can make slow. One that waits too long for its turn loses it. */
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const crowded = () => new ApiError('overloaded', 'Too many new schemas are waiting to be compiled. Try again shortly.')
    if (trials >= limits.trials_waiting) throw crowded()
    trials++
    let isLate = false
    const late = Promise.withResolvers<never>()
    const timer = setTimeout(() => {
      isLate = true
      trials--
      late.reject(crowded())
    }, limits.trial_wait_ms)
    const run = async () => {
      if (isLate) throw crowded()
      clearTimeout(timer)
      return work().finally(() => trials--)
    }
    const done = lastTrial.then(run)
    lastTrial = done.catch(() => {})
    return Promise.race([done, late.promise])
  }

  const tryOut = async (wanted: Wanted): Promise<Verdict> => {
    trial ??= start()
    const host = trial
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
          new ApiError('schema_not_enforceable', 'This model has no tokens for the texts that the schema asks for. Use other names and values.'),
        )
      if (slowest_ms > limits.slow_mask_ms) return verdicts.set(wanted.key, tooCostly(wanted, stage))
      if (compile_ms <= limits.cheap_compile_ms && slowest_ms <= limits.cheap_mask_ms) return verdicts.set(wanted.key, 'cheap')
      verdicts.set(wanted.key, 'costly')
      promote(host, wanted.key)
      return 'costly'
    } catch (error) {
      drop(host)
      if (error instanceof JobLost && error.guilty) return verdicts.set(wanted.key, tooCostly(wanted, stage))
      throw error
    } finally {
      if (trial === host && host.memory_bytes > limits.restart_bytes) {
        drop(host)
        void host.end()
      }
    }
  }

  const compileCostly = async (wanted: Wanted): Promise<Host> => {
    const made = costly.get(wanted.key)
    if (made) return made
    makeRoom()
    trial ??= start()
    const host = trial
    await host.compile(wanted.key, wanted.source)
    promote(host, wanted.key)
    return host
  }

  const promote = (host: Host, key: string): void => {
    makeRoom()
    if (trial === host) trial = null
    costly.set(key, host)
  }

  const makeRoom = (): void => {
    if (costly.size < limits.costly_workers) return
    const idle = [...costly].filter(([, host]) => host.sessions.size === 0 && !host.isBusy).sort(([, a], [, b]) => a.used_at - b.used_at)[0]
    if (!idle)
      throw new ApiError('overloaded', 'Too many costly schemas are in use. Try again shortly, or simplify the schema (long maxLength and maxItems, patterns).')
    costly.delete(idle[0])
    void idle[1].end()
  }

  return {
    async open(wanted, signal) {
      const id = nextJob()
      const session = Object.assign(
        holdSession({ id, grammar: wanted.key, memory: createSessionMemory(vocab.size), tokens: [] }, () => {
          held.delete(id)
          const { host } = session
          host?.close(session)
          if (host && host === shared && host.sessions.size === 0 && host.memory_bytes > limits.restart_bytes) {
            drop(host)
            void host.end()
          }
        }),
        { wanted, moves: 0 },
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
      const hosts = [shared, trial, ...costly.values()].filter((host) => host !== null)
      const idle = hosts.filter((host) => host.sessions.size === 0 && !host.isBusy && Date.now() - host.used_at > limits.idle_ms)
      for (const host of idle) {
        drop(host)
        void host.end()
      }
      return hosts.length > idle.length
    },
    async end() {
      isEnded = true
      for (const session of held.values()) session.fail(new ApiError('shutting_down', 'The engine is stopping.'))
      await Promise.all([shared, trial, ...costly.values()].map((host) => host?.end()))
    },
  }
}

function tooCostly(wanted: Wanted, why: string): ApiError {
  const places = wanted.heavyPlaces()
  const what = places.length > 0 ? `Simplify ${places.join(', ')}.` : 'Use fewer alternatives and less nesting.'
  return new ApiError('schema_not_enforceable', `The schema is too costly to enforce: ${why}. ${what}`, { details: { paths: places } })
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
