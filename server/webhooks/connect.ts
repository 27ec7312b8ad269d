// The one way out: a connection to an address that has been checked, and that is checked once more before a byte is
// written.
import { once } from 'node:events'
import net, { isIP, type Socket } from 'node:net'
import tls from 'node:tls'
import type { AddressRules, Resolve } from './addresses.ts'
import type { Target } from './target.ts'

/** The addresses that a name leads to may not be reached. */
export class Blocked extends Error {}

/** The name has no address, or its name servers do not answer. */
export class Unresolved extends Error {}

/** An error that comes when nobody waits for one any more must not end the process; whoever waits hears it as well. */
const ignore = () => {}

/** How long one address may keep the others waiting, and how many are tried. */
const connect_ms = 5000
const addressesMax = 4

/**
 * Connects to where a URL leads; with https, after the certificate has been verified for its host. Whatever the look-up
 * says, the connection is made to the address that was checked, without asking anyone again, and no proxy is taken.
 */
export async function connect(
  { url, host, port }: Target,
  rules: AddressRules,
  resolve: Resolve,
  signal: AbortSignal,
): Promise<Socket> {
  const addresses = isIP(host) ? [host] : await lookUp(host, resolve, signal)
  const refusals = addresses.map((address) => rules.refusal(address, port))
  const open = addresses.filter((_, index) => refusals[index] === undefined).slice(0, addressesMax)
  if (open.length === 0) throw new Blocked(`${host} leads to an address that may not be reached: ${refusals[0]}`)
  const socket = await first(open, port, rules, signal)
  return url.protocol === 'https:' ? secure(socket, host, signal) : socket
}

async function lookUp(host: string, resolve: Resolve, signal: AbortSignal): Promise<string[]> {
  let addresses: string[]
  try {
    addresses = await resolve(host, signal)
  } catch (error) {
    signal.throwIfAborted()
    throw new Unresolved(
      `the name servers of ${host} do not answer (${(error as NodeJS.ErrnoException).code ?? 'unknown'})`,
    )
  }
  if (addresses.length === 0) throw new Unresolved(`${host} has no address`)
  return addresses
}

/** The first address that answers. */
async function first(
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
      if (refusal) throw new Blocked(`${host} led to an address that may not be reached: ${refusal}`)
      return socket
    } catch (error) {
      socket.destroy()
      signal.throwIfAborted()
      if (error instanceof Blocked) throw error
      failure = error
    }
  }
  throw failure
}

async function secure(socket: Socket, host: string, signal: AbortSignal): Promise<Socket> {
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
