import type { Logger } from 'pino'
import { runPeriodically } from '../../lib/periodic.ts'
import type { Notifications } from '../cluster/notifications.ts'
import { type Claim, LeaseLost, lease_ms, type Queue } from './queue.ts'

export interface Worker {
  /** Claims no more work, aborts the current handler, and resolves when it has returned. */
  close(): Promise<void>
}

/**
 * Works on entries of one kind, one at a time, oldest first. The handler ends its entry itself, in the transaction of
 * its last write. Its signal aborts when the lease is lost or the worker stops.
 */
export function startWorker(options: {
  queue: Queue
  kind: string
  /** Tells workers of one kind in this process apart. */
  name?: string | undefined
  log: Logger
  /** Resolves when there is what the work needs, or the signal aborts. Nothing is claimed before. */
  whenReady?: (signal: AbortSignal) => Promise<void>
  handle: (claim: Claim, signal: AbortSignal) => Promise<void>
}): Worker {
  const { queue, kind, log, handle } = options
  const name = [queue.server, kind, ...(options.name ? [options.name] : [])].join('/')
  const stopping = new AbortController()

  async function work(claim: Claim) {
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
      await handle(claim, signal)
    } catch (error) {
      if (error instanceof LeaseLost) log.info({ ref: claim.ref, attempt: claim.attempt }, 'lease lost')
      else log.error({ err: error, ref: claim.ref, attempt: claim.attempt }, `a worker of ${kind} failed`)
    } finally {
      await heartbeat.close()
    }
  }

  async function loop() {
    await options.whenReady?.(stopping.signal)
    while (!stopping.signal.aborted) {
      try {
        const claim = await queue.claim(kind, name)
        if (claim) await work(claim)
        else await queue.waitForWake(1000, stopping.signal)
      } catch (error) {
        log.error({ err: error }, `claiming work of ${kind} failed`)
        await queue.waitForWake(1000, stopping.signal)
      }
    }
  }

  const running = loop()
  return {
    close() {
      stopping.abort()
      return running
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
