// Scheduling of grammar trials. Every new grammar starts on the first worker with a short time slice; longer ones
// continue on the second worker. Both queues serve the accounts round robin, so nobody waits for the costly grammars of
// others.
import { ApiError } from '../../contract/errors.ts'
import type { GrammarWorker } from './host.ts'

export interface TrialLimits {
  /** Time slice on the first worker, in milliseconds of CPU time. */
  slice_ms: number
  /** Limit of unfinished trials per account. */
  account_trials: number
  /** Longest wait in either queue, in milliseconds. */
  trial_wait_ms: number
  /** Memory in bytes above which an idle worker is restarted. */
  restart_bytes: number
}

/** `new` starts on the first worker; `costly` is known to be slow and goes straight to the second. */
type TrialKind = 'new' | 'costly'

export interface Trials {
  /**
   * Runs `work` on a worker when it is the account's turn. Work that outlasts its slice while the second worker is busy
   * is stopped and restarted from scratch. An abort stops it and frees its slot. Throws ApiError overloaded if the
   * account has too many trials or the wait is too long.
   */
  run<T>(account: string, kind: TrialKind, work: (worker: GrammarWorker) => Promise<T>, signal: AbortSignal): Promise<T>
  /** Removes a worker that has ended or now belongs to a costly grammar. */
  detach(worker: GrammarWorker): void
  workers(): GrammarWorker[]
}

interface Job {
  account: string
  work(worker: GrammarWorker): Promise<unknown>
  /** The worker that runs it. */
  worker: GrammarWorker | null
  isOver: boolean
  timer: NodeJS.Timeout | undefined
  done(value: unknown): void
  failed(error: unknown): void
}

/** A worker and its queue of jobs. */
interface TrialQueue {
  worker: GrammarWorker | null
  job: Job | null
  jobs: Job[]
  isDraining: boolean
}

/** How often in a slice the CPU time is read. */
const sliceChecks = 5
/** While others wait, a slice ends at this many times its length by the clock, on a busy machine too. */
const starvedFactor = 4

