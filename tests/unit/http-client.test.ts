// The client of engines and upstreams: where an answer ends is never a guess, and no byte of one comes with another.
import assert from 'node:assert/strict'
import net, { type AddressInfo, type Socket } from 'node:net'
import { after, test } from 'node:test'
import { readAll, readFirst, send, TooLarge } from '../../server/inference/replicas/http-client/client.ts'
import { NotAnswered } from '../../server/inference/replicas/http-client/connection.ts'
import { createConnections } from '../../server/inference/replicas/http-client/connection-pool.ts'
import { until } from '../support/client.ts'

const never = new AbortController().signal
const closing: (() => void)[] = []
after(() => {
  for (const close of closing) close()
})

/** A server that answers each request, once all of it is there, as `say` does on its socket. */
async function startRaw(say: (socket: Socket, request: string) => void, idle_ms = 4000) {
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
      say(socket, request)
    })
  })
  let opened = 0
  server.on('connection', () => opened++)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const connections = createConnections(
    { hostname: '127.0.0.1', port: (server.address() as AddressInfo).port, secure: false },
    idle_ms,
  )
  closing.push(() => {
    connections.close()
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const ask = (signal = never, headers: Record<string, string> = {}) =>
    send(connections, { method: 'POST', path: '/v1/x', payload: '{"é":1}', headers }, signal)
  return { ask, sockets, whole: async () => (await readAll(await ask())).toString(), opened: () => opened }
}

const framings: Record<string, { bytes: string; body: string; kept: boolean }> = {
  'a length': { bytes: 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello', body: 'hello', kept: true },
  'a length of nothing': { bytes: 'HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n', body: '', kept: true },
  'no content': { bytes: 'HTTP/1.1 204 No Content\r\n\r\n', body: '', kept: true },
  'chunks, with an extension and a trailer': {
    bytes: 'HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n3;x="y"\r\nhel\r\n0000002\r\nlo\r\n0\r\nx-sum: 1\r\n\r\n',
    body: 'hello',
    kept: true,
  },
  'a body that has line ends of its own': {
    bytes: 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n\r\n\r\n0\r\n\r\r\n0\r\n\r\n',
    body: '\r\n\r\n0\r\n\r',
    kept: true,
  },
  'an early word before the answer': {
    bytes: 'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi',
    body: 'hi',
    kept: true,
  },
  'a last word': {
    bytes: 'HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 2\r\n\r\nhi',
    body: 'hi',
    kept: false,
  },
  'an older protocol': { bytes: 'HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi', body: 'hi', kept: false },
}
for (const [name, { bytes, body, kept }] of Object.entries(framings))
  test(`an answer framed by ${name} comes whole however it is cut, and its connection is ${kept ? 'used again' : 'not used again'}`, async () => {
    for (const cut of [bytes.length, 1, 7]) {
      const server = await startRaw(async (socket) => {
        for (let at = 0; at < bytes.length; at += cut) {
          socket.write(bytes.slice(at, at + cut))
          await new Promise((resolve) => setImmediate(resolve))
        }
      })
      assert.equal(await server.whole(), body)
      assert.equal(await server.whole(), body)
      assert.equal(server.opened(), kept ? 1 : 2)
    }
  })

test('an answer without a length ends with its connection, and one that promised more is broken', async () => {
  const open = await startRaw((socket) => void socket.end('HTTP/1.1 200 OK\r\n\r\nall that there is'))
  assert.equal(await open.whole(), 'all that there is')
  for (const cut of [
    'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhell',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhell\r\n',
    'HTTP/1.1 200 O',
  ]) {
    const server = await startRaw((socket) => void socket.end(cut))
    await assert.rejects(server.whole(), (error) => error instanceof NotAnswered && error.taken, cut)
  }
})

test('what is not framed as HTTP/1.1 says is no answer', async () => {
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
    await assert.rejects(server.whole(), NotAnswered, bytes.slice(0, 80))
    await until('the connection to be closed', () => server.sockets.size === 0)
  }
})

test('a connection that said more than it was asked, or whose time is over, is not used again', async () => {
  const talkative = await startRaw(
    (socket) =>
      void socket.write(
        'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nown',
      ),
  )
  assert.equal(await talkative.whole(), 'hi')
  assert.equal(await talkative.whole(), 'hi')
  assert.equal(talkative.opened(), 2)

  const later = await startRaw((socket) => void socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi'))
  assert.equal(await later.whole(), 'hi')
  for (const socket of later.sockets) socket.write('HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nown')
  await until('the connection to be closed', () => later.sockets.size === 0)
  assert.equal(await later.whole(), 'hi')

  const hinting = await startRaw(
    (socket) => void socket.write('HTTP/1.1 200 OK\r\nkeep-alive: timeout=1, max=9\r\ncontent-length: 2\r\n\r\nhi'),
  )
  assert.equal(await hinting.whole(), 'hi')
  assert.equal(await hinting.whole(), 'hi')
  assert.equal(hinting.opened(), 2)

  const short = await startRaw((socket) => void socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi'), 10)
  assert.equal(await short.whole(), 'hi')
  await until('the idle connection to be closed', () => short.sockets.size === 0)
})

test('who gives up closes the connection, before the answer and in the middle of it', async () => {
  let head = ''
  const server = await startRaw((socket) => void (head && socket.write(head)))
  const before = new AbortController()
  const asked = server.ask(before.signal)
  await until('the request to arrive', () => server.sockets.size === 1)
  before.abort()
  await assert.rejects(asked, NotAnswered)
  await until('the connection to be closed', () => server.sockets.size === 0)

  head = 'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhell'
  const amid = new AbortController()
  const answer = await server.ask(amid.signal)
  assert.equal((await readFirst(answer))?.toString(), 'hell')
  amid.abort()
  await until('the connection to be closed', () => server.sockets.size === 0)
  assert.ok(answer.closed)
  await assert.rejects(readAll(answer), NotAnswered)

  const large = await server.ask()
  await assert.rejects(readAll(large, 3), TooLarge)
  await until('the connection to be closed', () => server.sockets.size === 0)
})

test('an answer that nobody reads is held up, not kept in memory', async () => {
  let taken = 0
  const piece = Buffer.alloc(1024 * 1024, 'x')
  const server = await startRaw((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${200 * piece.length}\r\n\r\n`)
    const more = () => {
      while (taken < 200) {
        taken++
        if (!socket.write(piece)) return void socket.once('drain', more)
      }
    }
    more()
  })
  const answer = await server.ask()
  await readFirst(answer)
  let before = -1
  await until('the server to be held up', () => {
    const still = taken === before
    before = taken
    return still
  })
  assert.ok(taken < 100, `${taken} MB were taken from it`)
  assert.equal((await readAll(answer)).length > 100 * piece.length, true)
})

test('no header can end its line, and a request is refused before a byte of it is sent', async () => {
  const server = await startRaw((socket) => void socket.write('HTTP/1.1 204 No Content\r\n\r\n'))
  await assert.rejects(server.ask(never, { 'x-served-model-name': 'a\r\ncontent-length: 0' }), /Invalid character/)
  assert.equal(server.opened(), 0)
})
