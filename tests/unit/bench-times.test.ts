// The times that benches compare.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { durations, firstTokens, furtherTokens, type RequestTiming } from '../../bench/serving/job.ts'

const request = (first_ms: number | null): RequestTiming => ({
  index: 3,
  sent_ms: 10,
  first_ms,
  ended_ms: 70,
  arrivals_ms: [],
  tail: '',
  tokens: 5,
})
const timing = (first_ms: number | null) => ({ name: 'ours', wall_ms: 100, requests: [request(first_ms)] })

test('an answer without text has no time of a first token, and is not counted as a fast one', () => {
  assert.deepEqual(firstTokens(timing(30)), [20])
  assert.deepEqual(furtherTokens(timing(30)), [10])
  assert.throws(() => firstTokens(timing(null)), /ours: request 3 brought no text/)
  assert.throws(() => furtherTokens(timing(null)), /ours: request 3 brought no text/)
  assert.deepEqual(durations(timing(null)), [60])
})
