// Limits for clients before authentication: time, connections, size of the request head.
import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readlinkSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { test } from 'node:test'
import Database from 'better-sqlite3'
import { allowed } from '../support/allowed-time.ts'
import { colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { full } from '../support/full.ts'
import { appOfTests, startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const head_ms = 400
const body_ms = 1000
const unread_ms = 800
const app = appOfTests({}, { times: { head_ms, body_ms, idle_ms: 500, unread_ms } })

/** Sends a piece every `every_ms` until the connection closes or no piece is left. */
function trickle({ socket }: ReturnType<typeof connect>, every_ms: number, next: () => string | Buffer | undefined) {
  const timer = setInterval(() => {
    const piece = socket.destroyed ? undefined : next()
    if (piece === undefined) clearInterval(timer)
    else socket.write(piece)
  }, every_ms)
  socket.once('close', () => clearInterval(timer))
}

test('a request head that is too large (with its URL) or has too many fields is refused', async () => {
  const long = await app.api('GET', `/datasets/?after=${'x'.repeat(20_000)}`)
  assert.deepEqual([long.status, long.body.error.code], [431, 'invalid_request'])
  const many = Object.fromEntries(Array.from({ length: 120 }, (_, index) => [`x-${index}`, '1']))
  const answer = await app.api('GET', '/datasets/', undefined, many)
  assert.deepEqual([answer.status, answer.body.error.code], [400, 'invalid_request'])
  assert.match(answer.body.error.message, /100 header fields/)
})

test('a connection that sends nothing, or a request head byte by byte, is closed', async () => {
  const [silent, slow] = [connect(app.address), connect(app.address)]
  const head = `GET /v1/datasets/ HTTP/1.1\r\nHost: x\r\nX-Slow: ${'x'.repeat(10_000)}`
  let at = 0
  trickle(slow, 20, () => head[at++])
  const began = performance.now()
  await until('both to be closed', () => silent.closed && slow.closed)
  assert.ok(performance.now() - began < allowed(8 * head_ms + 2500))
  assert.match(slow.text, /^HTTP\/1\.1 408 .*"code":"invalid_request"/s)
})

test('an idle keep-alive connection is closed, and a body without progress ends with 408', async () => {
  const idle = connect(app.address)
  idle.socket.write('GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n')
  const stalled = connect(app.address)
  const head =
    `POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${app.key}\r\n` +
    'Content-Type: application/json\r\n'
  stalled.socket.write(`${head}Content-Length: 100000\r\n\r\n{"model":`)
  const dripping = connect(app.address)
  dripping.socket.write(`${head}Transfer-Encoding: chunked\r\n\r\n`)
  trickle(dripping, 50, () => '1\r\n{\r\n')
  await until('all to be closed', () => idle.closed && stalled.closed && dripping.closed)
  assert.match(idle.text, /^HTTP\/1\.1 200 /)
  for (const connection of [stalled, dripping])
    assert.match(connection.text, /^HTTP\/1\.1 408 .*stood still, or came slower than 4 KiB a second, for 1 s/s)
})

test('a client without a key that keeps sending after its refusal is disconnected', async () => {
  const stranger = connect(app.address)
  stranger.socket.write(
    'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
      'Content-Length: 8000000\r\n\r\n',
  )
  trickle(stranger, 50, () => 'x')
  await until('it to be closed', () => stranger.closed)
  assert.match(stranger.text, /^HTTP\/1\.1 401 /)
})

test('a slow upload is not cut while it makes progress; a stalled one leaves nothing behind', full, async () => {
  const row = `${colourRows(1)}\n`
  const content = row.repeat(Math.ceil(60_000 / row.length))
  const form = `--b\r\nContent-Disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n${content}\r\n--b--\r\n`
  const head =
    `POST /v1/datasets/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${app.key}\r\n` +
    `Content-Type: multipart/form-data; boundary=b\r\nContent-Length: ${form.length}\r\n\r\n`
  await app.upload(colourRows(1))
  const before = (await app.api('GET', '/datasets/?limit=100')).body.items.length
  const files = () => readdirSync(path.join(app.dataDir, 'datasets'))
  const filesBefore = files().length
  const slow = connect(app.address)
  slow.socket.write(head)
  let at = 0
  // Six times the limit without progress.
  const piece = Math.ceil(form.length / 60)
  trickle(slow, (6 * body_ms) / 60, () => {
    const from = at
    at += piece
    return from < form.length ? form.slice(from, at) : undefined
  })
  const stalled = connect(app.address)
  stalled.socket.write(head + form.slice(0, 30_000))
  await until('the slow one to be answered', () => slow.text.includes('\r\n\r\n'))
  assert.match(slow.text, /^HTTP\/1\.1 201 /)
  await until('the stalled one to be closed', () => stalled.closed)
  assert.match(stalled.text, /^HTTP\/1\.1 4/)
  assert.equal((await app.api('GET', '/datasets/?limit=100')).body.items.length, before + 1)
  await until('its part to be removed from the disk', () => files().length === filesBefore + 1)
  slow.socket.destroy()
})

test('a client that waits long for an answer is not disconnected', async () => {
  const agent = new http.Agent({ keepAlive: true })
  const dataset = (await app.upload(colourRows(8))).body.id
  const body = JSON.stringify({ model_id: tiny, dataset_id: dataset, config: { training_config: { epochs: 50 } } })
  const job = (await app.api('POST', '/fine-tuning/jobs', body)).body.id
  const began = performance.now()
  const closed = new Promise<string>((resolve, reject) => {
    const headers = { authorization: `Bearer ${app.key}` }
    http
      .get(`${app.url}/fine-tuning/jobs/${job}/events`, { agent, headers }, (response) => {
        let text = ''
        response.on('data', (part) => {
          text += part
        })
        response.on('end', () => resolve(text)).on('error', reject)
      })
      .on('error', reject)
  })
  await until('twice the body timeout', () => performance.now() - began > 2 * body_ms)
  await app.api('POST', `/fine-tuning/jobs/${job}/cancel`)
  assert.match(await closed, /"type":"status"/)
  agent.destroy()
})

/** Asks over its own connection; `more` are header lines. */
function ask(address: string, route: string, more = '') {
  const connection = connect(address)
  connection.socket.write(`GET ${route} HTTP/1.1\r\nHost: x\r\n${more}\r\n`)
  return connection
}
const statusOf = ({ text }: { text: string }) => Number(text.split(' ')[1])
const answered = async (connection: ReturnType<typeof connect>) => {
  await until('an answer', () => connection.text.includes('\r\n\r\n') || connection.closed)
  return statusOf(connection)
}

/** A request without a key whose body does not come. */
async function holdBody(address: string, more = '') {
  const connection = connect(address)
  connection.socket.write(
    `POST /v1/sign-in/link HTTP/1.1\r\nHost: x\r\n${more}Content-Type: application/json\r\n` +
      'Expect: 100-continue\r\nContent-Length: 50\r\n\r\n{',
  )
  await until('its head to be read', () => connection.text.includes('100 Continue') || connection.closed)
  return connection
}

test('silent connections and unused ones make room; when all are in use, health is still answered', async () => {
  const few = await startApp({ TUNERY_MAX_CONNECTIONS: '40', TUNERY_MAX_CONNECTIONS_PER_ADDRESS: '16' })
  const opened: ReturnType<typeof connect>[] = []
  try {
    const bearer = (key: string) => `Authorization: Bearer ${key}\r\n`
    const dataset_id = (await few.upload(colourRows(8))).body.id
    const { id } = (await few.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id })).body
    await few.api('POST', `/fine-tuning/jobs/${id}/pause`)
    const silent = Array.from({ length: 60 }, () => connect(few.address))
    opened.push(...silent)
    await until('the first of too many silent ones to be closed', () => silent[0]!.closed)
    assert.equal(await answered(ask(few.address, '/v1/keys', bearer(few.otherKey))), 200, 'others get in')
    // No account may have more than a quarter of the connections in use.
    const streams = Array.from({ length: 40 }, () =>
      ask(few.address, `/v1/fine-tuning/jobs/${id}/events`, bearer(few.key)),
    )
    opened.push(...streams)
    const statuses = await Promise.all(streams.map(answered))
    assert.equal(statuses.filter((status) => status === 200).length, 10)
    const refused = streams.find((stream) => statusOf(stream) === 429)!
    assert.match(refused.text, /"limit":"connections_per_account","max":10/)
    assert.equal(await answered(ask(few.address, '/v1/keys', bearer(few.otherKey))), 200)
    assert.equal(await answered(ask(few.address, '/health/live')), 200)
    // All that may be in use, in use: bodies that have not come yet, of an address without a key.
    for (let n = 0; n < 16; n++) opened.push(await holdBody(few.address))
    const over = ask(few.address, '/v1/sign-in')
    assert.equal(await answered(over), 429)
    assert.match(over.text, /"limit":"connections_per_address","max":16/)
    for (const route of ['/health/live', '/health/ready']) assert.equal(await answered(ask(few.address, route)), 200)
    for (const { socket } of streams) socket.destroy()
    await until('the account to be let in again', async () => (await few.api('GET', '/keys')).status === 200)
  } finally {
    for (const { socket } of opened) socket.destroy()
    await few.stop()
  }
})

