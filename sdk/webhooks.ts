// Verifies what a webhook of Tunery received: the Standard Webhooks signature, with Web Crypto alone.

export class WebhookVerificationError extends Error {
  override readonly name = 'WebhookVerificationError'
}

/** An event as it is delivered. `data` depends on the type: docs/reference/events.md. */
export interface WebhookEvent {
  id: string
  type: string
  created_at: string
  data: Record<string, unknown>
}

export interface VerifyOptions {
  /** Seconds that the clock of a delivery may be off. Default 300. */
  tolerance_seconds?: number | undefined
  now?: (() => number) | undefined
}

type HeaderSource = Headers | Record<string, string | string[] | undefined>

const header = (headers: HeaderSource, name: string) => {
  if (headers instanceof Headers) return headers.get(name) ?? ''
  const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1]
  return (Array.isArray(found) ? found[0] : found) ?? ''
}

/**
 * The event of a delivery. `body` is the text or the bytes as they were received, before any parsing. During a rotation
 * give both secrets. Throws a WebhookVerificationError for anything that is not genuine or not recent.
 */
export async function verifyWebhook(
  body: string | Uint8Array,
  headers: HeaderSource,
  secrets: string | readonly string[],
  { tolerance_seconds = 300, now = Date.now }: VerifyOptions = {},
): Promise<WebhookEvent> {
  const id = header(headers, 'webhook-id')
  const timestamp = header(headers, 'webhook-timestamp')
  const given = header(headers, 'webhook-signature')
    .split(' ')
    .filter((each) => each.startsWith('v1,'))
    .flatMap((each) => bytesOf(each.slice(3)) ?? [])
  if (!id || !/^\d+$/.test(timestamp) || given.length === 0)
    throw new WebhookVerificationError('The headers webhook-id, webhook-timestamp and webhook-signature are not there.')
  if (Math.abs(now() / 1000 - Number(timestamp)) > tolerance_seconds)
    throw new WebhookVerificationError(`The delivery is more than ${tolerance_seconds} s old, or the clock is wrong.`)
  const content = typeof body === 'string' ? body : new TextDecoder('utf-8', { ignoreBOM: true }).decode(body)
  const signed = new TextEncoder().encode(`${id}.${timestamp}.${content}`)
  for (const secret of typeof secrets === 'string' ? [secrets] : secrets) {
    const key = await crypto.subtle.importKey('raw', keyOf(secret), { name: 'HMAC', hash: 'SHA-256' }, false, [
      'verify',
    ])
    // `verify` compares in constant time.
    for (const signature of given)
      if (await crypto.subtle.verify('HMAC', key, signature, signed)) return JSON.parse(content) as WebhookEvent
  }
  throw new WebhookVerificationError('No signature of the delivery is right: wrong secret, or not from the service.')
}

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  const decoded = secret.startsWith('whsec_') ? bytesOf(secret.slice(6)) : new TextEncoder().encode(secret)
  if (!decoded || decoded.length === 0) throw new TypeError('The secret after whsec_ is not base64.')
  return decoded
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0))
  } catch {
    return undefined
  }
}
