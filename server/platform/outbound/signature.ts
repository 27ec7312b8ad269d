import { createHmac, randomBytes } from 'node:crypto'

const prefix = 'whsec_'

/** A new secret in the Standard Webhooks format. */
export const newSecret = () => prefix + randomBytes(32).toString('base64')

/** Why a secret is invalid; undefined if it is valid. */
export function secretProblem(secret: string): string | undefined {
  if (!/^[\x20-\x7e]+$/.test(secret)) return 'may have printable ASCII characters only'
  if (!secret.startsWith(prefix)) return undefined
  const rest = secret.slice(prefix.length)
  const key = Buffer.from(rest, 'base64')
  if (key.length > 0 && key.toString('base64') === rest) return undefined
  return `begins with ${prefix}, so the rest must be base64, with its padding, of 1 byte or more`
}

/** The Standard Webhooks signing key: the decoded base64 after `whsec_`, or the bytes of any other secret. */
const standardKey = (secret: string) =>
  secret.startsWith(prefix) ? Buffer.from(secret.slice(prefix.length), 'base64') : Buffer.from(secret)

/**
 * The signature headers of a body. `secrets` are the active ones, oldest first. `X-Service-Signature` has one value, so
 * it uses the oldest secret until that expires: during a rotation, receivers with the old secret continue to work.
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
