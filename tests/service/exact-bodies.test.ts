// Bodies reach the model as they were meant: seeds of 64 bits keep their digits, compressed bodies are decoded.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { until } from '../support/client.ts'
import { evaluationEnded, uploadItems } from '../support/evaluations.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { type FakeUpstream, json, startFakeUpstream } from '../support/upstream.ts'

let app: TestApp
let server: FakeUpstream
let asked: string[] = []
before(async () => {
  server = await startFakeUpstream((_path, _body, response, _request, text) => {
    asked.push(text)
    json(response, 200, {
      model: 'm',
      choices: [{ index: 0, message: { role: 'assistant', content: 'yes' }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
    })
  })
  app = await startApp({
    TUNERY_STORE_COMPLETIONS: '1',
    TUNERY_UPSTREAMS: JSON.stringify([{ url: server.url, kind: 'vllm', model: 'far/exact' }]),
  })
})
after(async () => {
  await app.stop()
  server.stop()
})

/** Sends a body as it is written: JavaScript's numbers would lose the digits. */
async function post(path: string, body: string | Uint8Array, headers: Record<string, string> = {}) {
  const response = await fetch(app.url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json', ...headers },
    body: body as BodyInit,
  })
  const text = await response.text()
  return { status: response.status, text, body: JSON.parse(text) }
}
const seedsAsked = () => asked.map((text) => /"seed":\s*(-?[0-9]+)/.exec(text)?.[1])
const chat = (seed: string, more = '') =>
  `{"model": "far/exact", "messages": [{"role": "user", "content": "x"}], "seed": ${seed}${more}}`
const [most, least, odd] = ['9223372036854775807', '-9223372036854775808', '9007199254740993']

test('seeds of 64 bits keep their digits in live requests, and others are refused', async () => {
  for (const seed of [most, least, odd, '0', '-1']) {
    asked = []
    assert.equal((await post('/chat/completions', chat(seed))).status, 200)
    const batched = chat(seed).replace('"messages"', '"requests": [{"messages"').replace(', "seed"', '}], "seed"')
    assert.equal((await post('/chat/completions/batch', batched)).status, 200)
    assert.deepEqual(seedsAsked(), [seed, seed])
  }
  for (const seed of [
    '9223372036854775808',
    '-9223372036854775809',
    '1e300',
    '1.5',
    '12345678901234567890123',
    '"7"',
  ]) {
    const { status, body } = await post('/chat/completions', chat(seed))
    assert.deepEqual([status, body.error.code, body.error.param], [400, 'invalid_request', 'seed'], seed)
  }
})

test('seeds keep their digits in stored completions, batches, evaluations and their judges', async () => {
  const stored = await post('/chat/completions', chat(odd, ', "store": true'))
  const read = await fetch(`${app.url}/chat/completions/${stored.body.id}`, {
    headers: { authorization: `Bearer ${app.key}` },
  })
  assert.match(await read.text(), new RegExp(`"seed":${odd}`))

  asked = []
  const form = new FormData()
  form.set('purpose', 'batch')
  const line = `{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": ${chat(most)}}`
  form.set('file', new Blob([line]), 'lines.jsonl')
  const input_file_id = (await app.api('POST', '/files', form)).body.id
  const endpoint = '/v1/chat/completions'
  const { id } = (await app.api('POST', '/batches', { endpoint, completion_window: '24h', input_file_id })).body
  await until('the batch', async () => (await app.api('GET', `/batches/${id}`)).body.status === 'completed')
  assert.deepEqual(seedsAsked(), [most])

  asked = []
  const dataset = await uploadItems(app, [{ messages: [{ role: 'user', content: 'x' }], reference: 'yes' }])
  const judge = `{"type": "score_model", "name": "judge", "model": "far/exact", "range": [0, 1],
    "sampling_params": {"seed": ${least}},
    "input": [{"role": "user", "content": "Score it."}]}`
  const answer = await post(
    '/evaluations',
    `{"model": "far/exact", "dataset": "${dataset}", "sampling": {"seed": ${odd}}, "graders": [${judge}]}`,
  )
  assert.equal(answer.status, 201, answer.text)
  assert.match(answer.text, new RegExp(`"seed":${odd}`))
  await evaluationEnded(app, answer.body.id)
  assert.deepEqual(seedsAsked(), [odd, least])
})

test('a body with gzip is decoded, within the limit of its route; other encodings are refused', async () => {
  asked = []
  const gzip = { 'content-encoding': 'gzip' }
  const plain = chat('7')
  assert.equal((await post('/chat/completions', gzipSync(plain), gzip)).status, 200)
  assert.equal((await post('/keys', gzipSync('{"name": "zipped"}'), gzip)).status, 201)
  assert.deepEqual(seedsAsked(), ['7'])
  const refusals: [string, Uint8Array, Record<string, string>, number, string][] = [
    ['/chat/completions', brotliCompressSync(plain), { 'content-encoding': 'br' }, 415, 'unsupported_media_type'],
    [
      '/chat/completions',
      gzipSync(gzipSync(plain)),
      { 'content-encoding': 'gzip, gzip' },
      415,
      'unsupported_media_type',
    ],
    ['/chat/completions', Buffer.from(plain), gzip, 400, 'invalid_request'],
    ['/chat/completions', gzipSync(plain).subarray(0, 40), gzip, 400, 'invalid_request'],
    ['/chat/completions', new Uint8Array(), gzip, 400, 'invalid_request'],
    [
      '/datasets/',
      gzipSync('--b'),
      { ...gzip, 'content-type': 'multipart/form-data; boundary=b' },
      415,
      'unsupported_media_type',
    ],
    // 64 MiB in 64 KiB.
    ['/keys', gzipSync(Buffer.alloc(2 ** 26)), gzip, 413, 'body_too_large'],
  ]
  for (const [path, bytes, headers, status, code] of refusals) {
    const answer = await post(path, bytes, headers)
    assert.deepEqual([answer.status, answer.body.error.code], [status, code], answer.text)
  }
  assert.equal((await post('/chat/completions', Buffer.from(plain), { 'content-encoding': 'identity' })).status, 200)
})
