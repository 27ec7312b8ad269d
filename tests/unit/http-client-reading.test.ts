// Which requests may be sent once more: a kept connection that was closed meanwhile, never one whose server ended while
// it worked.
import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { readAll, send } from '../../server/inference/replicas/http-client/client.ts'
import { NotAnswered } from '../../server/inference/replicas/http-client/connection.ts'
import { createConnections } from '../../server/inference/replicas/http-client/connection-pool.ts'

test('a request that ends its server while it works on it is sent once; one on a connection closed meanwhile, again', async () => {
  let requests = 0
  let ending: (request: http.IncomingMessage, response: http.ServerResponse) => void = (_request, response) =>
    response.end('ok')
  const server = http.createServer((request, response) => {
    requests++
    request.resume()
    ending(request, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const connections = createConnections({ hostname: '127.0.0.1', port, secure: false }, 4000)
  const ask = async () =>
    (
      await readAll(await send(connections, { method: 'POST', path: '/', payload: '{}' }, new AbortController().signal))
    ).toString()
  try {
    assert.equal(await ask(), 'ok')
    ending = (request) => void setTimeout(() => request.socket.destroy(), 120)
    await assert.rejects(ask(), (error) => error instanceof NotAnswered && error.taken)
    assert.equal(requests, 2)

    // At once: a connection that was closed and a server that ends by the request look the same; the second may be
    // sent, and is the last.
    ending = (_request, response) => response.end('ok')
    assert.equal(await ask(), 'ok')
    ending = (request) => void request.socket.destroy()
    await assert.rejects(ask(), (error) => error instanceof NotAnswered && error.taken)
    assert.equal(requests, 5)
    ending = (_request, response) => response.end('ok')
    assert.equal(await ask(), 'ok')
    let once = true
    ending = (request, response) => {
      if (!once) return void response.end('again')
      once = false
      request.socket.destroy()
    }
    assert.equal(await ask(), 'again')
  } finally {
    connections.close()
    server.closeAllConnections()
    server.close()
  }
})
