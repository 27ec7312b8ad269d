// Retry schedule of deliveries, and how a webhook is slowed and disabled after failures.
import type { Row } from '../../platform/db/schema.ts'

type Health = Pick<Row<'webhooks'>, 'failures' | 'failing_since' | 'slowed_until' | 'disabled_at' | 'disabled_reason'>

const [second, minute, hour] = [1000, 60_000, 3_600_000]

/** The waits between ten attempts: 75.5 hours in total. */
const backoffs_ms = [5 * second, 5 * minute, 30 * minute, ...[2, 5, 10, 14, 20, 24].map((hours) => hours * hour)]

/** Random share of each wait, so that deliveries that failed together are not retried together. */
const jitter = 0.1

/** From this many failures in a row a webhook gets one attempt at a time, with a growing wait between attempts. */
export const slowedFrom = 3

/** A webhook that fails for this long without a success is disabled. Less than the shortest ten attempts. */
const failing_ms = 68 * hour

/** The wait in ms after this many attempts; undefined after the last one. */
export function backoffAfter(attempts: number, random: () => number = Math.random): number | undefined {
  const backoff = backoffs_ms[attempts - 1]
  return backoff && backoff * (1 + jitter * (2 * random() - 1))
}

export const healthy: Health = {
  failures: 0,
  failing_since: null,
  slowed_until: null,
  disabled_at: null,
  disabled_reason: null,
}

/** The health of a webhook after a failed attempt. */
export function afterFailure(before: Health, status: number | null, began: number, now: number): Health {
  const failures = before.failures + 1
  const failing_since = before.failing_since ?? began
  const backoff = backoffs_ms[Math.min(failures, backoffs_ms.length) - 1]!
  // The shortest backoff of a delivery, so that a webhook with a single delivery is not slowed further.
  const slowed_until = failures >= slowedFrom ? Math.floor(now + backoff * (1 - jitter)) : null
  const reason = status === 410 ? 'gone' : now - failing_since >= failing_ms ? 'failing' : undefined
  const disabled = before.disabled_at === null && reason ? { disabled_at: now, disabled_reason: reason } : {}
  return { ...before, failures, failing_since, slowed_until, ...disabled } as Health
}
