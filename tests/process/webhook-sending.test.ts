// One delivery attempt: what counts as success, its timeout, what is stored of a response, and that redirects are not
// followed.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import https from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { createSend, type Outcome } from '../../server/features/webhooks/send.ts'
import { createAddressRules, readAllowed, resolve } from '../../server/platform/outbound/addresses.ts'
import { allowed } from '../support/allowed-time.ts'
import { makeCertificate, noOpenssl } from '../support/certificate.ts'
import { startCanary, startReceiver } from '../support/receiver.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-sending-'))
after(() => rmSync(folder, { recursive: true }))

const rules = createAddressRules(readAllowed('127.0.0.0/8'))
const never = new AbortController().signal
const post = (url: string, timeout_ms = 15_000, lookUp = resolve): Promise<Outcome> =>
  createSend({ rules, resolve: lookUp, timeout_ms })(url, { 'content-type': 'application/json' }, '{"a":1}', never)

/** A server with a custom connection handler. */
async function raw(handle: (socket: Socket) => void) {
  const sockets = new Set<Socket>()
  const server = net.createServer((socket) => {
    sockets.add(socket.on('error', () => {}))
    handle(socket)
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    stop() {
      for (const socket of sockets) socket.destroy()
      server.close()
    },
  }
}

test('only 2xx is success; redirects are not followed', async () => {
  const canary = await startCanary()
  const receiver = await startReceiver((request, response) => {
    const code = Number(request.path.slice(1))
    response.writeHead(code, code >= 300 && code < 400 ? { location: `http://127.0.0.1:${canary.port}/` } : {}).end()
  })
  for (const code of [200, 201, 202, 204, 299])
    assert.equal((await post(`http://127.0.0.1:${receiver.port}/${code}`)).error, null, String(code))
  for (const code of [300, 301, 302, 303, 304, 307, 308, 400, 401, 404, 410, 429, 500, 502, 599]) {
    const { response_status, error } = await post(`http://127.0.0.1:${receiver.port}/${code}`)
    assert.deepEqual([response_status, error?.code], [code, 'http_error'])
  }
  assert.deepEqual([canary.connections(), receiver.received.length], [0, 20])
  assert.deepEqual(Object.keys(receiver.received[0]!.headers).sort(), [
    'connection',
    'content-length',
    'content-type',
    'host',
  ])
  receiver.stop()
  canary.stop()
})

test('an attempt times out wherever the receiver hangs; a status that was already received counts', async () => {
  const silent = await raw(() => {})
  const trickling = await raw((socket) => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning')
  })
  const announcing = await raw((socket) => {
    const timer = setInterval(() => socket.write('HTTP/1.1 102 Processing\r\n\r\n'), 20)
    socket.on('close', () => clearInterval(timer))
  })
  assert.equal((await post(silent.url, 300)).error?.code, 'timeout')
  assert.equal((await post(announcing.url, 300)).error?.code, 'timeout')
  assert.equal((await post(silent.url.replace('http:', 'https:'), 300)).error?.code, 'timeout')
  const late = await post(trickling.url, 300)
  assert.deepEqual([late.response_status, late.response_body, late.error], [200, 'beginning', null])
  const noNames = await post(
    'http://slow.example.com/',
    300,
    (_, signal) => new Promise((_resolve, reject) => signal.addEventListener('abort', reject)),
  )
  assert.equal(noNames.error?.code, 'timeout')
  for (const receiver of [silent, trickling, announcing]) receiver.stop()
})

test('an attempt ends at the status: a receiver that drips its body holds no slot', async () => {
  const dripping = await raw((socket) => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n')
    const timer = setInterval(() => socket.write('x'), 20)
    socket.on('close', () => clearInterval(timer))
  })
  const began = performance.now()
  const outcomes = await Promise.all(Array.from({ length: 50 }, () => post(dripping.url)))
  assert.ok(performance.now() - began < allowed(3000), 'not the 15 s of an attempt')
  for (const { response_status, error, duration_ms } of outcomes)
    assert.deepEqual([response_status, error, duration_ms < 2000], [200, null, true])
  dripping.stop()
})

