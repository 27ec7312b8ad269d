// A running answer ends with the key, the session or the link that asked for it, within a second: whole and streamed
// ones, streams of events, downloads, and on every server.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import type http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { ApiError } from '../../contract/errors.ts'
import { allowed } from '../support/allowed-time.ts'
import { newBrowser } from '../support/browser.ts'
import { client, colourRows, until } from '../support/client.ts'
import { sqliteOrFull } from '../support/full.ts'
import { children } from '../support/server.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { type FakeUpstream, startFakeUpstream } from '../support/upstream.ts'

let app: TestApp
let server: FakeUpstream
/** Answers that the upstream has begun and will not end by itself. */
const open = new Set<http.ServerResponse>()
let folder: string
before(async () => {
  server = await startFakeUpstream((_path, body, response) => {
    open.add(response)
    response.once('close', () => open.delete(response))
    if (!body.stream) return
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const event = { id: 'x', object: 'chat.completion.chunk', created: 1, model: 'far/slow' }
    const delta = { ...event, choices: [{ index: 0, delta: { content: 'a' }, finish_reason: null }] }
    response.write(`data: ${JSON.stringify(delta)}\n\n`)
  })
  folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-running-'))
  app = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify([{ model: 'far/slow', url: server.url, kind: 'openai' }]),
    TUNERY_SHARE_LINKS: 'on',
    TUNERY_DEFAULT_TIER: 'enterprise',
    ...(process.env.TEST_DATABASE_URL && { TUNERY_STORAGE_URL: `file://${folder}` }),
  })
})
after(async () => {
  await app.stop()
  server.stop()
  rmSync(folder, { recursive: true, force: true })
})

const messages = [{ role: 'user', content: 'x' }]
const limit_ms = 1000
/** Longer than a lookup is remembered: the request is in progress, and not about to begin. */
async function newKey(body: object = {}, by: Pick<TestApp, 'api'> = app) {
  const { body: made } = await by.api('POST', '/keys', { name: 'k', ...body })
  return { id: made.id as string, key: made.key as string }
}

interface Running {
  /** Resolves with what the client got, and when it ended. */
  ended: Promise<{ text: string; at: number }>
  headers: Record<string, string>
}
/** Begins an answer, and resolves once the upstream has the request. */
async function begin(headers: Record<string, string>, route = '/chat/completions', more: object = {}, url = app.url) {
  const before = open.size
  const asked = route === '/responses' ? { input: 'x' } : { messages }
  const body = JSON.stringify({ model: 'far/slow', ...asked, ...more })
  const ended = fetch(url + route, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  }).then(async (response) => ({ text: await response.text(), at: Date.now() }))
  const refused = ended.then(({ text }) => assert.fail(text))
  refused.catch(() => {})
  await Promise.race([until('the upstream to have the request', () => open.size > before), refused])
  return { ended, headers } satisfies Running
}
const signed = (key: string) => ({ authorization: `Bearer ${key}` })

async function assertEnds(running: Running[], code: string, end: () => Promise<unknown>): Promise<void> {
  await end()
  const from = Date.now()
  for (const { text, at } of await Promise.all(running.map(({ ended }) => ended))) {
    assert.match(text, new RegExp(`"code":"${code}"`))
    assert.ok(!text.includes('[DONE]'))
    assert.ok(at - from < limit_ms, `it took ${at - from} ms`)
  }
  await until('the upstream to be free', () => open.size === 0)
}

test('whole and streamed answers end with a revoked key, and those of other keys go on', {
  timeout: 30_000,
}, async () => {
  const [revoked, other] = [await newKey(), await newKey()]
  const running = [
    await begin(signed(revoked.key)),
    await begin(signed(revoked.key), '/chat/completions', { stream: true }),
    await begin(signed(revoked.key), '/chat/completions', { stream: true, store: true }),
    await begin(signed(revoked.key), '/responses'),
    await begin(signed(revoked.key), '/responses', { stream: true }),
    await begin(signed(revoked.key), '/chat/completions/batch', { messages: undefined, requests: [{ messages }] }),
  ]
  const before = open.size
  const others = await begin(signed(other.key), '/chat/completions', { stream: true })
  const from = Date.now()
  assert.equal((await app.api('DELETE', `/keys/${revoked.id}`)).status, 200)
  for (const { text, at } of await Promise.all(running.map(({ ended }) => ended))) {
    assert.match(text, /invalid_api_key/)
    assert.ok(at - from < limit_ms, `it took ${at - from} ms`)
  }
  await until('the upstream to be free of them', () => open.size === 1 && before === 6)
  for (const each of open) each.end('data: [DONE]\n\n')
  assert.match((await others.ended).text, /\[DONE\]/)
})

test('so they do when a key expires, when its member is removed or may less, and when the account is suspended', {
  timeout: 30_000,
}, async () => {
  const soon = await newKey({ expires_at: new Date(Date.now() + 1500).toISOString() })
  const expiring = await begin(signed(soon.key), '/chat/completions', { stream: true })
  const { text } = await expiring.ended
  assert.match(text, /invalid_api_key/)

  const { body: member } = await app.api('POST', '/members', { name: 'Leaving', role: 'member' })
  const lowered = await begin(signed((await newKey({ user_id: member.id })).key), '/chat/completions', { stream: true })
  await assertEnds([lowered], 'insufficient_permissions', () =>
    app.api('PUT', `/members/${member.id}`, { role: 'viewer' }),
  )
  await app.api('PUT', `/members/${member.id}`, { role: 'member' })
  const removed = await begin(signed((await newKey({ user_id: member.id })).key))
  await assertEnds([removed], 'invalid_api_key', () => app.api('DELETE', `/members/${member.id}`))

  const operator = (await app.services.accounts.createKey('operator', 'operator')).key
  const account = (await app.other.api('GET', '/user/profile')).body.account.id
  const set = (status: string) => client(app.url, operator).api('PUT', `/operator/accounts/${account}`, { status })
  const suspended = await begin(signed(app.otherKey), '/chat/completions', { stream: true })
  await assertEnds([suspended], 'account_suspended', () => set('suspended'))
  await set('active')
})

