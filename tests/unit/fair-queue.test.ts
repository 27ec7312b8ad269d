// The fair queue within a process.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createFairQueue } from '../../lib/fair-queue.ts'

test('accounts alternate, a failure blocks nobody, and aborted work never starts', async () => {
  const serialize = createFairQueue({ waiting_max: 3, tooMany: () => new Error('too many') })
  const order: string[] = []
  let atOnce = 0
  const gate = Promise.withResolvers<void>()
  const work = (name: string) => async () => {
    assert.equal(++atOnce, 1, 'one at a time')
    order.push(name)
    await gate.promise
    atOnce--
    if (name === 'a2') throw new Error('failed')
    return name
  }
  const gone = new AbortController()
  const asked = ['a1', 'a2', 'a3', 'b1', 'c1', 'b2'].map((name) =>
    serialize(name[0]!, work(name), name === 'b2' ? gone.signal : undefined),
  )
  const results = Promise.allSettled(asked)
  await assert.rejects(
    Promise.all([serialize('a', work('a4')), serialize('a', work('a5'))]),
    /too many/,
    'the account has reached its limit of waiting work',
  )
  gone.abort(new Error('left'))
  gate.resolve()
  assert.deepEqual(
    (await results).map((result) => (result.status === 'fulfilled' ? result.value : result.reason.message)),
    ['a1', 'failed', 'a3', 'b1', 'c1', 'left'],
  )
  assert.deepEqual(order, ['a1', 'a2', 'b1', 'c1', 'a3'])
  await assert.rejects(serialize('a', work('late'), AbortSignal.abort(new Error('left before'))), /left before/)
})

test('several run at once, and an account at its own limit waits behind the others', async () => {
  const inTurn = createFairQueue({ at_once: 3, at_once_per_account: 2 })
  const running = new Set<string>()
  const ends = new Map<string, () => void>()
  const work = (name: string) => () =>
    new Promise<void>((resolve) => {
      running.add(name)
      ends.set(name, () => {
        running.delete(name)
        resolve()
      })
    })
  const all = ['a1', 'a2', 'a3', 'a4', 'b1', 'b2'].map((name) => inTurn(name[0]!, work(name)))
  assert.deepEqual([...running], ['a1', 'a2', 'b1'])
  ends.get('a1')!()
  await all[0]
  await new Promise(setImmediate)
  assert.deepEqual([...running], ['a2', 'b1', 'a3'], 'the turn of a, which has one running')
  ends.get('b1')!()
  await all[4]
  await new Promise(setImmediate)
  assert.deepEqual([...running], ['a2', 'a3', 'b2'])
  for (const name of ['a2', 'a3', 'b2']) ends.get(name)!()
  await new Promise(setImmediate)
  assert.deepEqual([...running], ['a4'])
  ends.get('a4')!()
  await Promise.all(all)
})
