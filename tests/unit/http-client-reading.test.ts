// Retries of the HTTP client: a request is resent only if the reused connection had been closed before it was sent.
import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { readAll, send } from '../../server/features/serving/http-client/client.ts'
import { createConnectionPool, NoResponse } from '../../server/features/serving/http-client/connection-pool.ts'

test('a request whose server dies while processing is not resent; one on a stale connection is, once', async () => {
  let requests = 0
  let respond: (request: http.IncomingMessage, response: http.ServerResponse) => void = (_request, response) =>
    response.end('ok')
  const server = http.createServer((request, response) => {
    requests++
    request.resume()
    respond(request, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const pool = createConnectionPool({ hostname: '127.0.0.1', port, secure: false }, 4000)
  const request = async () => {
    // undici reuses a connection from the next turn of the event loop on.
    await nextTurn()
    const response = await send(pool, { method: 'POST', path: '/', payload: '{}' }, new AbortController().signal)
    return (await readAll(response)).toString()
  }
  try {
    assert.equal(await request(), 'ok')
    respond = (request) => void setTimeout(() => request.socket.destroy(), 120)
    await assert.rejects(request(), (error) => error instanceof NoResponse && error.mayHaveStarted)
    assert.equal(requests, 2)

    // An immediate reset: a stale connection and a crashed server look alike, so the request is resent, but only once.
    respond = (_request, response) => response.end('ok')
    assert.equal(await request(), 'ok')
    respond = (request) => void request.socket.destroy()
    await assert.rejects(request(), (error) => error instanceof NoResponse && error.mayHaveStarted)
    assert.equal(requests, 5)
    respond = (_request, response) => response.end('ok')
    assert.equal(await request(), 'ok')
    let once = true
    respond = (request, response) => {
      if (!once) return void response.end('again')
      once = false
      request.socket.destroy()
    }
    assert.equal(await request(), 'again')
  } finally {
    pool.close()
    server.closeAllConnections()
    server.close()
  }
})
