// The MCP server against the real service, through the client of the official SDK: over stdio and streamable HTTP.
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { type CallToolResult, ElicitRequestSchema, type Progress } from '@modelcontextprotocol/sdk/types.js'
import { newKey } from '../../lib/key-format.ts'
import { root } from '../../lib/root.ts'
import { createConfirmations } from '../../mcp/confirm.ts'
import { createMcpServer, type HttpServer, serveHttp } from '../../mcp/index.ts'
import { bounded } from '../../mcp/results.ts'
import { allowed } from '../support/allowed-time.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
let mcp: HttpServer
let folder: string
const logged: string[] = []
before(async () => {
  app = await startApp()
  mcp = await serveHttp({ url: app.url, version: '1.2.3', port: 0, log: (line) => logged.push(line) })
  folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-mcp-'))
})
after(async () => {
  await mcp.close()
  await app.stop()
  rmSync(folder, { recursive: true, force: true })
})

type Decision = { action: 'accept'; content: { agree: boolean } } | { action: 'decline' } | { action: 'cancel' }

/** A client whose user decides like this, and what its user was asked; without a decision it cannot ask. */
function newClient(decide?: () => Decision | Promise<Decision>) {
  const client = new Client({ name: 'test', version: '1' }, { capabilities: decide ? { elicitation: {} } : {} })
  const asked: string[] = []
  if (decide)
    client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
      asked.push(params.message)
      return decide()
    })
  return { client, asked }
}

async function overHttp(key: string, decide?: () => Decision | Promise<Decision>) {
  const { client, asked } = newClient(decide)
  const transport = new StreamableHTTPClientTransport(new URL(mcp.url), {
    requestInit: { headers: { authorization: `Bearer ${key}` } },
  })
  await client.connect(transport)
  return { client, asked, transport }
}

async function call(
  client: Client,
  name: string,
  args: Record<string, unknown> = {},
  onprogress?: (p: Progress) => void,
) {
  const result = (await client.callTool({ name, arguments: args }, undefined, {
    timeout: 180_000,
    ...(onprogress && { onprogress }),
  })) as CallToolResult
  const [first] = result.content
  const text = first?.type === 'text' ? first.text : ''
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
  return { isError: result.isError === true, text, data: result.structuredContent as any }
}

const jobs = async () => (await app.api('GET', '/fine-tuning/jobs')).body.items.length
const evaluations = async () => (await app.api('GET', '/evaluations')).body.items.length

