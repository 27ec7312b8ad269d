// The HTTP client for engine and upstreams: strict framing, safe reuse of connections, backpressure.
import assert from 'node:assert/strict'
import net, { type AddressInfo, type Socket } from 'node:net'
import { after, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { BodyTooLarge, readAll, readFirstChunk, send } from '../../server/features/serving/http-client/client.ts'
import { createConnectionPool, NoResponse } from '../../server/features/serving/http-client/connection-pool.ts'
import { until } from '../support/client.ts'

const never = new AbortController().signal
const closing: (() => void)[] = []
after(() => {
  for (const close of closing) close()
})

/** A TCP server that calls `respond` for each complete request. */
async function startRaw(respond: (socket: Socket, request: string) => unknown, idle_ms = 4000) {
  const sockets = new Set<Socket>()
  const server = net.createServer((socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket)).on('error', () => {})
    let text = ''
    socket.on('data', (data) => {
      text += data
      const head = text.indexOf('\r\n\r\n')
      const length = Number(/content-length: (\d+)/.exec(text)?.[1] ?? 0)
      if (head === -1 || Buffer.byteLength(text) < head + 4 + length) return
      const request = text
      text = ''
      respond(socket, request)
    })
  })
  let opened = 0
  server.on('connection', () => opened++)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const pool = createConnectionPool(
    { hostname: '127.0.0.1', port: (server.address() as AddressInfo).port, secure: false },
    idle_ms,
  )
  closing.push(() => {
    pool.close()
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const request = (signal = never, headers: Record<string, string> = {}) =>
    send(pool, { method: 'POST', path: '/v1/x', payload: '{"é":1}', headers }, signal)
  const text = async () => {
    const body = (await readAll(await request())).toString()
    // undici reuses a connection from the next turn of the event loop on.
    await nextTurn()
    return body
  }
  return { request, sockets, text, opened: () => opened }
}

const framings: Record<string, { bytes: string; body: string; reused: boolean }> = {
  'a content-length': { bytes: 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello', body: 'hello', reused: true },
  'a content-length of zero': { bytes: 'HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n', body: '', reused: true },
  'status 204': { bytes: 'HTTP/1.1 204 No Content\r\n\r\n', body: '', reused: true },
  'chunks, with an extension and a trailer': {
    bytes: 'HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n3;x="y"\r\nhel\r\n0000002\r\nlo\r\n0\r\nx-sum: 1\r\n\r\n',
    body: 'hello',
    reused: true,
  },
  'chunks that contain line ends': {
    bytes: 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n\r\n\r\n0\r\n\r\r\n0\r\n\r\n',
    body: '\r\n\r\n0\r\n\r',
    reused: true,
  },
  'an interim response before it': {
    bytes: 'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi',
    body: 'hi',
    reused: true,
  },
  'connection: close': {
    bytes: 'HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 2\r\n\r\nhi',
    body: 'hi',
    reused: false,
  },
  'HTTP/1.0': { bytes: 'HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi', body: 'hi', reused: false },
}
for (const [name, { bytes, body, reused }] of Object.entries(framings))
  test(`a response with ${name} is read in any pieces; the connection is ${reused ? '' : 'not '}reused`, async () => {
    for (const cut of [bytes.length, 1, 7]) {
      const server = await startRaw(async (socket) => {
        for (let at = 0; at < bytes.length; at += cut) {
          socket.write(bytes.slice(at, at + cut))
          await new Promise((resolve) => setImmediate(resolve))
        }
      })
      assert.equal(await server.text(), body)
      assert.equal(await server.text(), body)
      assert.equal(server.opened(), reused ? 1 : 2)
    }
  })

test('a body without a length ends with the connection; a truncated response is an error', async () => {
  const open = await startRaw((socket) => void socket.end('HTTP/1.1 200 OK\r\n\r\nall that there is'))
  assert.equal(await open.text(), 'all that there is')
  for (const cut of [
    'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhell',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhell\r\n',
    'HTTP/1.1 200 O',
  ]) {
    const server = await startRaw((socket) => void socket.end(cut))
    await assert.rejects(server.text(), (error) => error instanceof NoResponse && error.mayHaveStarted, cut)
  }
})

test('malformed responses are rejected and their connection is closed', async () => {
  const bad = [
    'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n',
    'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi',
    'HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nhi',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhi\r\n0\r\n\r\n',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nhi\r\n0\r\n\r\n',
    'HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\ncontent-length: 2\r\n\r\nhi',
    'HTTP/1.1 200 OK\r\nx: 1\ncontent-length: 2\r\n\r\nhi',
    'HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n',
    'HTTP/2 200 OK\r\n\r\n',
    'SSH-2.0-x\r\n\r\n',
    `HTTP/1.1 200 OK\r\nx: ${'x'.repeat(70_000)}`,
  ]
  for (const bytes of bad) {
    const server = await startRaw((socket) => void socket.write(bytes))
    await assert.rejects(server.text(), NoResponse, bytes.slice(0, 80))
    await until('the connection to be closed', () => server.sockets.size === 0)
  }
})

test('a connection with unsolicited bytes or past its idle timeout is not reused', async () => {
  const unsolicited = await startRaw(
    (socket) =>
      void socket.write(
        'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nown',
      ),
  )
  assert.equal(await unsolicited.text(), 'hi')
  assert.equal(await unsolicited.text(), 'hi')
  assert.equal(unsolicited.opened(), 2)

  const later = await startRaw((socket) => void socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi'))
  assert.equal(await later.text(), 'hi')
  for (const socket of later.sockets) socket.write('HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nown')
  await until('the connection to be closed', () => later.sockets.size === 0)
  assert.equal(await later.text(), 'hi')

  const hinting = await startRaw(
    (socket) => void socket.write('HTTP/1.1 200 OK\r\nkeep-alive: timeout=1, max=9\r\ncontent-length: 2\r\n\r\nhi'),
  )
  assert.equal(await hinting.text(), 'hi')
  assert.equal(await hinting.text(), 'hi')
  assert.equal(hinting.opened(), 2)

  const short = await startRaw((socket) => void socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi'), 10)
  assert.equal(await short.text(), 'hi')
  await until('the idle connection to be closed', () => short.sockets.size === 0)
})

test('an abort closes the connection, before the response and in the middle of it', async () => {
  let head = ''
  const server = await startRaw((socket) => void (head && socket.write(head)))
  const before = new AbortController()
  const response = server.request(before.signal)
  await until('the request to arrive', () => server.sockets.size === 1)
  before.abort()
  await assert.rejects(response, NoResponse)
  await until('the connection to be closed', () => server.sockets.size === 0)

  head = 'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhell'
  const during = new AbortController()
  const answer = await server.request(during.signal)
  assert.equal((await readFirstChunk(answer))?.toString(), 'hell')
  during.abort()
  await until('the connection to be closed', () => server.sockets.size === 0)
  assert.ok(answer.closed)
  await assert.rejects(readAll(answer), NoResponse)

  const large = await server.request()
  await assert.rejects(readAll(large, 3), BodyTooLarge)
  await until('the connection to be closed', () => server.sockets.size === 0)
})

test('an unread response pauses the server and is not buffered in memory', async () => {
  let written = 0
  const piece = Buffer.alloc(1024 * 1024, 'x')
  const server = await startRaw((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${200 * piece.length}\r\n\r\n`)
    const more = () => {
      while (written < 200) {
        written++
        if (!socket.write(piece)) return void socket.once('drain', more)
      }
    }
    more()
  })
  const answer = await server.request()
  await readFirstChunk(answer)
  let before = -1
  await until('the server to be paused', () => {
    const still = written === before
    before = written
    return still
  })
  assert.ok(written < 100, `${written} MB were read`)
  assert.equal((await readAll(answer)).length > 100 * piece.length, true)
})

test('a header with a line break is rejected before anything is sent', async () => {
  const server = await startRaw((socket) => void socket.write('HTTP/1.1 204 No Content\r\n\r\n'))
  await assert.rejects(server.request(never, { 'x-served-model-name': 'a\r\ncontent-length: 0' }), /Invalid character/)
  assert.equal(server.opened(), 0)
})
