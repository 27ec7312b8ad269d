// Requests in the background whose engine ended: who is asked again with whom, and who is to blame.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createIsolation } from '../../server/features/inference/isolation.ts'
import { ReplicaFailure } from '../../server/features/serving/requests/replica.ts'

/**
 * An engine that ends when it is asked a killer: all requests in it are lost. Requests are asked again until they are
 * answered or to blame. Resolves with the deaths, the most that was asked beside a killer at its last death, and how
 * each request ended.
 */
async function run(requests: { account_id: string; request_id: string }[], isKiller: (id: string) => boolean) {
  const isolation = createIsolation()
  const { signal } = new AbortController()
  const inEngine = new Map<string, PromiseWithResolvers<void>>()
  const deaths: string[][] = []
  let work = Promise.resolve()
  /** The engine computes what is in it; a killer ends it. */
  const compute = async () => {
    await new Promise(setImmediate)
    const all = [...inEngine]
    inEngine.clear()
    const dies = all.some(([id]) => isKiller(id))
    if (dies) deaths.push(all.map(([id]) => id))
    for (const [, request] of all)
      if (dies) request.reject(new ReplicaFailure('engine_unavailable', 'lost', { lost: true }))
      else request.resolve()
  }
  const send = (id: string) => {
    const request = Promise.withResolvers<void>()
    inEngine.set(id, request)
    if (inEngine.size === 1) work = work.then(compute)
    return request.promise
  }
  const ends = new Map<string, 'answered' | 'to blame'>()
  const ask = async (request: { account_id: string; request_id: string }) => {
    for (;;) {
      try {
        await isolation.ask(request, () => send(request.request_id), signal)
        isolation.forget(request.request_id)
        return void ends.set(request.request_id, 'answered')
      } catch {
        if (isolation.isToBlame(request.request_id)) return void ends.set(request.request_id, 'to blame')
      }
    }
  }
  await Promise.all(requests.map(ask))
  return { deaths, ends, isolation }
}

const of = (account_id: string, count: number) =>
  Array.from({ length: count }, (_, index) => ({ account_id, request_id: `${account_id}.${index}` }))

test('a request that ends the engine fails alone; all others, also of its account, are answered', async () => {
  const { deaths, ends } = await run([...of('a', 16), ...of('b', 16), ...of('c', 4)], (id) => id === 'a.3')
  for (const [id, end] of ends) assert.equal(end, id === 'a.3' ? 'to blame' : 'answered', id)
  assert.equal(ends.size, 36)
  assert.equal(deaths[0]!.length, 36)
  assert.deepEqual(new Set(deaths[1]!.map((id) => id[0])), new Set('a'), 'then its account’s alone')
  assert.deepEqual(deaths.slice(2), [['a.3'], ['a.3'], ['a.3']])
})

test('two killers of two accounts fail alone too; a suspect’s next requests endanger nobody else’s', async () => {
  const killers = ['a.1', 'b.2']
  const { ends, isolation } = await run([...of('a', 4), ...of('b', 4), ...of('c', 4)], (id) => killers.includes(id))
  for (const [id, end] of ends) assert.equal(end, killers.includes(id) ? 'to blame' : 'answered', id)
  const { signal } = new AbortController()
  const inside: string[] = []
  const gate = Promise.withResolvers<void>()
  const enter = (account_id: string, request_id: string) =>
    isolation.ask(
      { account_id, request_id },
      async () => {
        inside.push(request_id)
        await gate.promise
      },
      signal,
    )
  const all = [enter('c', 'c.9'), enter('a', 'a.9'), enter('c', 'c.10')]
  await new Promise(setImmediate)
  assert.ok(!inside.includes('a.9'), inside.join())
  gate.resolve()
  await Promise.all(all)
  assert.ok(inside.includes('a.9') && inside.includes('c.10'))
})

test('what is lost beside live requests is to blame after many losses; who leaves is not asked', async () => {
  const isolation = createIsolation()
  const { signal } = new AbortController()
  const lose = (accompanied: boolean) =>
    isolation
      .ask(
        { account_id: 'a', request_id: 'r' },
        () =>
          Promise.reject(Object.assign(new ReplicaFailure('engine_unavailable', '', { lost: true }), { accompanied })),
        signal,
      )
      .catch(() => {})
  for (let count = 0; count < 8; count++) await lose(true)
  assert.equal(isolation.isToBlame('r'), false)
  for (let count = 0; count < 3; count++) await lose(false)
  assert.equal(isolation.isToBlame('r'), true)
  const gate = Promise.withResolvers<void>()
  const first = isolation.ask({ account_id: 'b', request_id: 'x' }, () => gate.promise, signal)
  const gone = new AbortController()
  const waits = isolation.ask({ account_id: 'a', request_id: 'r' }, () => assert.fail('asked'), gone.signal)
  gone.abort(new Error('gone'))
  await assert.rejects(waits, /gone/)
  gate.resolve()
  await first
  await isolation.ask({ account_id: 'b', request_id: 'y' }, async () => {}, signal)
})
