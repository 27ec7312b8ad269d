// SSRF: no webhook reaches an address outside the public internet, however it is written, resolved or redirected to.
// Canaries listen on this machine's own addresses and must see no connection.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { ConfigError } from '../../server/config.ts'
import { createSend } from '../../server/features/webhooks/send.ts'
import { createAddressRules, readAllowed, resolve } from '../../server/platform/outbound/addresses.ts'
import { BlockedAddress, connect } from '../../server/platform/outbound/connect.ts'
import { readTarget } from '../../server/platform/outbound/target.ts'
import { until } from '../support/client.ts'
import { startCanary } from '../support/receiver.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { startWebhooks } from '../support/webhooks.ts'

let app: TestApp
let canary: Awaited<ReturnType<typeof startCanary>>
before(async () => {
  canary = await startCanary()
  app = await startApp()
})
after(async () => {
  await app.stop()
  canary.stop()
})

const corpus = () =>
  readFileSync(path.join(root, 'tests/fixtures/blocked-urls.txt'), 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('# '))
    .map((line) => line.replaceAll('{port}', String(canary.port)))
const closed = createAddressRules([])
const signal = () => AbortSignal.timeout(15_000)
const send = (allow: string, lookUp = resolve) =>
  createSend({ rules: createAddressRules(readAllowed(allow)), resolve: lookUp, timeout_ms: 15_000 })

test('the canaries see allowed connections by IPv4, IPv6 and name', async () => {
  const before = canary.connections()
  const open = send('127.0.0.0/8,[::1]/128,0.0.0.0/32')
  const urls = ['127.0.0.1', '2130706433', '0x7f.1', '[::1]', '[::ffff:127.0.0.1]', '0', 'localhost', '127.1.2.3'].map(
    (host) => `http://${host}:${canary.port}/`,
  )
  for (const url of urls) assert.equal((await open(url, {}, '{}', signal())).response_status, 200, url)
  assert.equal(canary.connections() - before, urls.length)
})