test('so they do with a session that was ended elsewhere, and with a change that nobody was told of', {
  timeout: 30_000,
}, async () => {
  const page = newBrowser(app)
  const { session } = await page.enter()
  const headers = { cookie: page.cookie(), 'x-csrf-token': page.csrf() }
  const inPage = await begin(headers, '/chat/completions', { stream: true })
  const elsewhere = newBrowser(app)
  await elsewhere.enter()
  await assertEnds([inPage], 'session_ended', () => elsewhere.send('DELETE', `/sessions/${session.id}`))

  // As the command line does, which is another process.
  const silent = await newKey()
  const running = await begin(signed(silent.key))
  await assertEnds([running], 'invalid_api_key', () =>
    app.db.updateTable('api_keys').set({ revoked_at: Date.now() }).where('id', '=', silent.id).execute(),
  )
})

test('a stream of events ends with its key though nothing happens in it', { timeout: 30_000 }, async () => {
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const job = (await app.api('POST', '/fine-tuning/jobs', { model_id: 'test/tiny', dataset_id })).body.id
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${job}/pause`)).status, 200)
  const { id, key } = await newKey()
  const response = await fetch(`${app.url}/fine-tuning/jobs/${job}/events`, { headers: signed(key) })
  const reader = response.body!.getReader()
  assert.equal((await reader.read()).done, false)
  const from = Date.now()
  await app.api('DELETE', `/keys/${id}`)
  while (!(await reader.read()).done);
  assert.ok(Date.now() - from < allowed(limit_ms))
  await app.api('POST', `/fine-tuning/jobs/${job}/cancel`)
})

test('an answer by a shared link ends with the link, whole and streamed', {
  ...sqliteOrFull,
  timeout: 180_000,
}, async () => {
  const model = await app.colourModel()
  const shares = `/fine-tuning/models/${model}/shares`
  const ask = (link: string, stream: boolean) =>
    fetch(`${app.url}/share/chat`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ token: link.split('#')[1], messages, stream }),
    })
  const share = async () => (await app.api('POST', shares, {})).body as { id: string; link: string }
  assert.equal((await ask((await share()).link, false)).status, 200)
  const [engine] = children(process.pid, 'engine/main.ts')
  for (const stream of [true, false]) {
    const { id, link } = await share()
    // An engine that stands still: the answer is in progress and does not end by itself.
    process.kill(engine!, 'SIGSTOP')
    try {
      const ended = ask(link, stream).then(async (response) => ({ text: await response.text(), at: Date.now() }))
      await until('the question to be counted', async () => {
        const { items } = (await app.api('GET', shares)).body
        return items.find((each: { id: string }) => each.id === id).requests_today === 1
      })
      await app.api('DELETE', `${shares}/${id}`)
      const from = Date.now()
      const { text, at } = await ended
      assert.match(text, /"code":"link_invalid"/)
      assert.ok(at - from < limit_ms, `it took ${at - from} ms`)
    } finally {
      process.kill(engine!, 'SIGCONT')
    }
  }
})

test('an answer by a shared link is watched until the link has expired, and until its model is deleted', {
  ...sqliteOrFull,
  timeout: 180_000,
}, async () => {
  const watched = async (end: (id: string, model: string) => Promise<unknown>) => {
    const model = await app.colourModel()
    const { body } = await app.api('POST', `/fine-tuning/models/${model}/shares`, {})
    const controller = new AbortController()
    const aborted = once(controller.signal, 'abort')
    app.services.running.watch<true>(
      'share',
      body.id,
      (current) => (current ? undefined : endedLink),
      (error) => controller.abort(error),
    )
    await end(body.id, model)
    const from = Date.now()
    await aborted
    assert.ok(Date.now() - from < allowed(limit_ms))
  }
  await watched((id) => app.db.updateTable('shares').set({ expires_at: 1 }).where('id', '=', id).execute())
  await watched((_, model) => app.api('DELETE', `/fine-tuning/models/${model}`))
})

test('an estimate ends with its key, and so does its trainer', { ...sqliteOrFull, timeout: 60_000 }, async () => {
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const { id, key } = await newKey()
  const estimate = client(app.url, key).api('POST', '/fine-tuning/jobs/estimate', { model_id: 'test/tiny', dataset_id })
  const trainers = () => children(process.pid, 'trainer.cli')
  await until('its trainer', () => trainers().length > 0)
  await app.api('DELETE', `/keys/${id}`)
  const { status, body } = await estimate
  assert.deepEqual([status, body.error.code], [401, 'invalid_api_key'])
  await until('its trainer to end', () => trainers().length === 0)
})
const endedLink = new ApiError('link_invalid', 'ended')

test('on Postgres a key that one server revokes ends the answers of another', {
  skip: process.env.TEST_DATABASE_URL ? false : 'runs on Postgres: set TEST_DATABASE_URL',
  timeout: 60_000,
}, async () => {
  const upstreams = JSON.stringify([{ model: 'far/slow', url: server.url, kind: 'openai' }])
  const second = await startApp({ TUNERY_UPSTREAMS: upstreams }, { join: app })
  try {
    const { id, key } = await newKey()
    const running = await begin(signed(key), '/chat/completions', { stream: true }, second.url)
    await assertEnds([running], 'invalid_api_key', () => app.api('DELETE', `/keys/${id}`))
  } finally {
    await second.stop()
  }
})