test('an assistant goes the whole way over stdio; the user is asked before what costs', full, async () => {
  writeFileSync(path.join(folder, 'colours.jsonl'), colourRows(16))
  const { client, asked } = newClient(() => ({ action: 'accept', content: { agree: true } }))
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: ['cli/main.ts', 'mcp', '--folder', folder],
    cwd: root,
    env: { TUNERY_URL: app.url, TUNERY_KEY: app.key },
    stderr: 'pipe',
  })
  let stderr = ''
  transport.stderr?.on('data', (chunk) => {
    stderr += String(chunk)
  })
  const everything: string[] = []
  await client.connect(transport)
  try {
    const run = async (name: string, args?: Record<string, unknown>, onprogress?: (p: Progress) => void) => {
      const result = await call(client, name, args, onprogress)
      everything.push(result.text)
      assert.ok(!result.isError, `${name}: ${result.text}`)
      return result.data
    }
    const { tools } = await client.listTools()
    for (const { name, description, outputSchema, annotations } of tools) {
      assert.match(name, /^[a-z]+(_[a-z]+)*$/)
      assert.ok(description && outputSchema && annotations?.readOnlyHint !== undefined, name)
    }
    const me = await run('who_am_i')
    assert.ok(me.key.scopes.includes('tuning:write'))
    const fitting = await run('list_base_models', { task: 'code', fits: 'lora' })
    assert.ok(fitting.models.every(({ needs }: { needs: { lora: { fits: boolean } } }) => needs.lora.fits))
    assert.match(fitting.recommended.why, /to train by lora/)
    const { models } = await run('list_base_models', { available_only: true })
    assert.deepEqual(
      models.map(({ id }: { id: string }) => id),
      [tiny],
    )
    const { dataset } = await run('upload_dataset', { name: 'colours', path: 'colours.jsonl' })
    assert.equal(dataset.rows, 16)
    assert.equal((await run('validate_dataset', { dataset_id: dataset.id, model_id: tiny })).valid, true)
    const preview = await run('preview_row', { dataset_id: dataset.id, model_id: tiny })
    const pieces = preview.sequences[0].pieces as { learned: boolean; text: string }[]
    assert.match(pieces.find(({ learned }) => learned)!.text, /red-0/)

    const training = {
      model_id: tiny,
      dataset_id: dataset.id,
      config: { training_config: { epochs: 12, batch_size: 4, learning_rate: 0.02 } },
    }
    const estimate = await run('estimate_training', training)
    assert.ok(estimate.fits && estimate.seconds > 0 && estimate.price.currency)
    assert.deepEqual(asked, [], 'an estimate costs nothing')
    const { status, job } = await run('start_training', training)
    assert.equal(status, 'started')
    assert.equal(asked.length, 1)
    assert.match(asked[0]!, /train test\/tiny.*time: about .*tokens: .*price: .*memory: /)

    const progress: Progress[] = []
    let watched = await run('watch_job', { job_id: job.id, seconds: 1 }, (update) => progress.push(update))
    for (let seq = 0; !watched.ended; ) {
      assert.ok(watched.next_after >= seq)
      seq = watched.next_after
      watched = await run('watch_job', { job_id: job.id, after: seq, seconds: 120 }, (update) => progress.push(update))
    }
    assert.equal(watched.job.status, 'completed', JSON.stringify(watched.job.error))
    assert.ok(progress.length > 2 && progress.every(({ message }) => message))

    const model = watched.job.model as string
    // The tiny model learns to name a colour, and no more in these seconds.
    const graders = [{ type: 'regex', name: 'colour', pattern: '^[a-z]' }]
    const { evaluation } = await run('evaluate_model', {
      model,
      baseline: tiny,
      dataset: dataset.id,
      rows: 8,
      max_tokens: 8,
      graders,
    })
    assert.match(asked[1]!, /evaluate mdl_\w+ beside test\/tiny on up to 8 rows/)
    const scored = await run('get_evaluation', { evaluation_id: evaluation.id, wait_seconds: 120 })
    assert.equal(scored.evaluation.status, 'completed')
    assert.ok(scored.evaluation.result.model.score.mean > scored.evaluation.result.baseline.score.mean)
    assert.equal(scored.rows.length, 5)

    const { deployment } = await run('deploy_model', { model, name: 'colours', wait_seconds: 120 })
    assert.equal(deployment.status, 'ready')
    const question = { messages: [{ role: 'user', content: 'code of blue?' }], max_tokens: 8 }
    const direct = await app.api('POST', '/chat/completions', { model, temperature: 0, ...question })
    const { answer } = await run('chat', { model: 'colours', ...question })
    assert.ok(answer && answer === direct.body.choices[0].message.content, answer)
    assert.equal(asked.length, 2, 'a short chat is not asked about')
    // Beyond the budget of a session the user is asked.
    const long = await run('chat', {
      model: 'colours',
      messages: [...question.messages, ...Array(25).fill({ role: 'system', content: 'word '.repeat(400) })],
      max_tokens: 8,
    }).catch((error: Error) => error.message)
    assert.match(String(long), /context_length_exceeded/)
    assert.match(asked[2]!, /ask colours a question of about \d+ tokens/)
    const { total } = await run('usage')
    assert.ok(total.trained_tokens > 0)

    const resources = (await client.listResources()).resources.map(({ uri }) => uri)
    assert.ok(resources.includes(`tunery://jobs/${job.id}`) && resources.includes(`tunery://datasets/${dataset.id}`))
    const { contents } = await client.readResource({ uri: `tunery://jobs/${job.id}` })
    assert.equal(JSON.parse((contents[0] as { text: string }).text).job.id, job.id)
    const prompt = await client.getPrompt({ name: 'fine_tune_on_my_examples', arguments: { goal: 'name colours' } })
    assert.match(JSON.stringify(prompt.messages), /name colours.*validate_dataset.*deploy_model/s)
  } finally {
    await client.close()
  }
  assert.equal(stderr, '')
  assert.ok(!everything.join().includes(app.key), 'no key in any result')
})

