// Creating requests that come twice. That something was created under a key is written in the transaction that creates
// it, so that not even a crash between the two lets a second try create it again.
import type { Db, Trx } from '../db/open.ts'
import type { Secrets } from '../storage/secrets.ts'
import type { Idempotency } from './idempotency.ts'

/** How long an answer is kept. */
export const kept_ms = 86_400_000

interface Options {
  db: Db
  secrets: Secrets
  now?: () => number
}

export function createIdempotency({ db, secrets, now = Date.now }: Options): Idempotency {
  const place = (account_id: string, key: string) => `idempotency ${account_id} ${key}`
  const row = (db: Db | Trx, account_id: string, key: string) =>
    db.selectFrom('idempotency_keys').selectAll().where('account_id', '=', account_id).where('key', '=', key)

  return {
    async find(account_id, key) {
      const found = await row(db, account_id, key)
        .where('created_at', '>', now() - kept_ms)
        .executeTakeFirst()
      if (!found) return undefined
      const { fingerprint, target, answer_sealed } = found
      return {
        fingerprint,
        target,
        answer: answer_sealed === null ? undefined : secrets.open(answer_sealed, place(account_id, key)),
      }
    },

    async mark(trx, account_id, key, fingerprint, target) {
      await trx
        .deleteFrom('idempotency_keys')
        .where('account_id', '=', account_id)
        .where('key', '=', key)
        .where('created_at', '<=', now() - kept_ms)
        .execute()
      await trx
        .insertInto('idempotency_keys')
        .values({ account_id, key, fingerprint, target, answer_sealed: null, created_at: now() })
        .execute()
    },

    async keep(account_id, key, answer) {
      // An answer may hold a secret that is shown this once.
      const answer_sealed = secrets.seal(answer, place(account_id, key))
      await db
        .updateTable('idempotency_keys')
        .set({ answer_sealed })
        .where('account_id', '=', account_id)
        .where('key', '=', key)
        .execute()
    },

    async forget(account_id, key) {
      await db.deleteFrom('idempotency_keys').where('account_id', '=', account_id).where('key', '=', key).execute()
    },
  }
}
