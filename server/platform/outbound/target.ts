// Parses and checks a URL of a client, before its name is resolved.
import { isIP } from 'node:net'
import { type AddressRules, loopbackOf } from './addresses.ts'

export interface Target {
  url: URL
  /** A host name, or an IP address without brackets. */
  host: string
  port: number
}

/** The URL is invalid, or has a blocked address (`blocked`). */
export class BadTarget extends Error {
  readonly blocked: boolean
  constructor(message: string, blocked = false) {
    super(message)
    this.blocked = blocked
  }
}

/** Names of private networks. Other names are checked after they are resolved. */
const privateName = /(^|\.)(local|internal|intranet|private|corp|home|lan|localdomain|home\.arpa)$/

/** Parses a URL into the host and port to connect to. Throws BadTarget. */
export function readTarget(text: string, rules: AddressRules): Target {
  // The URL parser silently drops some of these characters.
  if (/[\s\p{Cc}\p{Cf}]/u.test(text)) throw new BadTarget('it has spaces or invisible characters in it')
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url) throw new BadTarget('it is not a valid URL')
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new BadTarget('it must begin with https:// or http://')
  if (url.username || url.password) throw new BadTarget('it may not carry a user or password')
  const host = url.hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '')
  const port = Number(url.port) || (url.protocol === 'https:' ? 443 : 80)
  if (host === '' || url.port === '0') throw new BadTarget('it has no host or an invalid port')
  const literal = isIP(host) ? [host] : loopbackOf(host)
  const refusals = (literal ?? []).map((address) => rules.refusal(address, port))
  if (literal && refusals.every(Boolean)) throw new BadTarget(`${host} may not be reached: ${refusals[0]}`, true)
  // If the operator allows private ranges, the resolved address decides.
  if (!rules.allowsPrivate && privateName.test(host))
    throw new BadTarget(
      `${host} may not be reached: it is a name inside of a network, and the operator allows no address ` +
        'there (TUNERY_WEBHOOK_ALLOW)',
      true,
    )
  return { url, host, port }
}
