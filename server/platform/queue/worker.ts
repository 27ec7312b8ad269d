import type { Logger } from 'pino'
import { runPeriodically } from '../../../lib/periodic.ts'
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

/**
 * Works on entries of one kind, one at a time beside those that have yielded their turn, accounts in turn. The handler
 * ends its entry itself, in the transaction of its last write. Its signal aborts when the worker stops, the lease is
 * lost or the account is suspended; what it throws after that puts the work back.
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
  const running = new Map<Promise<void>, { account_id: string; suspended: AbortController }>()

  /** `onYield` is called once. */
  function createTurn(onYield: () => void, interrupted: AbortSignal, suspended: AbortSignal): Turn & { end(): void } {
    let account: string | undefined
    const count = (account_id: string, by: 1 | -1) => {
      const now = (yielded.get(account_id) ?? 0) + by
      if (now > 0) yielded.set(account_id, now)
      else yielded.delete(account_id)
    }
    return {
      interrupted,
      suspended,
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

  async function work(claim: Claim, turn: Turn, lost: AbortController) {
    const signal = AbortSignal.any([turn.interrupted, turn.suspended])
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
      else if (signal.aborted) await putBack(claim, error)
      else log.error({ err: error, ref: claim.ref, attempt: claim.attempt }, `a worker of ${kind} failed`)
    } finally {
      await heartbeat.close()
    }
  }

  /** What cannot be put back is claimed again when its lease has expired. */
  async function putBack(claim: Claim, error: unknown) {
    log.info({ err: error, ref: claim.ref }, `work of ${kind} was interrupted`)
    await queue.defer(claim).catch((error) => log.warn({ err: error, ref: claim.ref }, 'work could not be put back'))
  }

  /** Resolves when the work has ended or yielded its turn. */
  async function workUntilYield(claim: Claim) {
    const { promise: hasYielded, resolve } = Promise.withResolvers<void>()
    const lost = new AbortController()
    const suspended = new AbortController()
    const turn = createTurn(resolve, AbortSignal.any([stopping.signal, lost.signal]), suspended.signal)
    const working = work(claim, turn, lost).finally(() => {
      turn.end()
      running.delete(working)
    })
    running.set(working, { account_id: claim.account_id, suspended })
    await Promise.race([working, hasYielded])
  }

  /** The one place where work in the background ends with its account's suspension. */
  async function stopSuspended() {
    if (running.size === 0 || options.claims?.suspended_too) return
    try {
      const ids = await queue.suspended([...running.values()].map(({ account_id }) => account_id))
      for (const { account_id, suspended } of running.values()) if (ids.has(account_id)) suspended.abort()
    } catch (error) {
      log.warn({ err: error }, `the accounts of running work of ${kind} could not be looked up`)
    }
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
  const looks = runPeriodically(look_ms, stopSuspended)
  return {
    async close() {
      stopping.abort()
      await Promise.all([looping, looks.close()])
      await Promise.all(running.keys())
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
