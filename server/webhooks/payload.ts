import { isoTime } from '../../lib/utc-day.ts'
import type { Row } from '../db/schema.ts'
import type { Secrets } from '../storage/secrets.ts'

/** The body of an event's deliveries: the same bytes in each attempt, because only the event's row is used. */
export function payloadOf({ id, type, created_at, data_json }: Row<'events'>): string {
  const time = isoTime(created_at)
  return `{"id":${JSON.stringify(id)},"type":${JSON.stringify(type)},"created_at":"${time}","data":${data_json}}`
}

/** A stored webhook secret: encrypted, with its expiry. Only the newest has none (null). */
export interface StoredSecret {
  sealed: string
  expires_at: number | null
}

export const activeSecrets = ({ secrets_json }: { secrets_json: string }, now: number): StoredSecret[] =>
  (JSON.parse(secrets_json) as StoredSecret[]).filter(({ expires_at }) => expires_at === null || expires_at > now)

/** The decrypted active secrets, oldest first. */
export const signingSecrets = (webhook: Row<'webhooks'>, secrets: Secrets, now: number): string[] =>
  activeSecrets(webhook, now).map(({ sealed }) => secrets.decrypt(sealed, webhook.id))