test('behind a trusted proxy the forwarded address counts; a header of anybody else does not', async () => {
  for (const [proxies, expected] of [
    ['127.0.0.0/8', [429, 401]],
    ['10.0.0.0/8', [429, 429]],
  ] as const) {
    const few = await startApp({ TUNERY_MAX_CONNECTIONS_PER_ADDRESS: '3', TUNERY_TRUSTED_PROXIES: proxies })
    const opened: ReturnType<typeof connect>[] = []
    try {
      for (let n = 0; n < 3; n++) opened.push(await holdBody(few.address, 'X-Forwarded-For: 203.0.113.1\r\n'))
      const from = (address: string) => answered(ask(few.address, '/v1/keys', `X-Forwarded-For: ${address}\r\n`))
      assert.deepEqual([await from('203.0.113.1'), await from('203.0.113.2')], expected)
    } finally {
      for (const { socket } of opened) socket.destroy()
      await few.stop()
    }
  }
})

test('streams of events are bounded by the tier', async () => {
  const { services, api, url, key } = app
  const plan = services.limits.acquireEventStream({ account_id: 'acc_streams', tier: 'free' })
  assert.ok('release' in plan)
  const others = Array.from({ length: 19 }, () =>
    services.limits.acquireEventStream({ account_id: 'acc_streams', tier: 'free' }),
  )
  const over = services.limits.acquireEventStream({ account_id: 'acc_streams', tier: 'free' })
  assert.ok('refused' in over && over.refused.limit === 'max_event_streams' && over.refused.max === 20)
  assert.ok('release' in services.limits.acquireEventStream({ account_id: 'acc_other', tier: 'free' }))
  plan.release()
  assert.ok('release' in services.limits.acquireEventStream({ account_id: 'acc_streams', tier: 'free' }))
  assert.ok(others.every((other) => 'release' in other))
  // Over HTTP, and a stream that has ended gives its place back.
  await app.db.updateTable('accounts').set({ tier: 'free' }).where('id', '=', app.owner.account_id).execute()
  try {
    const dataset_id = (await app.upload(colourRows(8))).body.id
    const { id } = (await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id })).body
    await api('POST', `/fine-tuning/jobs/${id}/pause`)
    await until('the tier to be known', async () => (await api('GET', '/user/profile')).body.limits.requests_per_minute)
    const route = `${new URL(url).pathname}/fine-tuning/jobs/${id}/events`
    const streams: ReturnType<typeof connect>[] = []
    for (let n = 0; n < 20; n++) streams.push(ask(app.address, route, `Authorization: Bearer ${key}\r\n`))
    await Promise.all(streams.map(answered))
    assert.ok(streams.every((stream) => statusOf(stream) === 200))
    const { status, body } = await api('GET', `/fine-tuning/jobs/${id}/events`)
    assert.deepEqual([status, body.error.details.limit], [429, 'max_event_streams'])
    streams[0]!.socket.destroy()
    await until('its place to be free', async () => {
      const again = ask(app.address, route, `Authorization: Bearer ${key}\r\n`)
      streams.push(again)
      return (await answered(again)) === 200
    })
    for (const { socket } of streams) socket.destroy()
  } finally {
    await app.db.updateTable('accounts').set({ tier: 'enterprise' }).where('id', '=', app.owner.account_id).execute()
  }
})

