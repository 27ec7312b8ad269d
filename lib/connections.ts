// Who may hold how many connections of a listening process: an address before it has shown a key, and the owner of a
// key. The longest unused connection makes room for a new one, and health checks have connections of their own. The
// requests of one connection take turns.
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { BlockList, isIP, isIPv6, type Socket } from 'node:net'
import { handleInTurn } from './pipelined-requests.ts'

/** Connections beyond the limit, on which only health checks are answered. */
const reserveMax = 64
/**
 * Beyond this Node itself drops connections. It counts a destroyed one until its handle is closed, so a burst that
 * makes room for itself is above the limit for a moment.
 */
const backstop = 4 * reserveMax
const healthPath = /^\/health(\/(live|ready))?\/?(\?|$)/

interface ConnectionLimits {
  /** Most connections of all clients, besides the reserve. */
  connections_max: number
  /** Most connections of an address (of IPv6: a /64) whose request in progress, if any, has shown no right key. */
  address_max: number
  /** Whether this is the address of a proxy: its connections carry requests of many clients. */
  isProxy?(address: string): boolean
}

/** Why a request is refused: its address has, or all clients together have, as many connections as they may. */
export type Refused = 'address' | 'all'

interface Connection {
  socket: Socket
  /** Undefined: of a proxy. */
  address: string | undefined
  reserved: boolean
  /** Whether it counts towards its address. */
  counted: boolean
  /** Requests in progress. */
  requests: number
}

interface Hold {
  address?: string | undefined
  owner?: string | undefined
}

/** Defaults of TUNERY_MAX_CONNECTIONS_PER_ADDRESS and of the engine alone. */
export const addressShare = (connections_max: number) => Math.max(32, Math.floor(connections_max / 10))

export class Connections {
  private readonly limits: ConnectionLimits
  /** Most requests in progress of one owner: nobody holds more than a quarter of the connections. */
  readonly owner_max: number
  private readonly connections = new Map<Socket, Connection>()
  /** Idle connections, longest unused first; those that count by address; and those of the reserve. */
  private readonly idle = new Set<Connection>()
  private readonly idleOf = new Map<string, Set<Connection>>()
  private readonly idleReserve = new Set<Connection>()
  private readonly addresses = new Map<string, number>()
  private readonly owners = new Map<string, number>()
  private readonly holds = new WeakMap<IncomingMessage, Hold>()
  private reserved = 0

  constructor(server: Server, limits: ConnectionLimits) {
    this.limits = limits
    this.owner_max = Math.max(4, Math.floor(limits.connections_max / 4))
    server.maxConnections = limits.connections_max + reserveMax + backstop
    server.prependListener('connection', (socket) => this.accept(socket))
    server.prependListener('request', (request, response) => this.begin(request, response))
    handleInTurn(server)
  }

  get address_max(): number {
    return this.limits.address_max
  }

  /** Why a request is refused; undefined: it may continue. `clientOf`: its client's address, as a proxy forwards it. */
  refusal(request: IncomingMessage, clientOf: () => string): Refused | undefined {
    const [connection, hold] = [this.connections.get(request.socket), this.holds.get(request)]
    if (!connection || !hold || healthPath.test(request.url ?? '')) return undefined
    if (connection.reserved) {
      const full = this.findRoom(connection.address)
      if (full !== undefined) return full
      connection.reserved = false
      this.reserved--
      this.setCounted(connection, true)
    }
    if (connection.address !== undefined) return undefined
    const network = networkOf(clientOf())
    if ((this.addresses.get(network) ?? 0) >= this.limits.address_max) return 'address'
    hold.address = network
    add(this.addresses, network, 1)
    return undefined
  }

  /** The request has shown a right key of this owner. False, if the owner has as many in progress as it may. */
  claim(request: IncomingMessage, owner: string): boolean {
    const [connection, hold] = [this.connections.get(request.socket), this.holds.get(request)]
    if (!connection || !hold || hold.owner === owner) return true
    if ((this.owners.get(owner) ?? 0) >= this.owner_max) return false
    this.release(hold)
    hold.owner = owner
    add(this.owners, owner, 1)
    this.setCounted(connection, false)
    return true
  }

  private setIdle(connection: Connection): void {
    if (connection.reserved) return void this.idleReserve.add(connection)
    this.idle.add(connection)
    if (!connection.counted || connection.address === undefined) return
    const own = this.idleOf.get(connection.address)
    if (own) own.add(connection)
    else this.idleOf.set(connection.address, new Set([connection]))
  }

