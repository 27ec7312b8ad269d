import { createHmac, randomBytes } from 'node:crypto'

const prefix = 'whsec_'

/** A new secret, in the form that Standard Webhooks gives them. */
export const newSecret = () => prefix + randomBytes(32).toString('base64')

/** Why a secret cannot be one; undefined where it can. */
export function secretProblem(secret: string): string | undefined {
  if (!/^[\x20-\x7e]+$/.test(secret)) return 'may have printable ASCII characters only'
  if (!secret.startsWith(prefix)) return undefined
  const rest = secret.slice(prefix.length)
  const key = Buffer.from(rest, 'base64')
  if (key.length > 0 && key.toString('base64') === rest) return undefined
  return `begins with ${prefix}, so the rest must be base64, with its padding, of 1 byte or more`
}

/**
 * The key that Standard Webhooks signs with: what `whsec_` is followed by, decoded; any other secret's bytes as given.
 */
const standardKey = (secret: string) =>
  secret.startsWith(prefix) ? Buffer.from(secret.slice(prefix.length), 'base64') : Buffer.from(secret)

/**
 * The headers that prove who sends a body. `secrets` are those in force, oldest first. `X-Service-Signature` holds one
 * value only, so it stays with the oldest until that ends: a receiver that knows no other goes on working, and one that
 * knows both does in either case.
 */
export function signatureHeaders(
  secrets: readonly string[],
  id: string,
  body: string,
  now: number,
): Record<string, string> {
  const timestamp = Math.floor(now / 1000)
  const standard = secrets.map(
    (secret) => `v1,${createHmac('sha256', standardKey(secret)).update(`${id}.${timestamp}.${body}`).digest('base64')}`,
  )
  return {
    'x-service-signature': createHmac('sha256', secrets[0]!).update(body).digest('hex'),
    'webhook-id': id,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': standard.reverse().join(' '),
  }
}
