// A client may send many requests over one connection without waiting for answers. Node runs all that arrived in one
// read at once, up to 1,700 of them, and the event loop stands still meanwhile.
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** Requests of a connection that may wait for their turn. Load generators pipeline up to 16. */
const waiting_max = 32

/**
 * Handles the requests of each connection one after the other, other work of the event loop between them. Closes
 * connections on which more than 32 wait.
 */
export function handleInTurn(server: Server): void {
  const emit = server.emit.bind(server)
  /** Requests that wait, of connections with one in progress. */
  const waiting = new WeakMap<Socket, [IncomingMessage, ServerResponse][]>()

  function handle(request: IncomingMessage, response: ServerResponse): void {
    const { socket } = request
    response.once('close', () => setImmediate(handleNext, socket))
    emit('request', request, response)
  }
  function handleNext(socket: Socket): void {
    const next = socket.destroyed ? undefined : waiting.get(socket)?.shift()
    if (next) handle(...next)
    else waiting.delete(socket)
  }

  // Listeners cannot hold a request back, and what they count must not begin before its turn.
  server.emit = (event: string, ...values: unknown[]): boolean => {
    if (event !== 'request') return emit(event, ...values)
    const [request, response] = values as [IncomingMessage, ServerResponse]
    const { socket } = request
    const queue = waiting.get(socket)
    if (!queue) {
      waiting.set(socket, [])
      handle(request, response)
    } else if (queue.length < waiting_max) queue.push([request, response])
    else socket.destroy()
    return true
  }
}
