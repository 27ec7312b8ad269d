// The dashboard's client makes one thing of one request, however often it is sent.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { withOneKey } from '../../web/lib/once.ts'

/** Sends with the keys that a client would make, and lists those that arrive. */
function sender(answer: () => Promise<Response>) {
  const seen: (string | null)[] = []
  const fetch = withOneKey((_input, init) => {
    seen.push(new Headers(init?.headers).get('idempotency-key'))
    return answer()
  })
  let made = 0
  const send = (body: string | FormData, path = '/v1/keys') =>
    fetch(path, { method: 'POST', headers: { 'idempotency-key': `key ${++made}` }, body })
  return { seen, send }
}
const made = () => Promise.resolve(new Response('{}', { status: 201 }))

test('the same request has one key while it is in progress and just after it; another one has another', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { seen, send } = sender(made)
  await Promise.all([
    send('{"name":"a"}'),
    send('{"name":"a"}'),
    send('{"name":"b"}'),
    send('{"name":"a"}', '/v1/webhooks'),
  ])
  assert.deepEqual(seen, ['key 1', 'key 1', 'key 3', 'key 4'])
  await send('{"name":"a"}')
  assert.equal(seen.at(-1), 'key 1')
  t.mock.timers.tick(1000)
  await send('{"name":"a"}')
  assert.equal(seen.at(-1), 'key 6', 'the same once more is a new thing')
})

test('a try after a lost answer keeps the key, one after a refusal has a new one', async () => {
  const answers = [
    () => Promise.reject(new TypeError('lost')),
    () => Promise.resolve(new Response('{}', { status: 503 })),
    () => Promise.resolve(new Response('{}', { status: 400 })),
    made,
  ]
  const { seen, send } = sender(() => answers.shift()!())
  await assert.rejects(send('{}'))
  await send('{}')
  await send('{}')
  await send('{}')
  assert.deepEqual(seen, ['key 1', 'key 1', 'key 1', 'key 4'])
})

test('what is forgotten is bounded, and files keep the keys of their own', async () => {
  const { seen, send } = sender(() => Promise.reject(new TypeError('lost')))
  await assert.rejects(send('first'))
  for (let index = 0; index < 100; index++) await assert.rejects(send(String(index)))
  await assert.rejects(send('first'))
  assert.equal(seen.at(-1), 'key 102')
  await assert.rejects(send(new FormData()))
  assert.equal(seen.at(-1), 'key 103')
})
