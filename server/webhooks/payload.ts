import type { Row } from '../db/schema.ts'
import type { Secrets } from '../storage/secrets.ts'

/**
 * The body of an event's deliveries: the same bytes at every try, as they are made of nothing but what was recorded
 * with it.
 */
export function payloadOf({ id, type, created_at, data_json }: Row<'events'>): string {
  return `{"id":${JSON.stringify(id)},"type":${JSON.stringify(type)},"created_at":"${new Date(created_at).toISOString()}","data":${data_json}}`
}

/** One of a webhook's secrets as it is kept: encrypted, and until when it is in force; null of the newest alone. */
export interface KeptSecret {
  sealed: string
  expires_at: number | null
}

export const keptSecrets = ({ secrets_json }: { secrets_json: string }, now: number): KeptSecret[] =>
  (JSON.parse(secrets_json) as KeptSecret[]).filter(({ expires_at }) => expires_at === null || expires_at > now)

/** The secrets that sign now, oldest first. */
export const secretsInForce = (webhook: Row<'webhooks'>, secrets: Secrets, now: number): string[] =>
  keptSecrets(webhook, now).map(({ sealed }) => secrets.open(sealed, webhook.id))