test('each of more than 200 spellings is a 400 when a webhook is created or changed', async () => {
  const before = canary.connections()
  const urls = corpus()
  assert.ok(urls.length >= 200 && new Set(urls).size === urls.length)
  const webhook = (
    await app.api('POST', '/webhooks', {
      url: 'https://example.com/',
      events: ['model.deployed'],
      secret: 'a secret of ours',
    })
  ).body
  for (const url of urls) {
    const answer = await app.api('POST', '/webhooks', { url, events: ['model.deployed'] })
    assert.deepEqual(
      [answer.status, answer.body.error?.code],
      [400, /^[^/]*\/\/[^/\\#?]*@/.test(url) ? 'invalid_request' : 'address_blocked'],
      url,
    )
    assert.equal((await app.api('PUT', `/webhooks/${webhook.id}`, { url })).status, 400, url)
  }
  assert.deepEqual((await app.api('GET', '/webhooks')).body.items, [webhook])
  await app.api('DELETE', `/webhooks/${webhook.id}`)
  assert.equal(canary.connections(), before)
})

test('the connection itself refuses each of them, without the check of the URL', async () => {
  const before = canary.connections()
  for (const text of corpus()) {
    const url = new URL(text)
    const host = url.hostname.replace(/^\[|\]$/g, '')
    const inside = async () => ['127.0.0.1', '::1', '::ffff:127.0.0.1', '10.0.0.1']
    await assert.rejects(
      connect({ url, host, port: Number(url.port) || 80 }, closed, inside, signal()),
      BlockedAddress,
      text,
    )
  }
  assert.equal(canary.connections(), before)
})

test('public addresses may be reached', () => {
  for (const address of [
    '8.8.8.8',
    '1.1.1.1',
    '93.184.215.14',
    '172.32.0.1',
    '100.63.255.255',
    '100.128.0.1',
    '192.0.1.1',
    '198.20.0.1',
    '223.255.255.255',
  ])
    assert.equal(closed.refusal(address, 443), undefined, address)
  for (const address of ['2607:f8b0:4005:805::200e', '2a00:1450:4001:81b::200e', '2606:4700::1111', '::ffff:8.8.8.8'])
    assert.equal(closed.refusal(address, 443), undefined, address)
  for (const url of [
    'https://example.com/hook',
    'http://example.com:8080/',
    'https://8.8.8.8/',
    'https://[2606:4700::1111]/',
    'https://internal.example.com/',
  ])
    assert.ok(readTarget(url, closed).host)
  for (const nothing of ['', 'localhost', '127.0.0.1 ', '1.2.3'])
    assert.ok(closed.refusal(nothing, 80), 'text that is not an address is refused')
})

test('allowed ranges and ports may be reached; metadata services and addresses inside tunnels stay blocked', () => {
  const rules = createAddressRules(
    readAllowed('10.1.0.0/16:8080, 127.0.0.0/8,[fd00::]/8:443,169.254.0.0/16,[64:ff9b::]/96,[2002::]/16'),
  )
  const allowed = [
    ['10.1.2.3', 8080],
    ['127.9.9.9', 1],
    ['::ffff:127.0.0.1', 80],
    ['fd12::1', 443],
    ['169.254.1.1', 80],
    ['64:ff9b::808:808', 80],
    ['64:ff9b::a01:203', 8080],
    ['2002:808:808::1', 80],
  ] as const
  for (const [address, port] of allowed) assert.equal(rules.refusal(address, port), undefined, address)
  const refused = [
    ['10.1.2.3', 80],
    ['10.2.0.1', 8080],
    ['fd12::1', 80],
    ['::1', 80],
    ['0.0.0.0', 80],
    ['169.254.169.254', 80],
    ['::ffff:169.254.169.254', 80],
    ['fd00:ec2::254', 443],
    ['64:ff9b::a9fe:a9fe', 80],
    ['64:ff9b::a00:1', 80],
    ['64:ff9b::a01:203', 80],
    ['2002:c0a8:1::1', 80],
  ] as const
  for (const [address, port] of refused) assert.ok(rules.refusal(address, port), `${address} ${port}`)
})

test('an invalid list of ranges prevents the service from starting', () => {
  for (const text of [
    'localhost',
    '127.0.0.1',
    '127.0.0.1:80',
    '127.0.0.0/33',
    '::1/128',
    '[::1]/129',
    '10.0.0.0/8:0',
    '10.0.0.0/8:65536',
    '[10.0.0.0]/8',
    '1.2.3/8',
  ])
    assert.throws(() => readAllowed(text), ConfigError, text)
  assert.deepEqual(
    [readAllowed(undefined), readAllowed(' '), readAllowed('127.0.0.0/8:80,[::1]/128:80,').length],
    [[], [], 2],
  )
})

test('a name that resolves to a private address is a blocked delivery, and is not retried', async () => {
  const before = canary.connections()
  const answers: Record<string, string[]> = {
    'loopback.example.com': ['127.0.0.1'],
    'six.example.com': ['::1'],
    'mapped.example.com': ['::ffff:127.0.0.1'],
    'metadata.example.com': ['169.254.169.254'],
    'tunnel.example.com': ['64:ff9b::7f00:1', '2002:7f00:1::1', 'fe80::1%lo'],
    'nonsense.example.com': ['not an address', ''],
  }
  const it = await startWebhooks({ allow: '', resolve: async (name) => answers[name]! })
  for (const name of Object.keys(answers)) {
    const id = await it.register(`http://${name}:${canary.port}/`)
    await it.happen('anything')
    const delivery = await until('its end', async () =>
      (await it.deliveries(id)).find(({ status }) => status !== 'pending'),
    )
    assert.deepEqual(
      [delivery.status, delivery.attempt_count, delivery.next_attempt_at],
      ['blocked_address', 1, null],
      name,
    )
    assert.deepEqual(
      [delivery.last_attempt!.error!.code, delivery.last_attempt!.response_status],
      ['blocked_address', null],
    )
  }
  await it.stop()
  assert.equal(canary.connections(), before)
})

// 127.0.0.2, which the operator has allowed, replaces a public address: a test must not reach foreign machines.
test('DNS rebinding: each attempt resolves once and connects to the checked address', async () => {
  const got: string[] = []
  const outside = net.createServer((socket) => {
    socket
      .on('error', () => {})
      .once('data', (data) => {
        got.push(String(data))
        socket.end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')
      })
  })
  let strangers = 0
  const trap = net.createServer((socket) => {
    strangers++
    socket.destroy()
  })
  // The trap takes any free port first: other tests listen on 127.0.0.1, and none on 127.0.0.2.
  await new Promise<void>((done) => trap.listen(0, '127.0.0.1', done))
  const { port } = trap.address() as net.AddressInfo
  await new Promise<void>((done) => outside.listen(port, '127.0.0.2', done))
  let lookups = 0
  const rebinding = async () => [lookups++ === 0 ? '127.0.0.2' : '127.0.0.1']
  const one = send('127.0.0.2/32', rebinding)
  assert.equal((await one(`http://rebind.example.com:${port}/`, {}, '{}', signal())).response_status, 200)
  assert.equal(lookups, 1)
  assert.match(got[0]!, new RegExp(`host: rebind.example.com:${port}\r\n`, 'i'))
  assert.equal((await one(`http://rebind.example.com:${port}/`, {}, '{}', signal())).error?.code, 'blocked_address')
  const both = send('127.0.0.2/32', async () => ['127.0.0.1', '127.0.0.2'])
  assert.equal((await both(`http://both.example.com:${port}/`, {}, '{}', signal())).response_status, 200)
  assert.deepEqual([got.length, strangers], [2, 0])
  trap.close()
  outside.close()
})

test('an address that is blocked once it is connected gets no byte', async () => {
  let bytes = 0
  const server = net.createServer(
    (socket) => void socket.on('error', () => {}).on('data', (data) => (bytes += data.length)),
  )
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  const { port } = server.address() as net.AddressInfo
  let checks = 0
  const changing = { allowsPrivate: true, refusal: () => (checks++ === 0 ? undefined : 'it is another one') }
  for (const url of [`http://127.0.0.1:${port}/`, `https://127.0.0.1:${port}/`]) {
    checks = 0
    await assert.rejects(
      connect({ url: new URL(url), host: '127.0.0.1', port }, changing, resolve, signal()),
      BlockedAddress,
    )
    assert.equal(checks, 2)
  }
  await new Promise((done) => server.close(done))
  assert.equal(bytes, 0)
})
