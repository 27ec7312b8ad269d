import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { type PeriodicTask, runPeriodically } from '../../../lib/periodic.ts'
import type { Notifications } from '../cluster/notifications.ts'
import { type Claim, LeaseLost, lease_ms, type Queue } from './queue.ts'
import type { ClaimOptions } from './turns.ts'

export interface Worker {
  /** Claims no more work, aborts the current handler, and resolves when it has returned. */
  close(): Promise<void>
}

/** What a handler knows of the turn that its work has, and does with it. */
export interface Turn {
  /** Aborts when the worker stops or the lease is lost. */
  readonly interrupted: AbortSignal
  /** Aborts when the account is suspended: the work is put back, and waits until the account is reinstated. */
  readonly suspended: AbortSignal
  /**
   * Begins the next entry beside this one, whose work costs this machine next to nothing from here on: it waits for
   * other servers. Returns false if the account has as many of these as it may; the handler should then put its work
   * off. Once it has returned true it does so again.
   */
  yield(account_id: string): boolean
  /** Whether it has. */
  readonly hasYielded: boolean
}

/** Work beside the one that has the turn: of an account, and of all. */
const yielded_max = { ofAccount: 2, inAll: 64 }

/** Between looks at which accounts are suspended. */
const look_ms = 500
/** After a claim that failed. */
const retry_ms = 1000

interface Options {
  queue: Queue
  kind: string
  /** Tells workers of one kind in this process apart. */
  name?: string | undefined
  claims?: ClaimOptions
  log: Logger
  /** Resolves when there is what the work needs, or the signal aborts. Nothing is claimed before. */
  whenReady?: (signal: AbortSignal) => Promise<void>
  handle: (claim: Claim, signal: AbortSignal, turn: Turn) => Promise<void>
}

/** The turn of one piece of work. `yielded`: work that has yielded its turn, by account. */
class YieldingTurn implements Turn {
  readonly interrupted: AbortSignal
  readonly suspended: AbortSignal
  private readonly yielded: Map<string, number>
  private readonly onYield: () => void
  private account: string | undefined

  /** `onYield` is called once. */
  constructor(yielded: Map<string, number>, onYield: () => void, interrupted: AbortSignal, suspended: AbortSignal) {
    this.yielded = yielded
    this.onYield = onYield
    this.interrupted = interrupted
    this.suspended = suspended
  }

  yield(account_id: string): boolean {
    if (this.hasYielded) return true
    const inAll = [...this.yielded.values()].reduce((sum, count) => sum + count, 0)
    const ofAccount = this.yielded.get(account_id) ?? 0
    if (inAll >= yielded_max.inAll || ofAccount >= yielded_max.ofAccount) return false
    this.account = account_id
    this.yielded.set(account_id, ofAccount + 1)
    this.onYield()
    return true
  }

  get hasYielded(): boolean {
    return this.account !== undefined
  }

  end(): void {
    if (this.account === undefined) return
    const left = this.yielded.get(this.account)! - 1
    if (left > 0) this.yielded.set(this.account, left)
    else this.yielded.delete(this.account)
  }
}

/**
 * Works on entries of one kind, one at a time beside those that have yielded their turn, accounts in turn. The handler
 * ends its entry itself, in the transaction of its last write. Its signal aborts when the worker stops, the lease is
 * lost or the account is suspended; what it throws after that puts the work back.
 */
export const startWorker = (options: Options): Worker => new QueueWorker(options)

class QueueWorker implements Worker {
  private readonly options: Options
  private readonly name: string
  private readonly stopping = new AbortController()
  /** Work that has yielded its turn, by account. */
  private readonly yielded = new Map<string, number>()
  private readonly running = new Map<Promise<void>, { account_id: string; suspended: AbortController }>()
  private readonly looping: Promise<void>
  /** While work runs. */
  private looks: PeriodicTask | undefined

  constructor(options: Options) {
    const { queue, kind, name } = options
    this.options = options
    this.name = [queue.server, kind, ...(name ? [name] : [])].join('/')
    this.looping = this.loop()
  }

  async close(): Promise<void> {
    this.stopping.abort()
    await this.looping
    await Promise.all(this.running.keys())
    await this.looks?.close()
  }

