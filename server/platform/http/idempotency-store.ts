// Stores what was created under each Idempotency-Key. The record is written in the transaction that creates the object,
// so a crash cannot separate the two and a retry never creates a second object.
import type { Db, Queryable } from '../db/open.ts'
import { idempotencyRetention_ms } from '../events/retention.ts'
import type { Secrets } from '../storage/secrets.ts'
import { type Idempotency, KeyTaken } from './idempotency.ts'

/** Longest answer that is kept, in characters of JSON: none with a secret is longer. */
const answerMax = 100_000

interface Options {
  db: Db
  secrets: Secrets
  now?: () => number
}

export function createIdempotency({ db, secrets, now = Date.now }: Options): Idempotency {
  const sealContext = (account_id: string, key: string) => `idempotency ${account_id} ${key}`
  const row = (db: Queryable, account_id: string, key: string) =>
    db.selectFrom('idempotency_keys').selectAll().where('account_id', '=', account_id).where('key', '=', key)

  return {
    async find(account_id, key) {
      const found = await row(db, account_id, key)
        .where('created_at', '>', now() - idempotencyRetention_ms)
        .executeTakeFirst()
      if (!found) return undefined
      const { fingerprint, target, answer_sealed, created_at } = found
      return {
        fingerprint,
        target,
        created_at,
        answer: answer_sealed === null ? undefined : secrets.decrypt(answer_sealed, sealContext(account_id, key)),
      }
    },

    async mark(trx, account_id, key, fingerprint, target) {
      await trx
        .deleteFrom('idempotency_keys')
        .where('account_id', '=', account_id)
        .where('key', '=', key)
        .where('created_at', '<=', now() - idempotencyRetention_ms)
        .execute()
      const { numInsertedOrUpdatedRows } = await trx
        .insertInto('idempotency_keys')
        .values({ account_id, key, fingerprint, target, answer_sealed: null, created_at: now() })
        .onConflict((conflict) => conflict.doNothing())
        .executeTakeFirstOrThrow()
      if (numInsertedOrUpdatedRows === 0n) throw new KeyTaken('this Idempotency-Key is in use')
    },

    async storeAnswer(account_id, key, answer) {
      // It is made again of the object.
      if (answer.length > answerMax) return
      // Encrypted: an answer may hold a secret that is shown only once.
      const answer_sealed = secrets.encrypt(answer, sealContext(account_id, key))
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
