import http from 'node:http'
import net, { type AddressInfo } from 'node:net'

export interface Received {
  path: string
  headers: http.IncomingHttpHeaders
  body: string
}

/**
 * A server that receives webhooks on 127.0.0.1 and records them. `answer` decides the response; the default is
 * 200.
 */
export async function startReceiver(
  answer: (request: Received, response: http.ServerResponse) => void = (_, response) => void response.end('thanks'),
) {
  const received: Received[] = []
  const server = http.createServer(async (request, response) => {
    let body = ''
    for await (const piece of request.setEncoding('utf8')) body += piece
    const one = { path: request.url!, headers: request.headers, body }
    received.push(one)
    answer(one, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    received,
    port,
    url: `http://127.0.0.1:${port}/hook`,
    of: (path: string) => received.filter((received) => received.path === path),
    stop() {
      server.closeAllConnections()
      server.close()
    },
  }
}

/** Listens on IPv4 and IPv6 where no connection may arrive, and counts connections. */
export async function startCanary() {
  let connections = 0
  const server = net.createServer((socket) => {
    connections++
    socket.on('error', () => {}).end('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok')
  })
  // `::` accepts connections to every address of this machine, including IPv4.
  await new Promise<void>((resolve) => server.listen(0, '::', resolve))
  const { port } = server.address() as AddressInfo
  return { port, connections: () => connections, stop: () => server.close() }
}
