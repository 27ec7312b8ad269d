// The engine on a port, without a server in front: what clients can reach, and what they cannot.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import type { ErrorBody } from '../../../contract/errors.ts'
import { createPublicServer } from '../../../engine/http/public.ts'
import { connect } from '../../support/connection.ts'
import { type Standalone, startEngineOnPort } from '../../support/standalone.ts'
import { chat, modelName, modelPath, root, until } from './engine-process.ts'

const folder = mkdtempSync(join(tmpdir(), 'tunery-standalone-'))
const [key, otherKey] = ['k'.repeat(40), 'sk-other-0123456789']
const keyFile = join(folder, 'keys')
const adapter = join(folder, 'adapter.gguf')
let engine: Standalone

before(async () => {
  writeFileSync(keyFile, `# the team's\n${key}\n\n${otherKey}\n`)
  const gguf = join(root, '.local/llama/source/gguf-py')
  execFileSync(join(root, '.local/python/bin/python'), [
    join(import.meta.dirname, 'make-adapter.py'),
    gguf,
    adapter,
    '1',
  ])
  engine = await startEngineOnPort([
    '--model',
    `${modelName}=${modelPath}`,
    '--adapter',
    `tuned=${adapter}`,
    '--api-key-file',
    keyFile,
  ])
})
after(async () => {
  engine.kill('SIGKILL')
  await engine.exited
  rmSync(folder, { recursive: true })
})

const client = (prefix: string, apiKey = key) =>
  new OpenAI({ baseURL: `${engine.url}${prefix}`, apiKey, maxRetries: 0 })
const story = {
  model: modelName,
  messages: [{ role: 'user' as const, content: 'Tell me a story about a fox.' }],
  temperature: 0,
  max_tokens: 16,
  seed: 1,
}
const ask = (path: string, init: RequestInit = {}) =>
  fetch(`${engine.url}${path}`, {
    ...init,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...init.headers },
  })

const codeOf = async (answer: Response) => ((await answer.json()) as ErrorBody).error.code

test('an OpenAI client works under both prefixes, whole and streamed, with the model and its adapter', async () => {
  const texts = []
  for (const prefix of ['/v1', '/api/v1', '/api/v1/']) {
    const openai = client(prefix)
    const whole = await openai.chat.completions.create(story)
    texts.push(whole.choices[0]!.message.content)
    let streamed = ''
    for await (const chunk of await openai.chat.completions.create({ ...story, stream: true }))
      streamed += chunk.choices[0]?.delta.content ?? ''
    texts.push(streamed)
  }
  assert.equal(new Set(texts).size, 1)
  assert.ok(texts[0])
  const tuned = await client('/v1').chat.completions.create({ ...story, model: 'tuned' })
  assert.ok(tuned.choices[0]!.message.content !== texts[0])
  assert.equal((await ask('/v1/chat/completions/', { method: 'POST', body: JSON.stringify(story) })).status, 200)
  const models = await client('/api/v1').models.list()
  assert.deepEqual(models.data.map(({ id }) => id).sort(), [modelName, 'tuned'])
  assert.ok(!JSON.stringify(models.data).includes('.gguf'), 'no path of the machine is revealed')
})

test('without a valid key, only health is available', async () => {
  for (const wrong of [`${key}x`, key.slice(1), 'x'])
    await assert.rejects(client('/v1', wrong).chat.completions.create(story), (error) => {
      assert.ok(error instanceof OpenAI.AuthenticationError)
      assert.deepEqual([error.status, error.code, error.type], [401, 'invalid_api_key', 'authentication_error'])
      return true
    })
  assert.ok((await client('/v1', otherKey).models.list()).data.length > 0, 'every key of the file is valid')
  for (const authorization of ['', `Basic ${key}`, 'Bearer', `Bearer ${key} ${key}`])
    assert.equal((await ask('/v1/models', { headers: { authorization } })).status, 401, authorization)
  const rejected = await fetch(`${engine.url}/metrics`)
  assert.deepEqual([rejected.status, rejected.headers.get('www-authenticate')], [401, 'Bearer'])
  assert.match(await (await ask('/metrics')).text(), /tunery_engine_requests_total/)
  for (const path of ['/health', '/health/live', '/health/ready'])
    for (const method of ['GET', 'HEAD']) assert.equal((await fetch(engine.url + path, { method })).status, 200)
  // A client that is still sending its body can read the rejection.
  const large = await fetch(`${engine.url}/v1/chat/completions`, { method: 'POST', body: 'x'.repeat(3_000_000) })
  assert.deepEqual([large.status, await codeOf(large)], [401, 'invalid_api_key'])
})

