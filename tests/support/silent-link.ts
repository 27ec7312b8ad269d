// A link to a TCP server that can forget its connections, as a firewall does that lost its state: what is sent on them
// arrives nowhere, nothing tells either end, and new connections work.
import { once } from 'node:events'
import net from 'node:net'

/** `to`: host and port of the server. */
export async function startSilentLink(to: { host: string; port: number }) {
  const pairs = new Set<[net.Socket, net.Socket]>()
  const listener = net.createServer((near) => {
    const far = net.connect(to.port, to.host)
    const pair: [net.Socket, net.Socket] = [near, far]
    pairs.add(pair)
    near.pipe(far)
    far.pipe(near)
    for (const socket of pair) {
      socket.on('error', () => {})
      socket.once('close', () => pairs.delete(pair))
    }
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  return {
    port: (listener.address() as net.AddressInfo).port,
    /** Returns how many connections it has forgotten. */
    forget(): number {
      const forgotten = [...pairs]
      for (const [near, far] of forgotten) {
        near.unpipe(far)
        far.unpipe(near)
        // Read and thrown away: neither end's buffer fills.
        near.resume()
        far.resume()
      }
      return forgotten.length
    },
    close() {
      listener.close()
      for (const socket of [...pairs].flat()) socket.destroy()
    },
  }
}
