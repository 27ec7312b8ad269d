// Who may compile, and where. Every new grammar begins at one worker, where it gets a short slice of time; what takes
// longer goes on at a second one. In both lines the accounts take turns, so nobody waits for the costly grammars of
// others.
import { ApiError } from '../../contract/errors.ts'
import type { Host } from './host.ts'

export type TrialLimits = {
  /** How long a grammar may hold the worker at which all begin, in milliseconds. */
  slice_ms: number
  /** Grammars of one account that wait or are at work. */
  account_trials: number
  /** How long a grammar waits in either line. */
  trial_wait_ms: number
  /** Memory at which an idle worker is started afresh. */
  restart_bytes: number
}

/** `new` begins at the first worker; `costly` is known to take long, and goes to the second one at once. */
export type TrialKind = 'new' | 'costly'

export type Trials = {
  /**
   * Does `work` on a worker, when the account's turn comes. Work that outlasts its slice while the second worker is in
   * use is interrupted and done again from its beginning. An abort ends it and frees its place. Throws ApiError
   * overloaded: the account has too many, or it has waited too long.
   */
  run<T>(account: string, kind: TrialKind, work: (host: Host) => Promise<T>, signal: AbortSignal): Promise<T>
  /** Lets go of a worker: it has ended, or belongs to a costly grammar from now on. */
  drop(host: Host): void
  hosts(): Host[]
}

type Job = {
  account: string
  work(host: Host): Promise<unknown>
  /** Where it is at work. */
  host: Host | null
  isOver: boolean
  timer: NodeJS.Timeout | undefined
  done(value: unknown): void
  failed(error: unknown): void
}

/** A worker with its line. */
type Seat = { host: Host | null; job: Job | null; line: Job[]; isLooping: boolean }

export function createTrials(start: () => Host, limits: TrialLimits): Trials {
  const first: Seat = { host: null, job: null, line: [], isLooping: false }
  const second: Seat = { host: null, job: null, line: [], isLooping: false }
  /** Jobs of each account that are not over. */
  const counts = new Map<string, number>()
  /** These accounts in the order of their last turns, the latest at the end. */
  const turns = new Set<string>()

  const crowded = () =>
    new ApiError('overloaded', 'Too many new schemas are waiting to be compiled. Try again shortly.')

  const finish = (job: Job): void => {
    job.isOver = true
    clearTimeout(job.timer)
    for (const seat of [first, second]) seat.line = seat.line.filter((other) => other !== job)
    const left = counts.get(job.account)! - 1
    counts.set(job.account, left)
    if (left > 0) return
    counts.delete(job.account)
    turns.delete(job.account)
  }

  const fail = (job: Job, error: unknown): void => {
    if (job.isOver) return
    finish(job)
    job.failed(error)
  }

  const wait = (seat: Seat, job: Job): void => {
    job.timer = setTimeout(() => fail(job, crowded()), limits.trial_wait_ms)
    seat.line.push(job)
    void loop(seat)
  }

  /** The oldest job of the account whose last turn is longest ago. */
  const take = (seat: Seat): Job | undefined => {
    const lastTurn = [...turns]
    const job = seat.line.toSorted((one, other) => lastTurn.indexOf(one.account) - lastTurn.indexOf(other.account))[0]
    if (!job) return undefined
    seat.line = seat.line.filter((other) => other !== job)
    clearTimeout(job.timer)
    turns.delete(job.account)
    turns.add(job.account)
    return job
  }

  const loop = async (seat: Seat): Promise<void> => {
    if (seat.isLooping) return
    seat.isLooping = true
    while (seat.line.length > 0 && !seat.job) {
      try {
        seat.host ??= start()
        const { host } = seat
        // Who comes next is seen only then: a start takes longer than most grammars.
        await host.started
        const job = take(seat)
        if (job) await (seat === first ? serveSlice(host, job) : serve(host, job))
      } catch (error) {
        for (const job of seat.line) fail(job, error)
      }
    }
    seat.isLooping = false
  }

  const attempt = async (seat: Seat, host: Host, job: Job): Promise<void> => {
    seat.job = job
    job.host = host
    const isCurrent = () => job.host === host && !job.isOver
    try {
      const value = await job.work(host)
      if (!isCurrent()) return
      finish(job)
      job.done(value)
    } catch (error) {
      if (isCurrent()) fail(job, error)
    }
  }

  const leave = (seat: Seat, host: Host): void => {
    seat.job = null
    if (seat.host !== host || host.memory_bytes <= limits.restart_bytes) return
    seat.host = null
    void host.end()
  }

  const serve = async (host: Host, job: Job): Promise<void> => {
    await attempt(second, host, job)
    leave(second, host)
  }

  const serveSlice = async (host: Host, job: Job): Promise<void> => {
    const working = attempt(first, host, job)
    const slice = Promise.withResolvers<'long'>()
    const timer = setTimeout(slice.resolve, limits.slice_ms, 'long')
    const how = await Promise.race([working, slice.promise])
    clearTimeout(timer)
    if (how !== 'long') return leave(first, host)
    // The next worker is started before anybody asks: what follows is to wait for a slice at most.
    Object.assign(first, { job: null, host: start() })
    const isFree = !second.job && second.line.length === 0
    if (!job.isOver && isFree) return void carryOn(host, job, working)
    job.host = null
    void host.end()
    if (!job.isOver) wait(second, job)
  }

  /** Lets a job go on where it is, as the second worker's. */
  const carryOn = async (host: Host, job: Job, working: Promise<void>): Promise<void> => {
    void second.host?.end()
    Object.assign(second, { host, job })
    await working
    leave(second, host)
    void loop(second)
  }

  return {
    run(account, kind, work, signal) {
      signal.throwIfAborted()
      if ((counts.get(account) ?? 0) >= limits.account_trials) throw crowded()
      counts.set(account, (counts.get(account) ?? 0) + 1)
      const { promise, resolve, reject } = Promise.withResolvers<Awaited<ReturnType<typeof work>>>()
      const done = resolve as (value: unknown) => void
      const job: Job = { account, work, host: null, isOver: false, timer: undefined, done, failed: reject }
      const abort = () => {
        fail(job, signal.reason)
        // At the first worker the slice ends soon, and a new start would cost more.
        if (second.job !== job) return
        void second.host?.end()
        second.host = null
      }
      signal.addEventListener('abort', abort)
      wait(kind === 'costly' ? second : first, job)
      return promise.finally(() => signal.removeEventListener('abort', abort))
    },
    drop(host) {
      for (const seat of [first, second]) if (seat.host === host) seat.host = null
    },
    hosts: () => [first.host, second.host].filter((host) => host !== null),
  }
}