test('files that are not data in an open folder are not uploaded, and none over HTTP', async () => {
  const open = path.join(folder, 'open')
  mkdirSync(path.join(open, '.ssh'), { recursive: true })
  for (const file of ['../secret.jsonl', '.ssh/id.jsonl', 'notes.txt']) writeFileSync(path.join(open, file), 'x')
  symlinkSync(path.join(folder, 'secret.jsonl'), path.join(open, 'link.jsonl'))
  const { client } = newClient()
  const args = ['cli/main.ts', 'mcp', '--folder', open]
  const env = { TUNERY_URL: app.url, TUNERY_KEY: app.key }
  await client.connect(new StdioClientTransport({ command: process.execPath, args, cwd: root, env }))
  try {
    for (const file of ['../secret.jsonl', 'link.jsonl', '.ssh/id.jsonl', 'notes.txt', 'none.jsonl', '.']) {
      const { isError, text } = await call(client, 'upload_dataset', { name: 'x', path: file })
      assert.ok(isError && text.startsWith('path_refused: '), `${file}: ${text}`)
    }
  } finally {
    await client.close()
  }
  const remote = await overHttp(app.key)
  const { text } = await call(remote.client, 'upload_dataset', { name: 'x', path: '/etc/passwd' })
  assert.match(text, /^path_not_available: /)
  await remote.client.close()
})

test('what the user declines, or leaves unanswered, does not happen', async () => {
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const before = [await jobs(), await evaluations()]
  const answers: Decision[] = [
    { action: 'decline' },
    { action: 'cancel' },
    { action: 'accept', content: { agree: false } },
  ]
  const { client, asked } = await overHttp(app.key, () => answers.shift()!)
  const declined = await call(client, 'start_training', { model_id: tiny, dataset_id })
  assert.deepEqual([declined.isError, declined.data.status], [false, 'declined'])
  for (let count = 0; count < 2; count++)
    assert.equal((await call(client, 'evaluate_model', { model: tiny, dataset: dataset_id })).data.status, 'declined')
  assert.equal(asked.length, 3)
  // A token of the caller's own making does not replace the user's answer.
  answers.push({ action: 'decline' })
  const forged = await call(client, 'evaluate_model', { model: tiny, dataset: dataset_id, confirmation: 'confirm_x' })
  assert.equal(forged.data.status, 'declined')
  await client.close()

  // A call that is cancelled while its user ponders is not made when the answer comes after all.
  let answer: (decision: Decision) => void = () => {}
  const slow = await overHttp(app.key, () => new Promise<Decision>((resolve) => (answer = resolve)))
  const leaving = new AbortController()
  const pending = slow.client.callTool(
    { name: 'evaluate_model', arguments: { model: tiny, dataset: dataset_id } },
    undefined,
    { signal: leaving.signal },
  )
  await until('the question', () => slow.asked.length)
  leaving.abort(new Error('enough'))
  await assert.rejects(pending)
  answer({ action: 'accept', content: { agree: true } })
  await call(slow.client, 'who_am_i')
  await slow.client.close()
  assert.deepEqual([await jobs(), await evaluations()], before)
})

test('a client that cannot ask gets the estimate and a token that works once, for the same arguments', async () => {
  const dataset = (await app.upload(colourRows(8))).body.id
  const before = await evaluations()
  const { client } = await overHttp(app.key)
  const args = { model: tiny, dataset, rows: 2, max_tokens: 4 }
  const first = await call(client, 'evaluate_model', args)
  assert.equal(first.data.status, 'needs_confirmation')
  assert.ok(first.data.estimate.tokens > 0 && first.data.estimate.price.currency)
  assert.equal(await evaluations(), before, 'nothing happens before the second call')
  const { confirmation } = first.data
  const other = await call(client, 'evaluate_model', { ...args, rows: 8, confirmation })
  assert.ok(other.isError && other.text.startsWith('confirmation_mismatch: '), other.text)
  const stranger = await overHttp(app.otherKey)
  const foreign = await call(stranger.client, 'evaluate_model', { ...args, confirmation })
  assert.ok(foreign.isError && foreign.text.startsWith('confirmation_invalid: '), foreign.text)
  await stranger.client.close()
  // Twice at once, with the fields in another order.
  const again = { confirmation, max_tokens: 4, rows: 2, dataset, model: tiny }
  const both = await Promise.all([call(client, 'evaluate_model', again), call(client, 'evaluate_model', again)])
  assert.deepEqual(both.map(({ isError }) => isError).sort(), [false, true])
  assert.equal(await evaluations(), before + 1)
  await client.close()
})

