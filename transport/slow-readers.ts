// Ends connections whose client has stopped to read: each would hold its place, and its part of an answer, for ever.
import type { Server } from 'node:http'
import type { Socket } from 'node:net'

interface Reader {
  /** Bytes that have left for the client. */
  sent: number
  since_ms: number
}

/** Destroys every connection that has something unread and takes none of it in `unread_ms`. Returns the way to stop that. */
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
