import { fromJson } from '../../platform/db/json.ts'
import type { Row } from '../../platform/db/schema.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'

/** Stored secrets: encrypted, with their expiry. Only the newest has none. */
export const activeSecrets = ({ secrets_json }: Pick<Row<'webhooks'>, 'secrets_json'>, now: number) =>
  fromJson(secrets_json).filter(({ expires_at }) => expires_at === null || expires_at > now)

/** The decrypted active secrets, oldest first. */
export const signingSecrets = (webhook: Row<'webhooks'>, secrets: Secrets, now: number): string[] =>
  activeSecrets(webhook, now).map(({ sealed }) => secrets.decrypt(sealed, webhook.id))
