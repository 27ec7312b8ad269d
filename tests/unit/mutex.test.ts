// The fair mutex.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createFairMutex } from '../../lib/mutex.ts'

test('accounts alternate, a failure blocks nobody, and aborted work never starts', async () => {
  const serialize = createFairMutex({ waiting_max: 3, tooMany: () => new Error('too many') })
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