test('a download whose client stops reading is ended and its file closed; a slow reader is not cut', async () => {
  const id = 'exp_slow'
  const [folder, size_bytes] = [path.join(app.dataDir, 'exports', id), 64e6]
  mkdirSync(folder, { recursive: true })
  writeFileSync(path.join(folder, 'm.gguf'), Buffer.alloc(size_bytes))
  const db = new Database(path.join(app.dataDir, 'tunery.db'))
  db.prepare(
    `insert into exports (id, account_id, model_id, format, merge, status, files_json, created_at)
     values (?, ?, 'mdl_1', 'gguf', 1, 'ready', ?, 1)`,
  ).run(id, app.owner.account_id, JSON.stringify([{ name: 'm.gguf', size_bytes, sha256: 'x' }]))
  db.close()
  const ask = () => {
    const connection = connect(app.address)
    connection.socket.write(
      `GET /v1/exports/${id}/download HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${app.key}\r\n\r\n`,
    )
    return connection
  }
  const [stopped, slow] = [ask(), ask()]
  for (const { socket } of [stopped, slow]) socket.once('data', () => socket.pause())
  const open = () => readdirSync('/proc/self/fd').filter((fd) => linkOf(`/proc/self/fd/${fd}`).includes(id)).length
  await until('both to have begun', () => open() === 2)
  const reading = setInterval(() => slow.socket.resume().once('data', () => slow.socket.pause()), 10)
  await until('the file to be closed for one', () => open() === 1)
  assert.ok(!slow.closed && slow.text.length < size_bytes, 'it is the one that was not read')
  clearInterval(reading)
  await until('the file to be closed for the other', () => open() === 0)
  for (const { socket } of [stopped, slow]) socket.destroy()
})
function linkOf(file: string): string {
  try {
    return readlinkSync(file)
  } catch {
    return ''
  }
}
