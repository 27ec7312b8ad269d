// One client takes connections, sessions and slots: silent sockets, streams, invented keys, receivers that drip.
import assert from 'node:assert/strict'
import http from 'node:http'
import net from 'node:net'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { newKey } from '../../lib/key-format.ts'
import { type HttpServer, serveHttp } from '../../mcp/index.ts'
import { blockedSeconds, blockedSince } from '../support/blocked.ts'
import { client, colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const connections = 40
let folder: DataFolder
let server: RunningServer
let address: string
let hostile: ReturnType<typeof client>
let paying: ReturnType<typeof client>
let honest: ReturnType<typeof client>
let hostileKey: string
let honestKey: string
let mcp: HttpServer
before(async () => {
  folder = dataFolder('connections', {
    TUNERY_MAX_CONNECTIONS: String(connections),
    TUNERY_DEFAULT_TIER: 'free',
    TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8',
  })
  server = await folder.start()
  address = new URL(server.url).origin
  const keyOf = (name: string, tier: string) => folder.tunery('accounts', 'create', '--name', name, '--tier', tier).key!
  hostileKey = keyOf('hostile', 'free')
  honestKey = keyOf('honest', 'enterprise')
  paying = client(server.url, keyOf('paying', 'pro'))
  hostile = client(server.url, hostileKey)
  honest = client(server.url, honestKey)
  mcp = await serveHttp({ url: server.url, version: '1', port: 0, log: () => {} })
})
after(async () => {
  await mcp.close()
  folder.remove()
})

const opened: net.Socket[] = []
const hold = (text = '') => {
  const { socket } = connect(address)
  opened.push(socket)
  if (text) socket.write(text)
  return socket
}
const release = () => {
  for (const socket of opened.splice(0)) socket.destroy()
}

/** Health and another account's request, each over a new connection, in milliseconds; throws if one fails. */
async function probe(): Promise<void> {
  for (const [route, key] of [
    ['/health/live', undefined],
    ['/health/ready', undefined],
    ['/v1/keys', honestKey],
  ] as const) {
    const status = await new Promise<number>((resolve, reject) => {
      const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` }
      const request = http.get(address + route, { agent: false, headers, timeout: 5000 }, (response) => {
        response.resume().on('end', () => resolve(response.statusCode!))
      })
      request.on('error', reject).on('timeout', () => request.destroy(new Error(`${route} is not answered`)))
    })
    assert.equal(status, 200, route)
  }
}

test('400 silent sockets, and heads that do not end, close the service to nobody', async () => {
  try {
    const flood = setInterval(() => {
      for (let n = 0; n < 10; n++) hold(n % 2 ? 'GET /v1/keys HTTP/1.1\r\nHost: x\r\nX-Slow: ' : '')
    }, 50)
    for (let round = 0; round < 20; round++) {
      await probe()
      await sleep(100)
    }
    clearInterval(flood)
  } finally {
    release()
  }
})

test('20,000 requests in one write, without a key, hold nobody up', async () => {
  const before = await blockedSeconds(server.url)
  for (const target of [address, mcp.url]) {
    const head = `GET /nothing HTTP/1.1\r\nHost: ${new URL(target).host}\r\n\r\n`
    const flood = connect(target)
    flood.socket.write(head.repeat(20_000))
    await probe()
    await until('its end', () => flood.closed)
  }
  // The watch reports two beats later.
  await sleep(300)
  assert.equal(await blockedSince(before, server.url), undefined)
  // A few are answered.
  const some = connect(address)
  some.socket.write('GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(16))
  await until('16 answers', () => some.text.match(/HTTP\/1.1 200/g)?.length === 16)
  some.socket.destroy()
})

test('40 streams of a paused job, 40 bodies that do not come: others and health are answered', async () => {
  const dataset_id = (await hostile.upload(colourRows(8))).body.id
  const { id } = (await hostile.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id })).body
  await hostile.api('POST', `/fine-tuning/jobs/${id}/pause`)
  const head = `Host: x\r\nAuthorization: Bearer ${hostileKey}\r\n`
  try {
    for (let n = 0; n < connections; n++) {
      hold(`GET /v1/fine-tuning/jobs/${id}/events HTTP/1.1\r\n${head}\r\n`)
      hold(
        `POST /v1/datasets/ HTTP/1.1\r\n${head}Content-Type: multipart/form-data; boundary=b\r\nContent-Length: ` +
          '99\r\n\r\n',
      )
    }
    for (let round = 0; round < 20; round++) {
      await probe()
      await sleep(50)
    }
  } finally {
    release()
  }
  await until('the account itself to be let in again', async () => (await hostile.api('GET', '/keys')).status === 200)
})

test('120 invented keys at `mcp --http` lock nobody out', async () => {
  const begin = (key: string, localAddress: string) =>
    new Promise<number>((resolve, reject) => {
      const headers = {
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
        authorization: `Bearer ${key}`,
      }
      const request = http.request(mcp.url, { method: 'POST', agent: false, localAddress, headers }, (response) => {
        response.resume().on('end', () => resolve(response.statusCode!))
      })
      const params = { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'raw', version: '1' } }
      request.on('error', reject).end(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params }))
    })
  const guesses = Array.from({ length: 120 }, () => begin(newKey(), '127.0.0.1'))
  assert.equal(await begin(honestKey, '127.0.0.2'), 200)
  assert.ok((await Promise.all(guesses)).every((status) => status === 401 || status === 429))
  const began = performance.now()
  await until('a new key from the same address', async () => (await begin(hostileKey, '127.0.0.1')) === 200)
  assert.ok(performance.now() - began < 20_000, 'some seconds, not a minute')
  assert.equal((await honest.api('GET', '/keys')).status, 200, 'and the service has not blocked this address')
})

test('300 deliveries to receivers that drip do not hold up a delivery to another account', async () => {
  const receive = async (answer: (socket: net.Socket) => void) => {
    const listening = net.createServer((socket) => answer(socket.on('error', () => {})))
    await new Promise<void>((done) => listening.listen(0, '127.0.0.1', done))
    return { listening, url: `http://127.0.0.1:${(listening.address() as net.AddressInfo).port}/` }
  }
  const timers = new Set<NodeJS.Timeout>()
  const dripping = await receive((socket) => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n')
    const timer = setInterval(() => socket.write('x'), 200)
    timers.add(timer)
    socket.on('close', () => clearInterval(timer))
  })
  let arrived: number | undefined
  const quick = await receive((socket) => {
    arrived ??= performance.now()
    socket.end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')
  })
  try {
    const hooks = []
    for (let n = 0; n < 20; n++)
      hooks.push((await paying.api('POST', '/webhooks', { url: dripping.url, events: ['training.failed'] })).body.id)
    const mine = (await honest.api('POST', '/webhooks', { url: quick.url, events: ['training.failed'] })).body.id
    for (let round = 0; round < 15; round++)
      await Promise.all(hooks.map((id) => paying.api('POST', `/webhooks/${id}/test`)))
    const began = performance.now()
    await honest.api('POST', `/webhooks/${mine}/test`)
    await until('the delivery', () => arrived)
    assert.ok(arrived! - began < 3000, `${arrived! - began} ms`)
  } finally {
    for (const timer of timers) clearInterval(timer)
    for (const { listening } of [dripping, quick]) listening.close()
  }
})
