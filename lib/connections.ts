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

export interface ConnectionLimits {
  /** Most connections of all clients, besides the reserve. */
  connections_max: number
  /** Most connections of an address (of IPv6: a /64) whose request in progress, if any, has shown no right key. */
  address_max: number
  /** Whether this is the address of a proxy: its connections carry requests of many clients. */
  isProxy?(address: string): boolean
}

/** Why a request is refused: its address has, or all clients together have, as many connections as they may. */
export type Refused = 'address' | 'all'

export interface Connections {
  /** Most requests in progress of one owner: nobody holds more than a quarter of the connections. */
  readonly owner_max: number
  readonly address_max: number
  /** Why a request is refused; undefined: it may continue. `clientOf`: its client's address, as a proxy forwards it. */
  refusal(request: IncomingMessage, clientOf: () => string): Refused | undefined
  /** The request has shown a right key of this owner. False, if the owner has as many in progress as it may. */
  claim(request: IncomingMessage, owner: string): boolean
}

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

export function limitConnections(
  server: Server,
  { connections_max, address_max, isProxy = () => false }: ConnectionLimits,
): Connections {
  const owner_max = Math.max(4, Math.floor(connections_max / 4))
  const connections = new Map<Socket, Connection>()
  /** Idle connections, longest unused first; those that count by address; and those of the reserve. */
  const idle = new Set<Connection>()
  const idleOf = new Map<string, Set<Connection>>()
  const idleReserve = new Set<Connection>()
  const addresses = new Map<string, number>()
  const owners = new Map<string, number>()
  const holds = new WeakMap<IncomingMessage, Hold>()
  let reserved = 0

  function setIdle(connection: Connection): void {
    if (connection.reserved) return void idleReserve.add(connection)
    idle.add(connection)
    if (!connection.counted || connection.address === undefined) return
    const own = idleOf.get(connection.address)
    if (own) own.add(connection)
    else idleOf.set(connection.address, new Set([connection]))
  }
  function setBusy(connection: Connection): void {
    idleReserve.delete(connection)
    if (!idle.delete(connection) || connection.address === undefined) return
    const own = idleOf.get(connection.address)
    if (own?.delete(connection) && own.size === 0) idleOf.delete(connection.address)
  }
  function setCounted(connection: Connection, counted: boolean): void {
    if (connection.address === undefined || connection.counted === counted) return
    connection.counted = counted
    add(addresses, connection.address, counted ? 1 : -1)
  }

  function remove(connection: Connection): void {
    if (!connections.delete(connection.socket)) return
    setBusy(connection)
    setCounted(connection, false)
    if (connection.reserved) reserved--
  }
  /** Closes the longest unused of these connections, if there is one. */
  function closeOne(candidates: Set<Connection> | undefined): boolean {
    const [oldest] = candidates ?? []
    if (!oldest) return false
    remove(oldest)
    oldest.socket.destroy()
    return true
  }

  /** Why there is no room for one more ordinary connection of this address. */
  function findRoom(address: string | undefined): Refused | undefined {
    const isFull = address !== undefined && (addresses.get(address) ?? 0) >= address_max
    if (isFull && !closeOne(idleOf.get(address))) return 'address'
    if (connections.size - reserved >= connections_max && !closeOne(idle)) return 'all'
    return undefined
  }

  function accept(socket: Socket): void {
    const peer = socket.remoteAddress
    if (peer === undefined) return void socket.destroy()
    const address = isProxy(peer) ? undefined : networkOf(peer)
    const full = findRoom(address) !== undefined
    if (full && reserved >= reserveMax && !closeOne(idleReserve)) return void socket.destroy()
    const connection: Connection = { socket, address, reserved: full, counted: false, requests: 0 }
    connections.set(socket, connection)
    socket.once('close', () => remove(connection))
    if (full) reserved++
    else setCounted(connection, true)
    setIdle(connection)
  }

  function begin(request: IncomingMessage, response: ServerResponse): void {
    const connection = connections.get(request.socket)
    if (!connection) return
    connection.requests++
    setBusy(connection)
    if (!connection.reserved) setCounted(connection, true)
    const hold: Hold = {}
    holds.set(request, hold)
    response.once('close', () => {
      release(hold)
      if (--connection.requests === 0 && connections.has(connection.socket)) setIdle(connection)
    })
  }

  function release(hold: Hold): void {
    if (hold.address !== undefined) add(addresses, hold.address, -1)
    if (hold.owner !== undefined) add(owners, hold.owner, -1)
    hold.address = hold.owner = undefined
  }

  server.maxConnections = connections_max + reserveMax + backstop
  server.prependListener('connection', accept)
  server.prependListener('request', begin)
  handleInTurn(server)
  return {
    owner_max,
    address_max,
    refusal(request, clientOf) {
      const [connection, hold] = [connections.get(request.socket), holds.get(request)]
      if (!connection || !hold || healthPath.test(request.url ?? '')) return undefined
      if (connection.reserved) {
        const full = findRoom(connection.address)
        if (full !== undefined) return full
        connection.reserved = false
        reserved--
        setCounted(connection, true)
      }
      if (connection.address !== undefined) return undefined
      const network = networkOf(clientOf())
      if ((addresses.get(network) ?? 0) >= address_max) return 'address'
      hold.address = network
      add(addresses, network, 1)
      return undefined
    },
    claim(request, owner) {
      const [connection, hold] = [connections.get(request.socket), holds.get(request)]
      if (!connection || !hold || hold.owner === owner) return true
      if ((owners.get(owner) ?? 0) >= owner_max) return false
      release(hold)
      hold.owner = owner
      add(owners, owner, 1)
      setCounted(connection, false)
      return true
    },
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
