// Requests that a client sends without waiting for answers take turns, with each other and with the event loop.
import assert from 'node:assert/strict'
import http, { type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { handleInTurn } from '../../lib/pipelined-requests.ts'
import { until } from '../support/client.ts'
import { connect } from '../support/connection.ts'

async function serve(t: import('node:test').TestContext, listener: http.RequestListener) {
  const server = http.createServer(listener)
  handleInTurn(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => void server.close().closeAllConnections())
  return connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
}
const requests = (count: number, from = 0) =>
  Array.from({ length: count }, (_, at) => `GET /${from + at} HTTP/1.1\r\nHost: x\r\n\r\n`).join('')

test('requests that arrive together are answered in order, with other work between them', async (t) => {
  let turns = 0
  let counts = true
  const count = () => {
    turns++
    if (counts) setImmediate(count)
  }
  setImmediate(count)
  const seen: number[] = []
  const connection = await serve(t, (request, response) => {
    seen.push(turns)
    response.end(`<${request.url}>`)
  })
  connection.socket.write(requests(20))
  await until('all answers', () => connection.text.includes('</19>'))
  counts = false
  assert.deepEqual(
    connection.text.match(/<\/\d+>/g),
    Array.from({ length: 20 }, (_, at) => `</${at}>`),
  )
  assert.equal(new Set(seen).size, 20, 'no two requests ran in one turn of the event loop')
  // The connection serves on.
  connection.socket.write(requests(1, 20))
  await until('one more answer', () => connection.text.includes('</20>'))
})

test('a request begins when the one before it has ended, and never when its client has left', async (t) => {
  const begun: string[] = []
  const responses: ServerResponse[] = []
  const connection = await serve(t, (request, response) => {
    begun.push(request.url!)
    responses.push(response)
  })
  connection.socket.write(requests(3))
  await until('the first', () => begun.length > 0)
  await new Promise((resolve) => setTimeout(resolve, 50))
  assert.deepEqual(begun, ['/0'])
  responses[0]!.end()
  await until('the second', () => begun.length === 2)
  const closed = new Promise((resolve) => responses[1]!.once('close', resolve))
  connection.socket.destroy()
  await closed
  await new Promise((resolve) => setTimeout(resolve, 50))
  assert.deepEqual(begun, ['/0', '/1'])
})

test('a body that comes after other requests is read in its turn', async (t) => {
  const bodies: string[] = []
  const connection = await serve(t, (request, response) => {
    let body = ''
    request.on('data', (chunk) => {
      body += chunk
    })
    request.on('end', () => {
      bodies.push(body)
      setTimeout(() => response.end(`<${bodies.length}>`), 5)
    })
  })
  const post = (body: string) => `POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`
  const large = 'x'.repeat(200_000)
  connection.socket.write(post('first') + post(large) + post('last'))
  await until('all answers', () => connection.text.includes('<3>'))
  assert.deepEqual(bodies, ['first', large, 'last'])
})

test('a connection on which more than 32 requests wait is closed', async (t) => {
  let begun = 0
  const connection = await serve(t, () => void begun++)
  connection.socket.write(requests(1000))
  await until('the end', () => connection.closed)
  assert.equal(begun, 1)
})
