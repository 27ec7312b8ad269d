// The only connection to addresses that clients choose. The address is checked before connecting, and the peer address
// again before a byte is written.
import { once } from 'node:events'
import net, { isIP, type Socket } from 'node:net'
import tls from 'node:tls'
import type { AddressRules, Resolve } from './addresses.ts'
import type { Target } from './target.ts'

/** All addresses of the name are blocked. */
export class BlockedAddress extends Error {}

/** The name has no address, or its name servers do not answer. */
export class UnresolvedName extends Error {}

/** A socket error without a listener would end the process; awaiting code gets the error too. */
const ignore = () => {}

/** The connect timeout per address, and how many addresses are tried. */
const connect_ms = 5000
const addressesMax = 4

/**
 * Connects to the target; for https the certificate is verified for its host. Connects to the checked address itself
 * without resolving again (no DNS rebinding), and never through a proxy. Throws BlockedAddress or UnresolvedName.
 */
export async function connect(
  { url, host, port }: Target,
  rules: AddressRules,
  resolve: Resolve,
  signal: AbortSignal,
): Promise<Socket> {
  const addresses = isIP(host) ? [host] : await lookUp(host, resolve, signal)
  const refusals = addresses.map((address) => rules.refusal(address, port))
  const reachable = addresses.filter((_, index) => refusals[index] === undefined).slice(0, addressesMax)
  if (reachable.length === 0)
    throw new BlockedAddress(`${host} leads to an address that may not be reached: ${refusals[0]}`)
  const socket = await connectFirst(reachable, port, rules, signal)
  return url.protocol === 'https:' ? connectTls(socket, host, signal) : socket
}

async function lookUp(host: string, resolve: Resolve, signal: AbortSignal): Promise<string[]> {
  let addresses: string[]
  try {
    addresses = await resolve(host, signal)
  } catch (error) {
    signal.throwIfAborted()
    throw new UnresolvedName(
      `the name servers of ${host} do not answer (${(error as NodeJS.ErrnoException).code ?? 'unknown'})`,
    )
  }
  if (addresses.length === 0) throw new UnresolvedName(`${host} has no address`)
  return addresses
}

/** A socket to the first address that accepts a connection. */
async function connectFirst(
  addresses: readonly string[],
  port: number,
  rules: AddressRules,
  signal: AbortSignal,
): Promise<Socket> {
  let failure: unknown
  for (const host of addresses) {
    const socket = net.connect({ host, port, noDelay: true }).on('error', ignore)
    try {
      await once(socket, 'connect', { signal: AbortSignal.any([signal, AbortSignal.timeout(connect_ms)]) })
      const refusal = rules.refusal(socket.remoteAddress ?? '', port)
      if (refusal) throw new BlockedAddress(`${host} led to an address that may not be reached: ${refusal}`)
      return socket
    } catch (error) {
      socket.destroy()
      signal.throwIfAborted()
      if (error instanceof BlockedAddress) throw error
      failure = error
    }
  }
  throw failure
}

async function connectTls(socket: Socket, host: string, signal: AbortSignal): Promise<Socket> {
  const secured = tls.connect({ socket, host, servername: isIP(host) ? '' : host }).on('error', ignore)
  try {
    await once(secured, 'secureConnect', { signal })
    return secured
  } catch (error) {
    secured.destroy()
    socket.destroy()
    throw error
  }
}
