// Retry policies of background work: how often each kind of failure is retried, and after what delay.
import type { Trx } from '../db/open.ts'
import { type LeaseContext, withLease } from './lease-writes.ts'
import type { Claim, TurnEnd } from './queue.ts'

interface RetryRule {
  /** The failure in a row that ends the work. Without it the work is retried until it succeeds or is cancelled. */
  max?: number
  /** The delay before the retry that follows failure number `count`. */
  delay_ms: (count: number) => number
}

interface RetryDecision {
  /** False if the work has failed for good. */
  retry: boolean
  /** The failures of this kind in a row, with this one. */
  count: number
  delay_ms: number
}

interface RetryPolicy<Failure extends string> {
  /** Decides what follows a failure after `earlier` failures of the same kind in a row. */
  after(failure: Failure, earlier?: number): RetryDecision
}

export function createRetryPolicy<Failure extends string>(rules: Record<Failure, RetryRule>): RetryPolicy<Failure> {
  return {
    after(failure, earlier = 0) {
      const { max = Number.POSITIVE_INFINITY, delay_ms } = rules[failure]
      const count = earlier + 1
      return { retry: count < max, count, delay_ms: delay_ms(count) }
    },
  }
}

export const constantDelay = (delay_ms: number) => () => delay_ms

/** Grows by `step_ms` with each failure, up to `max_ms`. */
export const linearDelay =
  (step_ms: number, max_ms = Number.POSITIVE_INFINITY) =>
  (count: number) =>
    Math.min(max_ms, step_ms * count)

/** Doubles with each failure, from `first_ms` up to `max_ms`. */
export const exponentialDelay = (first_ms: number, max_ms: number) => (count: number) =>
  Math.min(max_ms, first_ms * 2 ** (count - 1))

/** A full disk is the operator's to solve, so work waits for it without limit. */
export const diskFullRule: RetryRule = { delay_ms: constantDelay(60_000) }

/**
 * Ends an attempt in one transaction: `record` writes why, and the entry becomes claimable again after `delay_ms`.
 * Throws LeaseLost.
 */
export async function requeueAfter(
  context: LeaseContext & { now(): number },
  claim: Claim,
  delay_ms: number,
  record: (trx: Trx, time: number) => Promise<void>,
  turn?: TurnEnd,
): Promise<void> {
  await withLease(context, claim, async (trx) => {
    const time = context.now()
    await record(trx, time)
    await context.queue.requeue(trx, claim, time + delay_ms, turn)
  })
  context.queue.wake()
}
