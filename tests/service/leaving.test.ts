// What follows where a client leaves while something is still waited for.
import assert from 'node:assert/strict'
import type http from 'node:http'
import { test } from 'node:test'
import pino from 'pino'
import { startMeter } from '../../server/inference/gateway/meter.ts'
import type { Ask } from '../../server/inference/replicas/replica.ts'
import { readUpstreams } from '../../server/inference/replicas/settings.ts'
import { createUpstream } from '../../server/inference/replicas/upstream.ts'
import type { UsageRecord } from '../../server/usage/journal.ts'
import { until } from '../support/client.ts'
import { type Handler, startForeign } from '../support/upstream.ts'

const log = pino({ level: 'silent' })
const ask = (target: Partial<Ask['target']> = {}): Ask => ({
  request_id: 'req_1',
  account_id: 'acc_1',
  kind: 'chat',
  path: '/chat/completions',
  model: 'far/x',
  target: { base: { id: 'far/x' }, ...target },
  body: { messages: [] },
  text: undefined,
  stream: false,
})

async function leaveWhile(handle: Handler, asked: Ask) {
  const server = await startForeign(handle)
  try {
    const [settings] = readUpstreams(
      JSON.stringify([{ model: 'far/x', url: server.url, kind: 'vllm', adapters: true }]),
      {},
    )
    const replica = createUpstream(settings!, () => 'salt', log)
    const gone = new AbortController()
    const reason = new Error('left')
    const answer = replica.send(asked, gone.signal)
    answer.catch(() => {})
    return { replica, answer, leave: () => gone.abort(reason), reason, stop: server.stop }
  } catch (error) {
    server.stop()
    throw error
  }
}

test('who leaves while an adapter is being loaded waits no longer; the load goes on for others', async () => {
  let load: http.ServerResponse | undefined
  const { replica, answer, leave, reason, stop } = await leaveWhile(
    (_path, _body, response) => {
      load = response
    },
    ask({ adapter: { id: 'mdl_1', gguf: '/models/mdl_1/adapter.gguf' } }),
  )
  try {
    await until('the load', () => load !== undefined)
    leave()
    await assert.rejects(answer, reason)
    assert.ok(replica.up())
    load!.writeHead(200).end('Success')
    await until(
      'the adapter to be loaded',
      () => replica.status({ base: { id: 'far/x' }, adapter: { id: 'mdl_1', gguf: '' } }) === 'loaded',
    )
  } finally {
    stop()
  }
})

test('who leaves while an error is being read does not put the server out', async () => {
  let begun = false
  const { replica, answer, leave, stop } = await leaveWhile((_path, _body, response) => {
    response.writeHead(400, { 'content-type': 'application/json' }).write('{"error":', () => {
      begun = true
    })
  }, ask())
  try {
    await until('the beginning of the error', () => begun)
    // The head has to have come as well: what is read is what is left.
    await new Promise((resolve) => setTimeout(resolve, 50))
    leave()
    await assert.rejects(answer)
    assert.ok(replica.up())
  } finally {
    stop()
  }
})

test('what is still to be heard of those who have left can be waited for, and fails nothing', async () => {
  const records: UsageRecord[] = []
  const pending = new Set<Promise<void>>()
  const metered = { request_id: 'r', account_id: 'a', key_id: 'k', model: 'm', model_id: 'm', kind: 'chat' as const }
  const counts = (completion_tokens: number) => ({ prompt_tokens: 1, completion_tokens, cached_tokens: 0 })
  const meter = () =>
    startMeter(
      { record: (record: UsageRecord) => void records.push(record) } as never,
      metered,
      { input_per_million_tokens: 0, output_per_million_tokens: 0 },
      pending,
    )
  meter().endLater(new Promise((resolve) => setTimeout(resolve, 20, counts(1))), counts(9))
  meter().endLater(Promise.resolve(undefined), counts(2))
  meter().endLater(Promise.reject(new Error('the engine is gone')), counts(3))
  meter().endLater(Promise.reject(new Error('the engine is gone')), undefined)
  await Promise.allSettled(pending)
  assert.deepEqual(records.map(({ completion_tokens, finish }) => `${completion_tokens} ${finish}`).sort(), [
    '1 client_left',
    '2 client_left',
    '3 client_left',
  ])
  assert.equal(pending.size, 0)
})
