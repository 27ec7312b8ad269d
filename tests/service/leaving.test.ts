// Clients that disconnect while something is still pending.
import assert from 'node:assert/strict'
import type http from 'node:http'
import { test } from 'node:test'
import pino from 'pino'
import { startMeter } from '../../server/features/inference/meter.ts'
import type { ReplicaRequest } from '../../server/features/serving/requests/replica.ts'
import { readUpstreams } from '../../server/features/serving/upstreams/settings.ts'
import { Upstream } from '../../server/features/serving/upstreams/upstream.ts'
import type { UsageRecord } from '../../server/features/usage/journal.ts'
import { until } from '../support/client.ts'
import { type Handler, startFakeUpstream } from '../support/upstream.ts'

const log = pino({ level: 'silent' })
const requestFor = (target: Partial<ReplicaRequest['target']> = {}): ReplicaRequest => ({
  request_id: 'req_1',
  account_id: 'acc_1',
  kind: 'chat',
  path: '/chat/completions',
  model: 'far/x',
  target: { base: { id: 'far/x' }, ...target },
  body: { messages: [] },
  text: undefined,
  stream: false,
  background: false,
})

async function leaveWhile(handle: Handler, request: ReplicaRequest) {
  const server = await startFakeUpstream(handle)
  try {
    const [settings] = readUpstreams(
      JSON.stringify([{ model: 'far/x', url: server.url, kind: 'vllm', adapters: true }]),
      {},
    )
    const replica = new Upstream(settings!, () => 'salt', log)
    const controller = new AbortController()
    const reason = new Error('left')
    const answer = replica.send(request, controller.signal)
    answer.catch(() => {})
    return { replica, answer, leave: () => controller.abort(reason), reason, stop: server.stop }
  } catch (error) {
    server.stop()
    throw error
  }
}

test('a client that disconnects while an adapter loads stops waiting; the load continues for others', async () => {
  let load: http.ServerResponse | undefined
  const { replica, answer, leave, reason, stop } = await leaveWhile(
    (_path, _body, response) => {
      load = response
    },
    requestFor({ adapter: { id: 'mdl_1', gguf: '/models/mdl_1/adapter.gguf' } }),
  )
  try {
    await until('the load', () => load !== undefined)
    leave()
    await assert.rejects(answer, reason)
    assert.ok(replica.isUp())
    load!.writeHead(200).end('Success')
    await until(
      'the adapter to be loaded',
      () => replica.status({ base: { id: 'far/x' }, adapter: { id: 'mdl_1', gguf: '' } }) === 'loaded',
    )
  } finally {
    stop()
  }
})

test('a client that disconnects while an error is read does not mark the upstream down', async () => {
  let begun = false
  const { replica, answer, leave, stop } = await leaveWhile((_path, _body, response) => {
    response.writeHead(400, { 'content-type': 'application/json' }).write('{"error":', () => {
      begun = true
    })
  }, requestFor())
  try {
    await until('the start of the error', () => begun)
    // Wait until the client has the head and reads the rest.
    await new Promise((resolve) => setTimeout(resolve, 50))
    leave()
    await assert.rejects(answer)
    assert.ok(replica.isUp())
  } finally {
    stop()
  }
})

test('pending usage lookups of disconnected clients can be awaited, and a failed one uses its fallback', async () => {
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
  meter().endAborted(new Promise((resolve) => setTimeout(resolve, 20, counts(1))), counts(9))
  meter().endAborted(Promise.resolve(undefined), counts(2))
  meter().endAborted(Promise.reject(new Error('the engine is gone')), counts(3))
  meter().endAborted(Promise.reject(new Error('the engine is gone')), undefined)
  await Promise.allSettled(pending)
  assert.deepEqual(records.map(({ completion_tokens, finish }) => `${completion_tokens} ${finish}`).sort(), [
    '1 client_left',
    '2 client_left',
    '3 client_left',
  ])
  assert.equal(pending.size, 0)
})