  private setBusy(connection: Connection): void {
    this.idleReserve.delete(connection)
    if (!this.idle.delete(connection) || connection.address === undefined) return
    const own = this.idleOf.get(connection.address)
    if (own?.delete(connection) && own.size === 0) this.idleOf.delete(connection.address)
  }

  private setCounted(connection: Connection, counted: boolean): void {
    if (connection.address === undefined || connection.counted === counted) return
    connection.counted = counted
    add(this.addresses, connection.address, counted ? 1 : -1)
  }

  private remove(connection: Connection): void {
    if (!this.connections.delete(connection.socket)) return
    this.setBusy(connection)
    this.setCounted(connection, false)
    if (connection.reserved) this.reserved--
  }

  /** Closes the longest unused of these connections, if there is one. */
  private closeOne(candidates: Set<Connection> | undefined): boolean {
    const [oldest] = candidates ?? []
    if (!oldest) return false
    this.remove(oldest)
    oldest.socket.destroy()
    return true
  }

  /** Why there is no room for one more ordinary connection of this address. */
  private findRoom(address: string | undefined): Refused | undefined {
    const isFull = address !== undefined && (this.addresses.get(address) ?? 0) >= this.limits.address_max
    if (isFull && !this.closeOne(this.idleOf.get(address))) return 'address'
    if (this.connections.size - this.reserved >= this.limits.connections_max && !this.closeOne(this.idle)) return 'all'
    return undefined
  }

  private accept(socket: Socket): void {
    const peer = socket.remoteAddress
    if (peer === undefined) return void socket.destroy()
    const address = this.limits.isProxy?.(peer) ? undefined : networkOf(peer)
    const full = this.findRoom(address) !== undefined
    if (full && this.reserved >= reserveMax && !this.closeOne(this.idleReserve)) return void socket.destroy()
    const connection: Connection = { socket, address, reserved: full, counted: false, requests: 0 }
    this.connections.set(socket, connection)
    socket.once('close', () => this.remove(connection))
    if (full) this.reserved++
    else this.setCounted(connection, true)
    this.setIdle(connection)
  }

  private begin(request: IncomingMessage, response: ServerResponse): void {
    const connection = this.connections.get(request.socket)
    if (!connection) return
    connection.requests++
    this.setBusy(connection)
    if (!connection.reserved) this.setCounted(connection, true)
    const hold: Hold = {}
    this.holds.set(request, hold)
    response.once('close', () => {
      this.release(hold)
      if (--connection.requests === 0 && this.connections.has(connection.socket)) this.setIdle(connection)
    })
  }

  private release(hold: Hold): void {
    if (hold.address !== undefined) add(this.addresses, hold.address, -1)
    if (hold.owner !== undefined) add(this.owners, hold.owner, -1)
    hold.address = hold.owner = undefined
  }
}

/** Whether this is an address, or a network such as 10.0.0.0/8. */
export function isNetwork(text: string): boolean {
  const [address = '', bits, ...more] = text.split('/')
  const maxBits = { 4: 32, 6: 128 }[isIP(address)]
  if (!maxBits || address.includes('%') || more.length > 0) return false
  // Reject /0: it would trust everyone.
  return bits === undefined || (/^[1-9]\d{0,2}$/.test(bits) && Number(bits) <= maxBits)
}

/** Whether an address is one of these, or in one of these networks (CIDR). */
export function addressesIn(networks: readonly string[]): (address: string) => boolean {
  const list = new BlockList()
  for (const network of networks) {
    const [address = '', prefix] = network.split('/')
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  return (address) => networks.length > 0 && list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4')
}

function add(counts: Map<string, number>, key: string, change: 1 | -1): void {
  const count = (counts.get(key) ?? 0) + change
  if (count > 0) counts.set(key, count)
  else counts.delete(key)
}

/**
 * The key to count a client by: an IPv4 address, or the /64 of an IPv6 address, as one client usually has all of it.
 */
export function networkOf(address: string): string {
  if (!isIPv6(address)) return address
  const [, mapped] = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address) ?? []
  if (mapped !== undefined) return mapped
  const [start = '', end] = address.split('%')[0]!.split('::')
  const groupsOf = (text: string) => (text === '' ? [] : text.split(':'))
  const [before, after] = [groupsOf(start), groupsOf(end ?? '')]
  // A dotted end stands for two groups.
  const missing = end === undefined ? 0 : 8 - before.length - after.length - (address.includes('.') ? 1 : 0)
  const groups = [...before, ...Array<string>(missing).fill('0'), ...after]
  return groups
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(':')
}