test('only the first kB of an endless response is read and stored', async () => {
  let ended: Promise<unknown> = Promise.resolve()
  const endless = await raw((socket) => {
    ended = new Promise((done) => socket.on('close', done))
    socket.write('HTTP/1.1 200 OK\r\n\r\n')
    const more = () => {
      while (!socket.destroyed && socket.write('x\0'.repeat(5000)));
    }
    socket.on('drain', more)
    more()
  })
  const { response_body, error } = await post(endless.url)
  assert.deepEqual([response_body, error], ['x\ufffd'.repeat(512), null])
  await ended
  endless.stop()
})

test('a malformed response is an error outcome, never an exception', async () => {
  for (const reply of [
    '',
    'nonsense\r\n\r\n',
    'HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n',
    `HTTP/1.1 200 OK\r\nx: ${'y'.repeat(100_000)}\r\n\r\n`,
  ]) {
    const server = await raw((socket) => void socket.once('data', () => socket.end(reply)))
    const { error, response_status } = await post(server.url)
    assert.deepEqual([error?.code, response_status], ['connection_failed', null], reply.slice(0, 40))
    server.stop()
  }
  const resets = await raw((socket) => void socket.once('data', () => socket.resetAndDestroy()))
  assert.equal((await post(resets.url)).error?.code, 'connection_failed')
  resets.stop()
  assert.equal((await post(resets.url)).error?.code, 'connection_failed')
  assert.equal((await post('http://nobody.example.com/', 15_000, async () => [])).error?.code, 'dns_failed')
  const failing = async () => Promise.reject(Object.assign(new Error('no'), { code: 'ESERVFAIL' }))
  assert.match(
    (await post('http://nobody.example.com/', 15_000, failing)).error!.message,
    /do not answer \(ESERVFAIL\)/,
  )
})

test('if an address does not answer, the next address of the name is tried', async () => {
  const receiver = await startReceiver()
  const { response_status } = await post(`http://two.example.com:${receiver.port}/`, 15_000, async () => [
    '127.0.0.9',
    '127.0.0.1',
  ])
  assert.equal(response_status, 200)
  receiver.stop()
})

test('a certificate must be trusted and match the host; proxy environment variables are ignored', {
  skip: noOpenssl,
}, async () => {
  const { key, certificate } = makeCertificate(folder, 'hooks.example.com')
  let requests = 0
  const server = https.createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, (_, response) => {
    requests++
    response.end()
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  const { port } = server.address() as AddressInfo
  const proxy = await startCanary()
  const proxies = Object.fromEntries(
    ['HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY', 'http_proxy', 'https_proxy'].map((name) => [
      name,
      `http://127.0.0.1:${proxy.port}`,
    ]),
  )
  /** In a child process, because trusted certificates and proxies are fixed at its start. */
  async function ask(host: string, trusted: boolean): Promise<string> {
    const module = (name: string) => JSON.stringify(new URL(`../../server/${name}.ts`, import.meta.url).href)
    const script = `
      const { createSend } = await import(${module('features/webhooks/send')})
      const { createAddressRules, readAllowed } = await import(${module('platform/outbound/addresses')})
      const rules = createAddressRules(readAllowed('127.0.0.0/8'))
      const send = createSend({ rules, resolve: async () => ['127.0.0.1'], timeout_ms: 10_000 })
      const { response_status, error } = await send('https://${host}:${port}/', {}, '{}', new AbortController().signal)
      console.log(response_status ?? error.code)`
    const env = {
      ...process.env,
      ...proxies,
      NODE_USE_ENV_PROXY: '1',
      ...(trusted && { NODE_EXTRA_CA_CERTS: certificate }),
    }
    return (await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { env })).stdout.trim()
  }
  assert.equal(await ask('hooks.example.com', true), '200')
  assert.equal(await ask('hooks.example.com', false), 'tls_failed')
  assert.equal(await ask('other.example.com', true), 'tls_failed')
  assert.equal(await ask('127.0.0.1', true), 'tls_failed')
  assert.deepEqual([requests, proxy.connections()], [1, 0])
  server.close()
  proxy.stop()
})