test('internal routes of the server do not exist here, even with a valid key', async () => {
  const body = JSON.stringify({
    name: 'x',
    path: modelPath,
    lora_name: 'x',
    lora_path: adapter,
    base_model_name: modelName,
  })
  for (const prefix of ['', '/api', '/v1', '/api/v1'])
    for (const path of [
      '/internal/score',
      '/internal/load_model',
      '/internal/unload_model',
      '/internal/usage/req_1',
      '/v1/load_lora_adapter',
      '/load_lora_adapter',
    ])
      for (const method of ['POST', 'GET']) {
        const answer = await ask(prefix + path, { method, ...(method === 'POST' && { body }) })
        assert.deepEqual([answer.status, await codeOf(answer)], [404, 'not_found'], `${method} ${prefix}${path}`)
      }
  assert.equal((await client('/v1').models.list()).data.length, 2)
})

test('no CORS: pages of other sites can read nothing, and responses forbid caches and frames', async () => {
  const simple = await ask('/v1/models', { headers: { origin: 'https://example.com' } })
  const preflight = await ask('/v1/chat/completions', {
    method: 'OPTIONS',
    headers: { origin: 'https://example.com', 'access-control-request-method': 'POST' },
  })
  assert.deepEqual([simple.status, preflight.status], [200, 405])
  for (const { headers } of [simple, preflight]) {
    assert.deepEqual(
      [...headers.keys()].filter((name) => name.startsWith('access-control')),
      [],
    )
    assert.deepEqual(
      [headers.get('cache-control'), headers.get('x-content-type-options'), headers.get('x-frame-options')],
      ['no-store', 'nosniff', 'DENY'],
    )
  }
})

test('headers or a body that are too large get an error in the common shape', async () => {
  const long = await ask(`/v1/models?x=${'x'.repeat(20_000)}`)
  assert.deepEqual([long.status, await codeOf(long)], [431, 'invalid_request'])
  const many = await ask('/v1/models', {
    headers: Object.fromEntries(Array.from({ length: 120 }, (_, index) => [`x-${index}`, '1'])),
  })
  assert.equal(many.status, 400)
  const large = await ask('/v1/chat/completions', {
    method: 'POST',
    body: JSON.stringify({ ...story, user: 'x'.repeat(9_000_000) }),
  })
  assert.deepEqual([large.status, await codeOf(large)], [413, 'body_too_large'])
})

