// SSRF protection: addresses that clients choose may lead to the public internet, and to ranges that the operator
// allows.
import { Resolver } from 'node:dns/promises'
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'
import { ConfigError } from '../../config.ts'

type Address = ipaddr.IPv4 | ipaddr.IPv6

/** An address range that the operator allows. A null port allows all ports. */
interface AllowedRange {
  range: [Address, number]
  port: number | null
}

export interface AddressRules {
  /** Why an address and port are blocked; undefined if they are allowed. */
  refusal(address: string, port: number): string | undefined
  /** True if the operator allows any ranges. */
  readonly allowsPrivate: boolean
}

/** Reads `CIDR[:port],…`, with IPv6 as `[::1]/128:80`. Throws a ConfigError that names the part that is wrong. */
export function readAllowed(text: string | undefined): AllowedRange[] {
  if (text === undefined) return []
  return text
    .split(',')
    .map((part) => part.trim())
    .filter(Boolean)
    .map((part) => {
      const match = /^(?:\[([^\]]+)\]|([\d.]+))\/(\d{1,3})(?::(\d{1,5}))?$/.exec(part)
      const address = match?.[1] ?? match?.[2] ?? ''
      const bits = Number(match?.[3])
      const port = match?.[4] === undefined ? null : Number(match[4])
      const version = isIP(address)
      if (version !== (match?.[1] ? 6 : 4) || bits > (version === 6 ? 128 : 32) || port === 0 || (port ?? 0) > 65_535)
        throw new ConfigError(
          `TUNERY_WEBHOOK_ALLOW: '${part}' is not an address range. Write 10.1.0.0/16, 10.1.2.3/32:8080 ` +
            'or [fd00::]/8:443.',
        )
      return { range: [ipaddr.parse(address), bits], port }
    })
}

// Cloud metadata services, which serve credentials: blocked even inside an allowed range.
const metadataAddresses = [
  '169.254.169.254',
  '169.254.170.2',
  '169.254.170.23',
  '168.63.129.16',
  '100.100.100.200',
  '192.0.0.192',
  'fd00:ec2::254',
  'fd00:ec2::23',
  'fd20:ce::254',
].map((text) => ipaddr.parse(text).toNormalizedString())

export function createAddressRules(allowed: readonly AllowedRange[]): AddressRules {
  const allows = (address: Address, port: number) =>
    allowed.some(
      ({ range, port: only }) =>
        (only === null || only === port) && range[0].kind() === address.kind() && address.match(range),
    )

  function refusalOf(address: Address, port: number): string | undefined {
    if (metadataAddresses.includes(address.toNormalizedString()))
      return 'it is a metadata service, which no setting allows'
    const kind = address.kind() === 'ipv4' ? (address as ipaddr.IPv4).range() : ipv6Kind(address as ipaddr.IPv6)
    if (kind !== 'unicast' && !allows(address, port))
      return `it is not on the public internet (${kind}), nor allowed by the operator (TUNERY_WEBHOOK_ALLOW)`
    // An IPv6 transition address leads to the IPv4 address embedded in it: check that too.
    const inner = address.kind() === 'ipv6' ? embeddedIPv4(address as ipaddr.IPv6) : undefined
    return inner && refusalOf(inner, port)
  }

  return {
    allowsPrivate: allowed.length > 0,
    refusal(text, port) {
      if (!isIP(text)) return 'it is not an IP address'
      // `process` converts the IPv4-mapped ::ffff:a.b.c.d to IPv4, as the system does when it connects.
      return refusalOf(ipaddr.process(text), port)
    },
  }
}

const globalUnicast = ipaddr.IPv6.parse('2000::')

/** The kind of an IPv6 address. Only publicly routed addresses are `unicast`. */
function ipv6Kind(address: ipaddr.IPv6): string {
  const range = address.range()
  if (range !== 'unicast') return range
  if (!address.match(globalUnicast, 3)) return 'outside of 2000::/3'
  return isIsatap(address) ? 'isatap' : range
}

/** ISATAP embeds an IPv4 address behind 0:5efe or 200:5efe, in the addresses of any network. */
const isIsatap = ({ parts }: ipaddr.IPv6) => (parts[4] === 0 || parts[4] === 0x200) && parts[5] === 0x5efe

/** The IPv4 address embedded in an IPv6 transition address, or undefined. */
function embeddedIPv4(address: ipaddr.IPv6): ipaddr.IPv4 | undefined {
  const { parts } = address
  const from = (high: number, low: number) => new ipaddr.IPv4([high >> 8, high & 255, low >> 8, low & 255])
  const last = from(parts[6]!, parts[7]!)
  const range: string = address.range()
  if (range === '6to4') return from(parts[1]!, parts[2]!)
  if (range === 'teredo') return from(parts[6]! ^ 0xffff, parts[7]! ^ 0xffff)
  if (range === 'rfc6052' || range === 'rfc6145' || isIsatap(address)) return last
  // The deprecated IPv4-compatible form ::a.b.c.d.
  return range === 'unicast' && parts.slice(0, 6).every((part) => part === 0) ? last : undefined
}

// Name resolution: the hosts file, then DNS.

/** The addresses of a name; empty if the name does not exist. Throws if the name servers do not answer. */
export type Resolve = (name: string, signal: AbortSignal) => Promise<string[]>

const loopbackName = /(^|\.)(localhost|localhost\.localdomain|ip6-localhost|ip6-loopback)$/

/** The loopback addresses for localhost names, regardless of DNS (RFC 6761); undefined for other names. */
export const loopbackOf = (name: string): string[] | undefined =>
  loopbackName.test(name) ? ['127.0.0.1', '::1'] : undefined

const hostsFile =
  process.platform === 'win32' ? `${process.env.SystemRoot}\\System32\\drivers\\etc\\hosts` : '/etc/hosts'

// Not `dns.lookup`: it blocks one of libuv's four threads while it waits, so four slow names would stop all file I/O.
// `Resolver` uses no thread and can be cancelled.
export const resolve: Resolve = async (name, signal) => {
  const local = loopbackOf(name) ?? (await inHostsFile(name))
  if (local.length > 0) return local
  const resolver = new Resolver({ timeout: 3000, tries: 2 })
  const cancel = () => resolver.cancel()
  signal.addEventListener('abort', cancel, { once: true })
  try {
    signal.throwIfAborted()
    const [four, six] = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
    const addresses = [four, six].flatMap((lookup) => (lookup.status === 'fulfilled' ? lookup.value : []))
    const failed = [four, six].find(
      (lookup) => lookup.status === 'rejected' && !['ENODATA', 'ENOTFOUND'].includes(lookup.reason.code),
    )
    if (addresses.length === 0 && failed) throw (failed as PromiseRejectedResult).reason
    return addresses
  } finally {
    signal.removeEventListener('abort', cancel)
  }
}

async function inHostsFile(name: string): Promise<string[]> {
  const text = await readFile(hostsFile, 'utf8').catch(() => '')
  return text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/)
    return isIP(address) && names.some((allowed) => allowed.toLowerCase() === name) ? [address] : []
  })
}