  private async work(claim: Claim, turn: Turn, lost: AbortController) {
    const signal = AbortSignal.any([turn.interrupted, turn.suspended])
    const renew = async () => {
      try {
        if (!(await this.options.queue.renewLease(claim))) lost.abort(new LeaseLost(claim))
      } catch (error) {
        // A brief database failure must not end the work; the lease survives several missed heartbeats.
        this.options.log.warn({ err: error, ref: claim.ref }, 'a heartbeat failed')
      }
    }
    const heartbeat = runPeriodically(lease_ms / 4, renew, { delayed: true })
    try {
      await this.options.handle(claim, signal, turn)
    } catch (error) {
      if (error instanceof LeaseLost) this.options.log.info({ ref: claim.ref, attempt: claim.attempt }, 'lease lost')
      else if (signal.aborted) await this.putBack(claim, error)
      else
        this.options.log.error(
          { err: error, ref: claim.ref, attempt: claim.attempt },
          `a worker of ${this.options.kind} failed`,
        )
    } finally {
      await heartbeat.close()
    }
  }

  /** What cannot be put back is claimed again when its lease has expired. */
  private async putBack(claim: Claim, error: unknown) {
    this.options.log.info({ err: error, ref: claim.ref }, `work of ${this.options.kind} was interrupted`)
    await this.options.queue
      .defer(claim)
      .catch((error) => this.options.log.warn({ err: error, ref: claim.ref }, 'work could not be put back'))
  }

  /** Resolves when the work has ended or yielded its turn. */
  private async workUntilYield(claim: Claim) {
    const { promise: hasYielded, resolve } = Promise.withResolvers<void>()
    const lost = new AbortController()
    const suspended = new AbortController()
    const turn = new YieldingTurn(
      this.yielded,
      resolve,
      AbortSignal.any([this.stopping.signal, lost.signal]),
      suspended.signal,
    )
    const working = this.work(claim, turn, lost).finally(() => {
      turn.end()
      this.running.delete(working)
      if (this.running.size > 0) return
      void this.looks?.close()
      this.looks = undefined
    })
    this.running.set(working, { account_id: claim.account_id, suspended })
    if (!this.options.claims?.suspended_too)
      this.looks ??= runPeriodically(look_ms, () => this.stopSuspended(), { delayed: true })
    await Promise.race([working, hasYielded])
  }

  /** The one place where work in the background ends with its account's suspension. */
  private async stopSuspended() {
    try {
      const ids = await this.options.queue.suspended([...this.running.values()].map(({ account_id }) => account_id))
      for (const { account_id, suspended } of this.running.values()) if (ids.has(account_id)) suspended.abort()
    } catch (error) {
      this.options.log.warn(
        { err: error },
        `the accounts of running work of ${this.options.kind} could not be looked up`,
      )
    }
  }

  private async loop() {
    await this.options.whenReady?.(this.stopping.signal)
    while (!this.stopping.signal.aborted) {
      try {
        const claim = await this.options.queue.claim(this.options.kind, this.name, this.options.claims)
        if (claim) await this.workUntilYield(claim)
        else await this.options.queue.waitForWork(this.options.kind, this.stopping.signal)
      } catch (error) {
        this.options.log.error({ err: error }, `claiming work of ${this.options.kind} failed`)
        await sleep(retry_ms, undefined, { signal: this.stopping.signal }).catch(() => {})
      }
    }
  }
}

/** Abort signals of work that runs in this process, by the ref of its queue entry. */
export interface AbortSignals {
  /** The signal of this work: the same one until `clear`. */
  get(ref: string): AbortSignal
  /** Aborts this work, here or on another server. */
  abort(ref: string, reason?: string): void
  /** Drops the signal, as the work has ended. */
  clear(ref: string): void
}

export function createAbortSignals(notifications: Notifications): AbortSignals {
  const controllers = new Map<string, AbortController>()
  notifications.on('stop', (ref, reason) => controllers.get(ref ?? '')?.abort(reason))
  return {
    get(ref) {
      const controller = controllers.get(ref) ?? new AbortController()
      controllers.set(ref, controller)
      return controller.signal
    },
    abort: (ref, reason) => notifications.publish('stop', ref, reason),
    clear: (ref) => void controllers.delete(ref),
  }
}
