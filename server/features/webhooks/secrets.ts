import type { Row } from '../../platform/db/schema.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'

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
