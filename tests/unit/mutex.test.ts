// The fair mutex; and programs with limits on time and memory.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createFairMutex } from '../../lib/mutex.ts'
import { runBounded } from '../../server/storage/untrusted-files.ts'

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

test('a program that exceeds its time or memory limit, or whose signal aborts, is killed', async () => {
  const run = (code: string, bounds: object = {}) =>
    runBounded({
      command: process.execPath,
      args: ['-e', code],
      env: {},
      max_ms: 60_000,
      max_memory_mb: 500,
      ...bounds,
    })
  const { status, stdout } = await run('console.log("é")')
  assert.deepEqual([status, stdout], [0, 'é\n'])
  assert.equal((await run('setInterval(() => {}, 1000)', { max_ms: 100 })).stopped, 'time')
  assert.equal((await run('const all = []; setInterval(() => all.push(Buffer.alloc(5e7, 1)), 5)')).stopped, 'memory')
  const gone = new AbortController()
  const left = run('setInterval(() => {}, 1000)', { signal: gone.signal })
  gone.abort(new Error('left'))
  await assert.rejects(left, /left/)
})