export function createTrials(start: () => GrammarWorker, limits: TrialLimits): Trials {
  const first: TrialQueue = { worker: null, job: null, jobs: [], isDraining: false }
  const second: TrialQueue = { worker: null, job: null, jobs: [], isDraining: false }
  /** Unfinished jobs per account. */
  const counts = new Map<string, number>()
  /** Accounts in round-robin order: the last served at the end. */
  const roundRobin = new Set<string>()

  const tooManyWaiting = () =>
    new ApiError('overloaded', 'Too many new schemas are waiting to be compiled. Try again shortly.')

  const finish = (job: Job): void => {
    job.isOver = true
    clearTimeout(job.timer)
    for (const queue of [first, second]) queue.jobs = queue.jobs.filter((other) => other !== job)
    const left = counts.get(job.account)! - 1
    counts.set(job.account, left)
    if (left > 0) return
    counts.delete(job.account)
    roundRobin.delete(job.account)
  }

  const fail = (job: Job, error: unknown): void => {
    if (job.isOver) return
    finish(job)
    job.failed(error)
  }

  const enqueue = (queue: TrialQueue, job: Job): void => {
    job.timer = setTimeout(() => fail(job, tooManyWaiting()), limits.trial_wait_ms)
    queue.jobs.push(job)
    void drain(queue)
  }

  /** Takes the oldest job of the account served longest ago. */
  const dequeue = (queue: TrialQueue): Job | undefined => {
    const order = [...roundRobin]
    const job = queue.jobs.toSorted((one, other) => order.indexOf(one.account) - order.indexOf(other.account))[0]
    if (!job) return undefined
    queue.jobs = queue.jobs.filter((other) => other !== job)
    clearTimeout(job.timer)
    roundRobin.delete(job.account)
    roundRobin.add(job.account)
    return job
  }

  const drain = async (queue: TrialQueue): Promise<void> => {
    if (queue.isDraining) return
    queue.isDraining = true
    while (queue.jobs.length > 0 && !queue.job) {
      try {
        queue.worker ??= start()
        const { worker } = queue
        // Choose the job after the start, which takes longer than most grammars.
        await worker.started
        const job = dequeue(queue)
        if (job) await (queue === first ? serveSlice(worker, job) : serve(worker, job))
      } catch (error) {
        for (const job of queue.jobs) fail(job, error)
      }
    }
    queue.isDraining = false
  }

  const attempt = async (queue: TrialQueue, worker: GrammarWorker, job: Job): Promise<void> => {
    queue.job = job
    job.worker = worker
    const isCurrent = () => job.worker === worker && !job.isOver
    try {
      const value = await job.work(worker)
      if (!isCurrent()) return
      finish(job)
      job.done(value)
    } catch (error) {
      if (isCurrent()) fail(job, error)
    }
  }

  const endJob = (queue: TrialQueue, worker: GrammarWorker): void => {
    queue.job = null
    if (queue.worker !== worker || worker.memory_bytes <= limits.restart_bytes) return
    queue.worker = null
    void worker.end()
  }

  const serve = async (worker: GrammarWorker, job: Job): Promise<void> => {
    worker.lowerPriority()
    await attempt(second, worker, job)
    endJob(second, worker)
  }

  const serveSlice = async (worker: GrammarWorker, job: Job): Promise<void> => {
    // One new grammar is tried at the priority of answers. Many of them, and long ones, come behind answers.
    if (first.jobs.length > 0) worker.lowerPriority()
    const working = attempt(first, worker, job)
    const slice = Promise.withResolvers<'long'>()
    const [used_ms, began] = [worker.used_ms(), performance.now()]
    const timer = setInterval(() => {
      const isOver = worker.used_ms() - used_ms >= limits.slice_ms
      const keepsOthers = first.jobs.length > 0 && performance.now() - began >= starvedFactor * limits.slice_ms
      if (isOver || keepsOthers) slice.resolve('long')
    }, limits.slice_ms / sliceChecks)
    const outcome = await Promise.race([working, slice.promise])
    clearInterval(timer)
    if (outcome !== 'long') return endJob(first, worker)
    worker.lowerPriority()
    // Start the next worker right away, so that the next job waits for a slice at most.
    Object.assign(first, { job: null, worker: start() })
    const isFree = !second.job && second.jobs.length === 0
    if (!job.isOver && isFree) return void moveToSecond(worker, job, working)
    job.worker = null
    void worker.end()
    if (!job.isOver) enqueue(second, job)
  }

  /** Continues a job on its current worker, which becomes the second worker. */
  const moveToSecond = async (worker: GrammarWorker, job: Job, working: Promise<void>): Promise<void> => {
    void second.worker?.end()
    Object.assign(second, { worker, job })
    await working
    endJob(second, worker)
    void drain(second)
  }

  return {
    run(account, kind, work, signal) {
      signal.throwIfAborted()
      if ((counts.get(account) ?? 0) >= limits.account_trials) throw tooManyWaiting()
      counts.set(account, (counts.get(account) ?? 0) + 1)
      const { promise, resolve, reject } = Promise.withResolvers<Awaited<ReturnType<typeof work>>>()
      const done = resolve as (value: unknown) => void
      const job: Job = { account, work, worker: null, isOver: false, timer: undefined, done, failed: reject }
      const abort = () => {
        fail(job, signal.reason)
        // On the first worker the slice ends soon; a restart would cost more.
        if (second.job !== job) return
        void second.worker?.end()
        second.worker = null
      }
      signal.addEventListener('abort', abort)
      enqueue(kind === 'costly' ? second : first, job)
      return promise.finally(() => signal.removeEventListener('abort', abort))
    },
    detach(worker) {
      for (const queue of [first, second]) if (queue.worker === worker) queue.worker = null
    },
    workers: () => [first.worker, second.worker].filter((worker) => worker !== null),
  }
}
