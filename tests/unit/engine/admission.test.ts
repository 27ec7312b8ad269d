// Which waiting generation gets the next slot.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { admissionOrder } from '../../../engine/batching/runner.ts'

const generation = (name: string, background = false) => ({ name, request: { account: name[0]!, background } })
const order = (waiting: string[], running: string[] = [], background: string[] = []) =>
  admissionOrder(
    [...background.map((name) => generation(name, true)), ...waiting.map((name) => generation(name))],
    running.map((name) => generation(name)),
  ).map(({ name }) => name)

test('an account that waits with many requests holds up those of another by one', () => {
  assert.deepEqual(order(['a1', 'a2', 'a3', 'a4', 'b1', 'b2']), ['a1', 'b1', 'a2', 'b2', 'a3', 'a4'])
})

test('the account with the fewest sequences is next, and within one who came first', () => {
  assert.deepEqual(order(['a1', 'a2', 'b1', 'c1'], ['a', 'a', 'b']), ['c1', 'b1', 'a1', 'a2'])
})

test('what nobody waits for comes last, whatever its account has', () => {
  assert.deepEqual(order(['a1', 'a2'], ['a'], ['b1', 'b2']), ['a1', 'a2', 'b1', 'b2'])
})