test('a token ends after ten minutes, and the oldest of too many is dropped', () => {
  let now = 0
  const confirmations = createConfirmations(() => now)
  const args = { a: 1, b: [{ c: 2, d: 3 }] }
  const { confirmation, expires_at } = confirmations.issue('chat', args)
  assert.equal(expires_at, new Date(600_000).toISOString())
  now = 599_999
  assert.throws(() => confirmations.redeem(confirmation, 'start_training', args), /other arguments/)
  now = 600_000
  assert.throws(() => confirmations.redeem(confirmation, 'chat', args), /expired/)
  const oldest = confirmations.issue('chat', args).confirmation
  const rest = Array.from({ length: 20 }, () => confirmations.issue('chat', args).confirmation)
  assert.throws(() => confirmations.redeem(oldest, 'chat', args), /expired/)
  confirmations.redeem(rest[0]!, 'chat', { b: [{ d: 3, c: 2 }], a: 1 })
  assert.throws(() => confirmations.redeem(rest[0]!, 'chat', args), /used already/)
})

test('a read-only key sees its tools alone, and the service refuses the others', async () => {
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const { key } = await app.services.accounts.createKey('reader', 'read_only', app.owner.user_id)
  const { client } = await overHttp(key, () => ({ action: 'accept', content: { agree: true } }))
  const listed = (await client.listTools()).tools
  const names = listed.map(({ name }) => name)
  for (const name of ['who_am_i', 'list_datasets', 'validate_dataset', 'get_job', 'watch_job', 'list_deployments'])
    assert.ok(names.includes(name), name)
  assert.deepEqual(
    listed.filter(({ annotations }) => !annotations?.readOnlyHint),
    [],
  )
  const before = [await jobs(), (await app.api('GET', '/datasets/')).body.items.length]
  for (const [name, args] of [
    ['upload_dataset', { name: 'x', content: colourRows(2) }],
    ['estimate_training', { model_id: tiny, dataset_id }],
    ['start_training', { model_id: tiny, dataset_id }],
    ['evaluate_model', { model: tiny, dataset: dataset_id }],
    ['cancel_job', { job_id: 'job_none' }],
    ['delete_job', { job_id: 'job_none' }],
    ['deploy_model', { model: 'mdl_none', name: 'x' }],
    ['chat', { model: tiny, messages: [{ role: 'user', content: 'x' }] }],
  ] as const) {
    const { isError, text } = await call(client, name, args)
    assert.ok(isError && text.startsWith('insufficient_permissions: '), `${name}: ${text}`)
  }
  assert.deepEqual([await jobs(), (await app.api('GET', '/datasets/')).body.items.length], before)
  await client.close()
})

/** One raw request, with any Host. */
function raw(headers: Record<string, string>, { method = 'POST', body = initialize, route = '/mcp' } = {}) {
  return new Promise<{ status: number; headers: http.IncomingHttpHeaders; body: string }>((resolve, reject) => {
    const { port } = new URL(mcp.url)
    const accept = 'application/json, text/event-stream'
    const request = http.request(
      {
        port,
        host: '127.0.0.1',
        path: route,
        method,
        headers: { accept, 'content-type': 'application/json', ...headers },
      },
      (response) => {
        let text = ''
        response.on('data', (chunk) => {
          text += chunk
        })
        response.on('end', () => resolve({ status: response.statusCode!, headers: response.headers, body: text }))
      },
    )
    request.on('error', reject).end(method === 'POST' ? body : undefined)
  })
}
const initialize = JSON.stringify({
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
})

