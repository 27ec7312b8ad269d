// Scheduling of grammar trials. Every new grammar starts on the first worker with a short time slice; longer ones
// continue on the second worker. Both queues serve the accounts round robin, so nobody waits for the costly grammars of
// others.
import { ApiError } from '../../contract/errors.ts'
import type { GrammarWorker } from './host.ts'

interface TrialLimits {
  /** Time slice on the first worker, in milliseconds of CPU time. */
  slice_ms: number
  /** Limit of unfinished trials per account. */
  account_trials: number
  /** Memory in bytes above which an idle worker is restarted. */
  restart_bytes: number
}

/** `new` starts on the first worker; `costly` is known to be slow and goes straight to the second. */
type TrialKind = 'new' | 'costly'

interface Job {
  account: string
  work(worker: GrammarWorker): Promise<unknown>
  /** The worker that runs it. */
  worker: GrammarWorker | null
  isOver: boolean
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

export class Trials {
  private readonly start: () => GrammarWorker
  private readonly limits: TrialLimits
  private readonly first: TrialQueue = { worker: null, job: null, jobs: [], isDraining: false }
  private readonly second: TrialQueue = { worker: null, job: null, jobs: [], isDraining: false }
  /** Unfinished jobs per account. */
  private readonly counts = new Map<string, number>()
  /** Accounts in round-robin order: the last served at the end. */
  private readonly roundRobin = new Set<string>()

  constructor(start: () => GrammarWorker, limits: TrialLimits) {
    this.start = start
    this.limits = limits
  }

  /**
   * Runs `work` on a worker when it is the account's turn. Work that outlasts its slice while the second worker is busy
   * is stopped and restarted from scratch. An abort stops it and frees its slot: nothing else ends its wait. Throws
   * ApiError overloaded if the account has too many trials.
   */
  run<T>(
    account: string,
    kind: TrialKind,
    work: (worker: GrammarWorker) => Promise<T>,
    signal: AbortSignal,
  ): Promise<T> {
    signal.throwIfAborted()
    if ((this.counts.get(account) ?? 0) >= this.limits.account_trials) throw this.tooManyWaiting()
    this.counts.set(account, (this.counts.get(account) ?? 0) + 1)
    const { promise, resolve, reject } = Promise.withResolvers<Awaited<ReturnType<typeof work>>>()
    const done = resolve as (value: unknown) => void
    const job: Job = { account, work, worker: null, isOver: false, done, failed: reject }
    const abort = () => {
      this.fail(job, signal.reason)
      // On the first worker the slice ends soon; a restart would cost more.
      if (this.second.job !== job) return
      void this.second.worker?.end()
      this.second.worker = null
    }
    signal.addEventListener('abort', abort)
    this.enqueue(kind === 'costly' ? this.second : this.first, job)
    return promise.finally(() => signal.removeEventListener('abort', abort))
  }

  /** Removes a worker that has ended or now belongs to a costly grammar. */
  detach(worker: GrammarWorker): void {
    for (const queue of [this.first, this.second]) if (queue.worker === worker) queue.worker = null
  }

  workers(): GrammarWorker[] {
    return [this.first.worker, this.second.worker].filter((worker) => worker !== null)
  }

  private tooManyWaiting() {
    return new ApiError('overloaded', 'Too many new schemas are waiting to be compiled. Try again shortly.')
  }

  private finish(job: Job): void {
    job.isOver = true
    for (const queue of [this.first, this.second]) queue.jobs = queue.jobs.filter((other) => other !== job)
    const left = this.counts.get(job.account)! - 1
    this.counts.set(job.account, left)
    if (left > 0) return
    this.counts.delete(job.account)
    this.roundRobin.delete(job.account)
  }

  private fail(job: Job, error: unknown): void {
    if (job.isOver) return
    this.finish(job)
    job.failed(error)
  }

  private enqueue(queue: TrialQueue, job: Job): void {
    queue.jobs.push(job)
    void this.drain(queue)
  }

  /** Takes the oldest job of the account served longest ago. */
  private dequeue(queue: TrialQueue): Job | undefined {
    const order = [...this.roundRobin]
    const job = queue.jobs.toSorted((one, other) => order.indexOf(one.account) - order.indexOf(other.account))[0]
    if (!job) return undefined
    queue.jobs = queue.jobs.filter((other) => other !== job)
    this.roundRobin.delete(job.account)
    this.roundRobin.add(job.account)
    return job
  }

  private async drain(queue: TrialQueue): Promise<void> {
    if (queue.isDraining) return
    queue.isDraining = true
    while (queue.jobs.length > 0 && !queue.job) {
      try {
        queue.worker ??= this.start()
        const { worker } = queue
        // Choose the job after the start, which takes longer than most grammars.
        await worker.started
        const job = this.dequeue(queue)
        if (job) await (queue === this.first ? this.serveSlice(worker, job) : this.serve(worker, job))
      } catch (error) {
        for (const job of queue.jobs) this.fail(job, error)
      }
    }
    queue.isDraining = false
  }

  private async attempt(queue: TrialQueue, worker: GrammarWorker, job: Job): Promise<void> {
    queue.job = job
    job.worker = worker
    const isCurrent = () => job.worker === worker && !job.isOver
    try {
      const value = await job.work(worker)
      if (!isCurrent()) return
      this.finish(job)
      job.done(value)
    } catch (error) {
      if (isCurrent()) this.fail(job, error)
    }
  }

  private endJob(queue: TrialQueue, worker: GrammarWorker): void {
    queue.job = null
    if (queue.worker !== worker || worker.memory_bytes <= this.limits.restart_bytes) return
    queue.worker = null
    void worker.end()
  }

  private async serve(worker: GrammarWorker, job: Job): Promise<void> {
    worker.lowerPriority()
    await this.attempt(this.second, worker, job)
    this.endJob(this.second, worker)
  }

  private async serveSlice(worker: GrammarWorker, job: Job): Promise<void> {
    // One new grammar is tried at the priority of answers. Many of them, and long ones, come behind answers.
    if (this.first.jobs.length > 0) worker.lowerPriority()
    const working = this.attempt(this.first, worker, job)
    const slice = Promise.withResolvers<'long'>()
    const [used_ms, began] = [worker.used_ms(), performance.now()]
    const timer = setInterval(() => {
      const isOver = worker.used_ms() - used_ms >= this.limits.slice_ms
      const keepsOthers =
        this.first.jobs.length > 0 && performance.now() - began >= starvedFactor * this.limits.slice_ms
      if (isOver || keepsOthers) slice.resolve('long')
    }, this.limits.slice_ms / sliceChecks)
    const outcome = await Promise.race([working, slice.promise])
    clearInterval(timer)
    if (outcome !== 'long') return this.endJob(this.first, worker)
    worker.lowerPriority()
    // Start the next worker right away, so that the next job waits for a slice at most.
    Object.assign(this.first, { job: null, worker: this.start() })
    const isFree = !this.second.job && this.second.jobs.length === 0
    if (!job.isOver && isFree) return void this.moveToSecond(worker, job, working)
    job.worker = null
    void worker.end()
    if (!job.isOver) this.enqueue(this.second, job)
  }

  /** Continues a job on its current worker, which becomes the second worker. */
  private async moveToSecond(worker: GrammarWorker, job: Job, working: Promise<void>): Promise<void> {
    void this.second.worker?.end()
    Object.assign(this.second, { worker, job })
    await working
    this.endJob(this.second, worker)
    void this.drain(this.second)
  }
}