test('clients that send or read too slowly are disconnected; clients that wait for a long answer are not', async () => {
  const times = { head_ms: 300, body_ms: 600, idle_ms: 400, unread_ms: 600 }
  let unreadCut = false
  const server = createPublicServer({ keys: null, timeouts: times }, (request, response) => {
    if (request.url === '/large') {
      request.socket.once('close', () => {
        unreadCut = true
      })
      return void response.end(Buffer.alloc(50_000_000))
    }
    if (request.url === '/late') return void setTimeout(() => response.end('late'), 3 * times.unread_ms)
    request.resume().on('end', () => response.end())
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  const address = `http://127.0.0.1:${(server.address() as { port: number }).port}`
  const open = (head: string) => {
    const connection = connect(address)
    connection.socket.write(head)
    return connection
  }
  const slow = open('GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ')
  const stalled = open('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n{')
  const keepAlive = open('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
  const patient = open('GET /late HTTP/1.1\r\nHost: x\r\n\r\n')
  const unread = http.get(`${address}/large`, (response) => response.pause().on('error', () => {}))
  unread.on('error', () => {})
  await until(() => slow.closed && stalled.closed && keepAlive.closed, 'the senders to be closed')
  assert.match(slow.text, /^HTTP\/1\.1 408 /)
  assert.match(stalled.text, /^HTTP\/1\.1 408 .*stood still/s)
  assert.match(keepAlive.text, /^HTTP\/1\.1 200 /)
  await until(() => unreadCut, 'the one that does not read to be closed')
  await until(() => patient.text.endsWith('late'), 'the patient one to be answered')
  server.closeAllConnections()
  server.close()
})

test('an invalid key configuration stops the start, with a reason that says what to do', () => {
  const start = (args: string[], env: NodeJS.ProcessEnv = {}) => {
    const all = [
      join(root, 'engine/main.ts'),
      '--listen',
      '127.0.0.1:0',
      '--model',
      `${modelName}=${modelPath}`,
      ...args,
    ]
    const { status, stderr } = spawnSync(process.execPath, all, { encoding: 'utf8', env: { ...process.env, ...env } })
    assert.equal(status, 1)
    return JSON.parse(stderr.trim().split('\n').at(-1)!).msg as string
  }
  const empty = join(folder, 'empty')
  writeFileSync(empty, '\n# nothing\n')
  assert.match(start(['--api-key-file', join(folder, 'none')]), /can't be read: ENOENT/)
  assert.match(start(['--api-key-file', empty]), /holds no key/)
  assert.match(start([], { TUNERY_ENGINE_KEY: '' }), /TUNERY_ENGINE_KEY holds no key/)
  assert.match(start([], { TUNERY_ENGINE_KEY: 'short' }), /16 or more ASCII characters.*openssl rand/)
  assert.match(start(['--api-key-file', keyFile], { TUNERY_ENGINE_KEY: key }), /not in both/)
})

test('SIGTERM: streams finish, or end with an error event after the grace period; health reports it', async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const health = (url: string) =>
    new Promise<number>((resolve, reject) => {
      http
        .get(`${url}/health`, { agent }, (response) => response.resume().on('end', () => resolve(response.statusCode!)))
        .on('error', reject)
    })
  const run = async (max_tokens: number, grace: string) => {
    const stopping = await startEngineOnPort(['--model', `${modelName}=${modelPath}`, '--grace-seconds', grace], {
      TUNERY_ENGINE_KEY: key,
    })
    const body = JSON.stringify(
      chat('Tell me a very long story.', { stream: true, max_tokens, temperature: 1.3, logit_bias: { 2: -100 } }),
    )
    const answer = await fetch(`${stopping.url}/v1/chat/completions`, {
      method: 'POST',
      body,
      headers: { authorization: `Bearer ${key}` },
    })
    const keepAlive = connect(stopping.url)
    keepAlive.socket.write('GET /health HTTP/1.1\r\nHost: x\r\n')
    assert.equal(await health(stopping.url), 200)
    stopping.kill('SIGTERM')
    await until(() => /"stopping"/.test(stopping.stderr()), 'the signal to be seen')
    keepAlive.socket.write('\r\n')
    await until(() => keepAlive.text !== '', 'the health response')
    await assert.rejects(fetch(`${stopping.url}/health`), 'new connections are rejected')
    const text = await answer.text()
    keepAlive.socket.destroy()
    assert.equal(await stopping.exited, 0)
    return { text, health: keepAlive.text }
  }
  const finished = await run(60, '20')
  assert.match(finished.text, /"finish_reason":"length".*\[DONE\]\n\n$/s)
  assert.match(finished.health, /^HTTP\/1\.1 503 .*shutting_down/s)
  const cut = await run(1900, '1')
  assert.match(cut.text, /data: \{"error":\{"code":"engine_unavailable".*\n\n$/)
  assert.ok(!cut.text.includes('[DONE]'))
  agent.destroy()
})
