// Ends requests whose body makes no progress. Node's timeout for the whole request would cut large uploads over slow
// lines; the idle timeout of sockets would cut clients that wait for a long answer.
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Refuse } from './refusals.ts'

/**
 * Fewer bytes a second than this, over `body_ms`, are no progress: a trickle holds a connection and space on the disk.
 */
const leastRate_bytes = 4096
/** A body has `total_ms`, and a second more for each of these: who withholds only its end is not waited for. */
const totalRate_bytes = 256 << 10

interface Connection {
  request: IncomingMessage | undefined
  answer: ServerResponse | undefined
  /** The request that `bytes` and `since_ms` refer to: bytes read at its last progress, and when that was. */
  judged: IncomingMessage | undefined
  bytes: number
  since_ms: number
  /** Bytes read, and the time, when its head had come. */
  before: number
  began_ms: number
}

/**
 * Ends every connection whose request body makes no progress in `body_ms`, or takes longer than `total_ms` and what
 * its bytes deserve: with 408 if no answer has begun. Returns a function that stops the
 * watch.
 */
export function endSlowBodies(
  server: Server,
  body_ms: number,
  refuse: Refuse,
  total_ms: number = 60 * body_ms,
): () => void {
  const leastProgress_bytes = Math.ceil((leastRate_bytes * body_ms) / 1000)
  const connections = new Map<Socket, Connection>()
  server.on('connection', (socket: Socket) => {
    connections.set(socket, {
      request: undefined,
      answer: undefined,
      judged: undefined,
      bytes: 0,
      since_ms: 0,
      before: 0,
      began_ms: 0,
    })
    socket.once('close', () => connections.delete(socket))
  })
  server.prependListener('request', (request: IncomingMessage, answer: ServerResponse) => {
    const connection = connections.get(request.socket)
    if (connection) Object.assign(connection, { request, answer })
  })
  const timer = setInterval(() => {
    const now_ms = performance.now()
    for (const [socket, connection] of connections) {
      const { request, answer } = connection
      if (!request || request.complete) continue
      const progress = socket.bytesRead - connection.bytes >= leastProgress_bytes
      // Bytes that arrived but are unread are our delay, not the client's.
      if (connection.judged !== request) Object.assign(connection, { before: socket.bytesRead, began_ms: now_ms })
      const deserved_ms = total_ms + (1000 * (socket.bytesRead - connection.before)) / totalRate_bytes
      const late = now_ms - connection.began_ms > deserved_ms
      if (connection.judged !== request || ((progress || request.readableLength > 0) && !late)) {
        connection.judged = request
        connection.bytes = socket.bytesRead
        connection.since_ms = now_ms
      } else if (late || now_ms - connection.since_ms >= body_ms) {
        if (answer?.headersSent) socket.destroy()
        else
          refuse(
            socket,
            '408 Request Timeout',
            late
              ? `The body took longer than ${Math.round(deserved_ms / 1000)} s. Send it faster, or in parts (POST ` +
                  '/v1/uploads).'
              : `The body stood still, or came slower than 4 KiB a second, for ${body_ms / 1000} s. Send the request ` +
                  'once more.',
          )
      }
    }
  }, body_ms / 4).unref()
  return () => clearInterval(timer)
}

// Ends connections whose client has stopped reading: each would hold a connection and buffered data forever.

interface Reader {
  /** Bytes written to the socket and flushed. */
  sent: number
  since_ms: number
}

/**
 * Destroys every connection that has buffered data and flushes none of it in `unread_ms`. Returns a function that stops
 * the watch.
 */
export function endSlowReaders(server: Server, unread_ms: number): () => void {
  const readers = new Map<Socket, Reader>()
  server.on('connection', (socket: Socket) => {
    readers.set(socket, { sent: 0, since_ms: 0 })
    socket.once('close', () => readers.delete(socket))
  })
  const timer = setInterval(() => {
    const now_ms = performance.now()
    for (const [socket, reader] of readers) {
      const sent = socket.bytesWritten - socket.writableLength
      if (socket.writableLength === 0 || sent !== reader.sent) Object.assign(reader, { sent, since_ms: now_ms })
      else if (now_ms - reader.since_ms >= unread_ms) socket.destroy()
    }
  }, unread_ms / 4).unref()
  return () => clearInterval(timer)
}