test('over HTTP nothing is served without a right key, or to another Host, Origin or key’s session', async () => {
  const authorization = `Bearer ${app.key}`
  for (const [what, headers, status] of [
    ['no key', {}, 401],
    ['no bearer', { authorization: `Basic ${app.key}` }, 401],
    ['a wrong key', { authorization: 'Bearer tny_wrong' }, 401],
    ['a foreign host', { authorization, host: 'evil.example:80' }, 403],
    ['a host that is none', { authorization, host: '127.0.0.1@evil.example' }, 403],
    ['a foreign origin', { authorization, origin: 'https://evil.example' }, 403],
    ['an origin that is hidden', { authorization, origin: 'null' }, 403],
    ['a compressed body', { authorization, 'content-encoding': 'gzip' }, 415],
    ['an unknown session', { authorization, 'mcp-session-id': 'none' }, 404],
  ] as [string, Record<string, string>, number][]) {
    const answer = await raw(headers)
    assert.equal(answer.status, status, `${what}: ${answer.body}`)
    assert.equal(status === 401, answer.headers['www-authenticate']?.startsWith('Bearer ') ?? false)
    assert.equal(answer.headers['mcp-session-id'], undefined)
    assert.ok(!answer.body.includes(app.key) && !answer.body.includes('    at '))
  }
  assert.equal((await raw({ authorization, origin: 'http://localhost:3000' })).status, 200)
  assert.equal((await raw({ authorization }, { route: '/other' })).status, 404)
  assert.equal((await raw({ authorization }, { method: 'GET' })).status, 400)
  assert.equal((await raw({ authorization }, { body: '{' })).status, 400)
  assert.equal((await raw({ authorization }, { body: JSON.stringify({ text: 'x'.repeat(3e6) }) })).status, 413)

  const { client, transport } = await overHttp(app.key)
  const session = { 'mcp-session-id': transport.sessionId! }
  const body = JSON.stringify({ jsonrpc: '2.0', id: 2, method: 'tools/list' })
  assert.equal((await raw({ authorization, ...session }, { body })).status, 200)
  assert.equal((await raw({ authorization: `Bearer ${app.otherKey}`, ...session }, { body })).status, 404)
  await transport.terminateSession()
  assert.equal((await raw({ authorization, ...session }, { body })).status, 404)
  await client.close()
  assert.ok(!logged.join().includes(app.key), 'no key in the log')
})

/** Begins a session with a server. */
function begin(url: string, key: string, localAddress = '127.0.0.1', session?: string) {
  const accept = 'application/json, text/event-stream'
  const headers = { accept, 'content-type': 'application/json', authorization: `Bearer ${key}` }
  const more = session === undefined ? {} : { 'mcp-session-id': session }
  return new Promise<{ status: number; session: string }>((resolve, reject) => {
    const options = { method: 'POST', localAddress, agent: false, headers: { ...headers, ...more } }
    const request = http.request(url, options, (response) => {
      const id = String(response.headers['mcp-session-id'] ?? '')
      response.resume().on('end', () => resolve({ status: response.statusCode!, session: id }))
    })
    request
      .on('error', reject)
      .end(session === undefined ? initialize : JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }))
  })
}

test('a session ends within a second of its key, with the stream on which its client only listens', async () => {
  const { id, key } = (await app.api('POST', '/keys', { name: 'short' })).body
  const { session } = await begin(mcp.url, key)
  const listens = { accept: 'text/event-stream', authorization: `Bearer ${key}`, 'mcp-session-id': session }
  const stream = (await new Promise((resolve, reject) =>
    http.get(mcp.url, { headers: listens, agent: false }, resolve).on('error', reject),
  )) as http.IncomingMessage
  assert.equal(stream.statusCode, 200)
  const ended = new Promise((resolve) => stream.resume().once('close', resolve))
  await app.api('DELETE', `/keys/${id}`)
  const from = Date.now()
  await ended
  assert.ok(Date.now() - from < allowed(1000), `it took ${Date.now() - from} ms`)
  assert.equal((await begin(mcp.url, key, undefined, session)).status, 404)
})

