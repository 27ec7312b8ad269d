import type { Logger } from 'pino'
import { runPeriodically } from '../../../lib/periodic.ts'
import type { Notifications } from '../cluster/notifications.ts'
import { type Claim, type ClaimOptions, LeaseLost, lease_ms, type Queue } from './queue.ts'

export interface Worker {
  /** Claims no more work, aborts the current handler, and resolves when it has returned. */
  close(): Promise<void>
}

/** What a handler does with the turn that its work has. */
export interface Turn {
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

/**
 * Works on entries of one kind, one at a time beside those that have yielded their turn, accounts in turn. The handler
 * ends its entry itself, in the transaction of its last write. Its signal aborts when the lease is lost or the worker
 * stops.
 */
export function startWorker(options: {
  queue: Queue
  kind: string
  /** Tells workers of one kind in this process apart. */
  name?: string | undefined
  claims?: ClaimOptions
  log: Logger
  /** Resolves when there is what the work needs, or the signal aborts. Nothing is claimed before. */
  whenReady?: (signal: AbortSignal) => Promise<void>
  handle: (claim: Claim, signal: AbortSignal, turn: Turn) => Promise<void>
}): Worker {
  const { queue, kind, log, handle } = options
  const name = [queue.server, kind, ...(options.name ? [options.name] : [])].join('/')
  const stopping = new AbortController()
  /** Work that has yielded its turn, by account. */
  const yielded = new Map<string, number>()
  const running = new Set<Promise<void>>()

  /** `onYield` is called once. */
  function createTurn(onYield: () => void): Turn & { end(): void } {
    let account: string | undefined
    const count = (account_id: string, by: 1 | -1) => {
      const now = (yielded.get(account_id) ?? 0) + by
      if (now > 0) yielded.set(account_id, now)
      else yielded.delete(account_id)
    }
    return {
      yield(account_id) {
        if (account !== undefined) return true
        const inAll = [...yielded.values()].reduce((sum, count) => sum + count, 0)
        if (inAll >= yielded_max.inAll || (yielded.get(account_id) ?? 0) >= yielded_max.ofAccount) return false
        account = account_id
        count(account_id, 1)
        onYield()
        return true
      },
      get hasYielded() {
        return account !== undefined
      },
      end() {
        if (account !== undefined) count(account, -1)
      },
    }
  }

  async function work(claim: Claim, turn: Turn) {
    const lost = new AbortController()
    const signal = AbortSignal.any([stopping.signal, lost.signal])
    const renew = async () => {
      try {
        if (!(await queue.renewLease(claim))) lost.abort(new LeaseLost(claim))
      } catch (error) {
        // A brief database failure must not end the work; the lease survives several missed heartbeats.
        log.warn({ err: error, ref: claim.ref }, 'a heartbeat failed')
      }
    }
    const heartbeat = runPeriodically(lease_ms / 4, renew, { delayed: true })
    try {
      await handle(claim, signal, turn)
    } catch (error) {
      if (error instanceof LeaseLost) log.info({ ref: claim.ref, attempt: claim.attempt }, 'lease lost')
      else log.error({ err: error, ref: claim.ref, attempt: claim.attempt }, `a worker of ${kind} failed`)
    } finally {
      await heartbeat.close()
    }
  }

  /** Resolves when the work has ended or yielded its turn. */
  async function workUntilYield(claim: Claim) {
    const { promise: hasYielded, resolve } = Promise.withResolvers<void>()
    const turn = createTurn(resolve)
    const working = work(claim, turn).finally(() => {
      turn.end()
      running.delete(working)
    })
    running.add(working)
    await Promise.race([working, hasYielded])
  }

  async function loop() {
    await options.whenReady?.(stopping.signal)
    while (!stopping.signal.aborted) {
      try {
        const claim = await queue.claim(kind, name, options.claims)
        if (claim) await workUntilYield(claim)
        else await queue.waitForWake(1000, stopping.signal)
      } catch (error) {
        log.error({ err: error }, `claiming work of ${kind} failed`)
        await queue.waitForWake(1000, stopping.signal)
      }
    }
  }

  const looping = loop()
  return {
    async close() {
      stopping.abort()
      await looping
      await Promise.all(running)
    },
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
