// When a delivery is tried again, and what a webhook's failures lead to.
import type { Row } from '../db/schema.ts'

type Health = Pick<Row<'webhooks'>, 'failures' | 'failing_since' | 'slowed_until' | 'disabled_at' | 'disabled_reason'>

const [second, minute, hour] = [1000, 60_000, 3_600_000]

/** The pauses between ten tries: 75 hours and a half together. */
const pauses_ms = [5 * second, 5 * minute, 30 * minute, ...[2, 5, 10, 14, 20, 24].map((hours) => hours * hour)]
export const attemptsMax = pauses_ms.length + 1

/** Each pause is longer or shorter by up to this share, so that what failed together does not come back together. */
const jitter = 0.1

/** From how many failures in a row on one try at a time is made, after a pause that grows like that of a delivery. */
export const slowedFrom = 3

/** Failing for so long, without one success, disables: less than the least that ten tries of one delivery take. */
export const failing_ms = 68 * hour

/** How long until the next try, after so many; undefined where that was the last one. */
export function pauseAfter(attempts: number, random: () => number = Math.random): number | undefined {
  const pause = pauses_ms[attempts - 1]
  return pause && pause * (1 + jitter * (2 * random() - 1))
}

export const healthy: Health = {
  failures: 0,
  failing_since: null,
  slowed_until: null,
  disabled_at: null,
  disabled_reason: null,
}

/** What a webhook is after a failed try. */
export function afterFailure(before: Health, status: number | null, began: number, now: number): Health {
  const failures = before.failures + 1
  const failing_since = before.failing_since ?? began
  const pause = pauses_ms[Math.min(failures, pauses_ms.length) - 1]!
  // The shortest that a delivery's own pause can be: of a single one, this is never what it waits for.
  const slowed_until = failures >= slowedFrom ? Math.floor(now + pause * (1 - jitter)) : null
  const reason = status === 410 ? 'gone' : now - failing_since >= failing_ms ? 'failing' : undefined
  const disabled = before.disabled_at === null && reason ? { disabled_at: now, disabled_reason: reason } : {}
  return { ...before, failures, failing_since, slowed_until, ...disabled } as Health
}
