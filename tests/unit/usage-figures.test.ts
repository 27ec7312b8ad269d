// Figures of requests, added up by minute and hour, and the percentiles of their times.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  addFigures,
  createSpanSums,
  type Figures,
  noFigures,
  percentilesOf,
} from '../../server/features/usage/figures.ts'
import type { UsageRow } from '../../server/features/usage/journal.ts'

const row = (changes: Partial<UsageRow>): UsageRow => ({
  request_id: 'req_1',
  created_at: 3_600_000,
  account_id: 'acc_1',
  key_id: 'key_1',
  model: 'm',
  model_id: 'base',
  kind: 'chat',
  prompt_tokens: 10,
  completion_tokens: 2,
  cached_tokens: 0,
  trained_tokens: 0,
  duration_ms: 100,
  first_token_ms: null,
  cost: 0,
  finish: 'complete',
  ...changes,
})

/** The figures of these rows in one minute. */
function figuresOf(...rows: Partial<UsageRow>[]): Figures {
  const sums = createSpanSums()
  for (const changes of rows) sums.addRow(row(changes))
  return sums.all().find(({ span }) => span === 'minute') ?? noFigures()
}
const ofTimes = (...times: number[]) =>
  percentilesOf(figuresOf(...times.map((duration_ms) => ({ duration_ms }))).latency)

test('percentiles are of the nearest rank, to 2.5 %, whatever the order; a time below a millisecond is 0', () => {
  assert.equal(percentilesOf({}), null)
  assert.deepEqual(ofTimes(0.4), { p50: 0, p95: 0 })
  assert.deepEqual(ofTimes(1), { p50: 1, p95: 1 })
  assert.deepEqual(ofTimes(1, 0.4, 0.4, 0.4), { p50: 0, p95: 1 })
  const near = (actual: number, expected: number) => assert.ok(Math.abs(actual / expected - 1) < 0.025, `${actual}`)
  const { p50, p95 } = ofTimes(9000, 8, 300, 20)!
  near(p50, 20)
  near(p95, 9000)
  // 19 of 20 are 95 %.
  const many = ofTimes(5000, ...Array.from({ length: 19 }, () => 50))!
  near(many.p50, 50)
  near(many.p95, 50)
})

test('only complete answers have times, and each request counts once in its minute and its hour', () => {
  const sums = createSpanSums()
  sums.addRow(row({ created_at: 3_600_000 + 59_999, first_token_ms: 40 }))
  sums.addRow(row({ created_at: 3_600_000 + 60_000, finish: 'client_left', first_token_ms: 40 }))
  sums.addRow(row({ created_at: 3_600_000 + 60_000, finish: 'broken' }))
  sums.addFailure('acc_1', 'm', 'refused', 3_600_000 + 60_000)
  sums.addFailure('acc_1', 'm', 'invalid', 3_600_000 + 60_000, 3)
  assert.equal(sums.size, 3)
  const shown = sums
    .all()
    .map(({ span, at, requests, client_left, broken, refused, invalid, prompt_tokens, ...rest }) => [
      span,
      at,
      [requests, client_left, broken, refused, invalid, prompt_tokens, rest.completion_tokens],
      [Object.values(rest.latency), Object.values(rest.first_token)],
    ])
  assert.deepEqual(shown, [
    ['minute', 3_600_000, [1, 0, 0, 0, 0, 10, 2], [[1], [1]]],
    ['hour', 3_600_000, [7, 1, 1, 1, 3, 30, 6], [[1], [1]]],
    ['minute', 3_660_000, [6, 1, 1, 1, 3, 20, 4], [[], []]],
  ])
})

test('figures of two spans add up, their times too', () => {
  const all = figuresOf({ duration_ms: 100 }, { duration_ms: 100 })
  addFigures(all, figuresOf({ duration_ms: 100 }, { duration_ms: 7000, first_token_ms: 5 }))
  assert.deepEqual([all.requests, all.prompt_tokens, all.completion_tokens], [4, 40, 8])
  assert.deepEqual(Object.values(all.latency).sort(), [1, 3])
  assert.deepEqual(Object.values(all.first_token), [1])
})
