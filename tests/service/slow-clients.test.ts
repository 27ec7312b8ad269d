// Limits for clients before authentication: time, connections, size of the request head.
import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readlinkSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { after, before, test } from 'node:test'
import Database from 'better-sqlite3'
import { colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const head_ms = 400
const body_ms = 1000
const unread_ms = 800
let app: TestApp
before(async () => {
  app = await startApp({}, { times: { head_ms, body_ms, idle_ms: 500, unread_ms } })
})
after(() => app.stop())

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
  assert.ok(performance.now() - began < 8 * head_ms + 2500)
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
  for (const each of [stalled, dripping]) assert.match(each.text, /^HTTP\/1\.1 408 .*stood still for 1 s/s)
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

test('connections above the limit are closed, and others keep working', async () => {
  const few = await startApp({ TUNERY_MAX_CONNECTIONS: '2' })
  try {
    const [first, second] = [connect(few.address), connect(few.address)]
    first.socket.write('GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n')
    second.socket.write('GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n')
    await until('both to be answered', () => first.text && second.text)
    const third = connect(few.address)
    third.socket.write('GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n')
    await until('the third to be closed', () => third.closed)
    assert.equal(third.text, '')
    first.socket.end()
    await until('the first to be closed', () => first.closed)
    const fourth = connect(few.address)
    fourth.socket.write('GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n')
    await until('the fourth to be answered', () => fourth.text)
    assert.match(fourth.text, /^HTTP\/1\.1 200 /)
    for (const each of [second, fourth]) each.socket.destroy()
  } finally {
    await few.stop()
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