test('invented keys cost no session and lock nobody out', async () => {
  const wrongKey_ms = 300
  const server = await serveHttp({ url: app.url, version: '1', port: 0, wrongKey_ms, log: () => {} })
  try {
    assert.equal((await begin(server.url, app.key)).status, 200)
    const malformed = await Promise.all(Array.from({ length: 30 }, () => begin(server.url, 'tny_guess')))
    assert.ok(malformed.every(({ status }) => status === 401))
    const { key } = (await app.api('POST', '/keys', { name: 'new' })).body
    const from = performance.now()
    const guesses = Array.from({ length: 120 }, () => begin(server.url, newKey()))
    // Meanwhile: a key that was right before from the same address, and a new one from another.
    assert.equal((await begin(server.url, app.key)).status, 200)
    assert.equal((await begin(server.url, app.otherKey, '127.0.0.2')).status, 200)
    const answers = await Promise.all(guesses)
    const wrong = answers.filter(({ status }) => status === 401).length
    // Five at once, two that wait, and as many as are earned while the guesses arrive.
    const earned = Math.ceil((performance.now() - from) / wrongKey_ms)
    assert.ok(wrong >= 5 && wrong <= 7 + earned, `${wrong} were looked up`)
    assert.equal(answers.length - wrong, answers.filter(({ status }) => status === 429).length)
    assert.ok(answers.every(({ session }) => session === ''))
    assert.equal((await app.api('GET', '/user/profile')).status, 200, 'the service has not blocked this address')
    // From the guesser's own address a new key waits some seconds, not a minute.
    await until('a new key to be let in', async () => (await begin(server.url, key)).status === 200)
  } finally {
    await server.close()
  }
})

test('a key and an account have a bounded number of sessions; the longest unused one makes room', async () => {
  const server = await serveHttp({ url: app.url, version: '1', port: 0, log: () => {} })
  try {
    const first = await begin(server.url, app.key)
    const second = await begin(server.url, app.key)
    assert.equal((await begin(server.url, app.key, '127.0.0.1', first.session)).status, 200)
    for (let count = 2; count < 21; count++) assert.equal((await begin(server.url, app.key)).status, 200)
    assert.equal((await begin(server.url, app.key, '127.0.0.1', second.session)).status, 404, 'the longest unused')
    assert.equal((await begin(server.url, app.key, '127.0.0.1', first.session)).status, 200)
    const other = await begin(server.url, app.otherKey)
    // More keys of the first account: its sessions alone make room.
    const keys = [app.key]
    for (let count = 0; count < 2; count++) keys.push((await app.api('POST', '/keys', { name: `k${count}` })).body.key)
    const opened = []
    for (const key of keys)
      for (let count = 0; count < 20; count++) opened.push({ key, ...(await begin(server.url, key)) })
    assert.ok(opened.every(({ status }) => status === 200))
    const alive = await Promise.all(
      opened.map(async ({ key, session }) => (await begin(server.url, key, '127.0.0.1', session)).status === 200),
    )
    assert.equal(alive.filter(Boolean).length, 40)
    assert.equal((await begin(server.url, app.otherKey, '127.0.0.1', other.session)).status, 200)
  } finally {
    await server.close()
  }
})

test('a defect of the server is logged without the key, and its client sees no stack', async () => {
  const lines: string[] = []
  const tunery = { user: { profile: () => Promise.reject(new Error(`broken ${app.key}`)) } } as never
  const server = createMcpServer({ tunery, key: app.key, version: '1', log: (line) => lines.push(line) })
  const { InMemoryTransport } = await import('@modelcontextprotocol/sdk/inMemory.js')
  const [mine, theirs] = InMemoryTransport.createLinkedPair()
  const { client } = newClient()
  await Promise.all([server.connect(theirs), client.connect(mine)])
  const { isError, text } = await call(client, 'who_am_i')
  assert.ok(isError && text.startsWith('internal_error: '), text)
  assert.match(lines[0]!, /who_am_i failed: Error: broken tny_…/)
  await client.close()
})

test('long texts are cut until a result is short, and keep whole characters', () => {
  const rows = Array.from({ length: 20 }, () => ({ text: '🦊'.repeat(20_000), n: 1 }))
  const cut = bounded({ rows }) as { rows: { text: string; n: number }[] }
  assert.ok(JSON.stringify(cut).length < 60_000)
  assert.equal(cut.rows.length, 20)
  assert.match(cut.rows[0]!.text, /^(🦊)+… \(\d+ more characters\)$/u)
  assert.deepEqual(bounded({ a: 'short', b: null }), { a: 'short', b: null })
})
