// Retry policies: which failure ends the work, and the delay before each retry.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  constantDelay,
  createRetryPolicy,
  diskFullRule,
  exponentialDelay,
  linearDelay,
} from '../../server/platform/queue/retry-policy.ts'

const retries = createRetryPolicy({
  crash: { max: 3, delay_ms: linearDelay(1000) },
  interruption: { max: 2, delay_ms: constantDelay(0) },
  disk_full: diskFullRule,
})

test('failure number `max` in a row ends the work, those before it are retried', () => {
  assert.deepEqual(
    [undefined, 0, 1, 2, 3].map((earlier) => retries.after('crash', earlier)).map(({ retry, count }) => [retry, count]),
    [
      [true, 1],
      [true, 1],
      [true, 2],
      [false, 3],
      [false, 4],
    ],
  )
})

test('each kind of failure has its own limit', () => {
  assert.equal(retries.after('crash', 1).retry, true)
  assert.equal(retries.after('interruption', 1).retry, false)
})

test('a full disk is retried once a minute without limit', () => {
  for (const earlier of [0, 1, 1_000_000]) {
    const { retry, delay_ms } = retries.after('disk_full', earlier)
    assert.deepEqual([retry, delay_ms], [true, 60_000])
  }
})

test('delays are constant, grow by a step or double, up to their maximum', () => {
  const delays = (delay: (count: number) => number) => [1, 2, 3, 4, 5].map(delay)
  assert.deepEqual(delays(constantDelay(7)), [7, 7, 7, 7, 7])
  assert.deepEqual(delays(linearDelay(500)), [500, 1000, 1500, 2000, 2500])
  assert.deepEqual(delays(linearDelay(500, 1200)), [500, 1000, 1200, 1200, 1200])
  assert.deepEqual(delays(exponentialDelay(500, 3000)), [500, 1000, 2000, 3000, 3000])
  assert.equal(exponentialDelay(500, 60_000)(10_000), 60_000)
  assert.equal(retries.after('crash', 1).delay_ms, 2000)
})
