// Where a webhook's URL leads, as far as the URL itself shows it.
import { isIP } from 'node:net'
import type { AddressRules } from './addresses.ts'

export interface Target {
  url: URL
  /** A name, or an address without brackets. */
  host: string
  port: number
}

/** A URL that cannot be one of a webhook, or that shows an address that may not be reached. */
export class BadTarget extends Error {
  readonly blocked: boolean
  constructor(message: string, blocked = false) {
    super(message)
    this.blocked = blocked
  }
}

/** Names that only ever lead inside of a network. What other names lead to shows when they are looked up. */
const inside = /(^|\.)(local|internal|intranet|private|corp|home|lan|localdomain|home\.arpa)$/
const loopbackName = /(^|\.)(localhost|localhost\.localdomain|ip6-localhost|ip6-loopback)$/

/** What a name of this machine itself stands for, whatever a name server says (RFC 6761); undefined for other names. */
export const loopbackOf = (name: string): string[] | undefined =>
  loopbackName.test(name) ? ['127.0.0.1', '::1'] : undefined

/** Takes a URL apart as the connection will be made. Throws a BadTarget that says what is wrong with it. */
export function readTarget(text: string, rules: AddressRules): Target {
  // The parser of URLs drops some of these in silence, so that what is read is not what is used.
  if (/[\s\p{Cc}\p{Cf}]/u.test(text)) throw new BadTarget('it has spaces or invisible characters in it')
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url) throw new BadTarget('it is not a valid URL')
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new BadTarget('it must begin with https:// or http://')
  if (url.username || url.password)
    throw new BadTarget('it may not carry a user or password; the signature shows who sends')
  const host = url.hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '')
  const port = Number(url.port) || (url.protocol === 'https:' ? 443 : 80)
  if (host === '' || url.port === '0') throw new BadTarget('it names no host, or no port')
  const shown = isIP(host) ? [host] : loopbackOf(host)
  const refusals = (shown ?? []).map((address) => rules.refusal(address, port))
  if (shown && refusals.every(Boolean)) throw new BadTarget(`${host} may not be reached: ${refusals[0]}`, true)
  // Where the operator allows addresses inside, the address decides.
  if (!rules.opened && inside.test(host))
    throw new BadTarget(
      `${host} may not be reached: it is a name inside of a network, and the operator allows no address there (TUNERY_WEBHOOK_ALLOW)`,
      true,
    )
  return { url, host, port }
}
