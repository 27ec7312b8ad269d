// One account sends requests that are expensive to parse while another chats, whose latency must hardly grow.
import assert from 'node:assert/strict'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'

const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const embedder = 'sentence-transformers/all-MiniLM-L6-v2'
const app = appOfTests({ TUNERY_MODELS_DIR: path.join(root, '.local/models') })

const messages = [{ role: 'user', content: 'Tell me of rivers.' }]
async function chatMs(): Promise<number> {
  const began = performance.now()
  const { status, body } = await app.other.api('POST', '/chat/completions', {
    model: base,
    messages,
    max_tokens: 24,
    temperature: 0,
  })
  assert.equal(status, 200, JSON.stringify(body))
  return performance.now() - began
}
async function medianMs(answers = 5): Promise<number> {
  const times: number[] = []
  for (let index = 0; index < answers; index++) times.push(await chatMs())
  return times.sort((a, b) => a - b)[Math.floor(answers / 2)]!
}

/** Sends a request and disconnects when the signal aborts. */
async function attack(route: string, text: string, signal: AbortSignal): Promise<void> {
  const headers = { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' }
  try {
    await (await fetch(app.url + route, { method: 'POST', headers, body: text, signal })).arrayBuffer()
  } catch (error) {
    if (!signal.aborted) throw error
  }
}

const chat = (fields: object) => JSON.stringify({ model: base, messages, max_tokens: 1, ...fields })
const controls = (bytes: number) => '<|im_start|>'.repeat(bytes / 12)
const costlySchema = (number: number) => ({
  type: 'string',
  pattern: `^((((a{1,20}){1,20}){1,20}){1,20}){1,${20 + number}}$`,
})
const attacks: Record<string, [route: string, texts: () => string[]]> = {
  'texts of 6 MB that spell control tokens': [
    '/chat/completions',
    () => Array(4).fill(chat({ messages: [{ role: 'user', content: controls(6_000_000) }] })),
  ],
  'texts of 50 kB that spell control tokens': [
    '/chat/completions',
    () => Array(4).fill(chat({ messages: [{ role: 'user', content: controls(50_000) }] })),
  ],
  'ten costly schemas': [
    '/chat/completions',
    () =>
      Array.from({ length: 10 }, (_, number) =>
        chat({ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: costlySchema(number) } } }),
      ),
  ],
  'huge biases and stop lists': [
    '/chat/completions',
    () => [
      chat({ logit_bias: Object.fromEntries(Array.from({ length: 600_000 }, (_, token) => [token, 1])) }),
      chat({ stop: Array(4).fill('x'.repeat(1_500_000)) }),
    ],
  ],
  'embeddings of 2,048 texts': [
    '/embeddings',
    () => [JSON.stringify({ model: embedder, input: Array(2048).fill('The river runs to the sea. '.repeat(10)) })],
  ],
}

test('expensive requests of one account at most double the latency of another account', full, async (t) => {
  await chatMs()
  const usual_ms = await medianMs(7)
  for (const [name, [route, texts]] of Object.entries(attacks)) {
    const end = new AbortController()
    const running = texts().map((text) =>
      attack(route, text, AbortSignal.any([end.signal, AbortSignal.timeout(3_000)])),
    )
    const ms = await medianMs()
    end.abort()
    await Promise.all(running)
    t.diagnostic(`${name}: ${Math.round(ms)} ms, usually ${Math.round(usual_ms)}`)
    assert.ok(ms < 2 * usual_ms, `${name}: ${ms} ms, usually ${usual_ms} ms`)
    assert.equal((await fetch(`${app.address}/health/ready`)).status, 200)
  }
})

test('a body with too many fields is refused before it is parsed', async () => {
  const { status, body } = await app.api(
    'POST',
    '/chat/completions',
    `{"model":"${base}","messages":[],${Array(70_000).fill('"a":0').join(',')}}`,
  )
  assert.deepEqual([status, body.error.code], [400, 'invalid_request'])
  assert.match(body.error.message, /more than 65536 fields, lists and objects/)
})

test('tool call arguments that fit no context are refused before the chat template is rendered', async () => {
  const call = {
    id: 'a',
    type: 'function',
    function: { name: 'a', arguments: JSON.stringify({ a: '<'.repeat(1_000_000) }) },
  }
  const { status, body } = await app.api(
    'POST',
    '/chat/completions',
    chat({ messages: [...messages, { role: 'assistant', tool_calls: [call] }, ...messages] }),
  )
  assert.deepEqual([status, body.error.code], [400, 'invalid_request'])
})

test('/health/ready reports a hung engine, and recovers when it answers again', async () => {
  const ready = () => fetch(`${app.address}/health/ready`)
  const pid = app.services.enginePid()!
  process.kill(pid, 'SIGSTOP')
  const stopped = await ready()
  process.kill(pid, 'SIGCONT')
  assert.equal(stopped.status, 503)
  assert.match(((await stopped.json()) as { reason: string }).reason, /has not answered within 5 s/)
  await until('readiness', async () => (await ready()).ok)
})
