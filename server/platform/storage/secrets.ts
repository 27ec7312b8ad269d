// Encryption at rest for secrets that must be readable again: webhook secrets, and stored answers with a new API key.
import { createCipheriv, createDecipheriv, createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { sql } from 'kysely'
import type { Logger } from 'pino'
import { isThere } from '../../../lib/file-problem.ts'
import type { Db } from '../db/open.ts'
import { KeyUnusable, readOrCreateKey } from './key-file.ts'

export interface Secrets {
  /** Tells the key from others, and nothing about it. */
  keyId: string
  /** Encrypts a text bound to `context`, such as its row's id, so that ciphertexts cannot be swapped between rows. */
  encrypt(text: string, context: string): string
  /** Throws if the text was encrypted with another key or context, or was changed. */
  decrypt(sealed: string, context: string): string
  /** A token that belongs to `context`: the same on all servers with this key, and not to be guessed without it. */
  derive(context: string): string
}

const cipher = 'aes-256-gcm'
const nonceBytes = 12
const tagBytes = 16

/** AES-256-GCM with a random nonce and the key in `file`, which is created if missing. */
export function createSecrets(file: string): Secrets {
  const key = readOrCreateKey(file)
  const keyId = createHash('sha256').update('name').update(key).digest('hex').slice(0, 8)
  return {
    keyId,
    derive: (context) => createHmac('sha256', key).update('derive ').update(context).digest('base64url'),
    encrypt(text, context) {
      const nonce = randomBytes(nonceBytes)
      const sealing = createCipheriv(cipher, key, nonce).setAAD(Buffer.from(context))
      const body = Buffer.concat([nonce, sealing.update(text, 'utf8'), sealing.final(), sealing.getAuthTag()])
      return `v1.${keyId}.${body.toString('base64url')}`
    },
    decrypt(sealed, context) {
      const [version, sealedWith, body] = sealed.split('.')
      if (version !== 'v1' || !body) throw new Error('this is not an encrypted secret')
      if (sealedWith !== keyId)
        throw new Error(
          `this secret was encrypted with another key than that of ${file}: ` +
            'set TUNERY_SECRET_KEY_FILE to the right one',
        )
      const bytes = Buffer.from(body, 'base64url')
      const opening = createDecipheriv(cipher, key, bytes.subarray(0, nonceBytes))
        .setAAD(Buffer.from(context))
        .setAuthTag(bytes.subarray(-tagBytes))
      return opening.update(bytes.subarray(nonceBytes, -tagBytes), undefined, 'utf8') + opening.final('utf8')
    },
  }
}

/** What is sealed in the database: the columns, and what they hold in words. */
const sealedColumns = [
  { table: 'webhooks', column: 'secrets_json', like: '%"v1.', what: 'the secrets of webhooks' },
  { table: 'training_runs', column: 'token_encrypted', like: 'v1.', what: 'tokens of runs in a cluster' },
  { table: 'idempotency_keys', column: 'answer_sealed', like: 'v1.', what: 'stored answers of the last day' },
] as const

/**
 * The secrets of an installation. A key file is made only where no row needs an earlier one: otherwise throws
 * KeyUnusable. Rows of another key stay unreadable until it is back; the log says so.
 */
export async function openSecrets(file: string, db: Db, log: Logger): Promise<Secrets> {
  const sealed = isThere(file) ? [] : await sealedWithout(db, undefined)
  if (sealed.length > 0)
    throw new KeyUnusable(
      `The key file ${file} is missing, and rows of the database are encrypted with it (${sealed.join(', ')}). ` +
        'Nothing was changed. Put your copy of it back, or set TUNERY_SECRET_KEY_FILE to that copy. If the key is ' +
        `lost for good, make another one ('head -c 32 /dev/urandom > ${file}') and rotate the secret of each ` +
        'webhook.',
    )
  const secrets = createSecrets(file)
  const unreadable = await sealedWithout(db, secrets.keyId)
  if (unreadable.length > 0)
    log.error(
      `Rows of the database are encrypted with another key than that of ${file} (${unreadable.join(', ')}): set ` +
        'TUNERY_SECRET_KEY_FILE to the right one. If it is lost for good, rotate the secret of each webhook.',
    )
  return secrets
}

/** What rows have in words that are sealed with another key than this one, or with any. */
async function sealedWithout(db: Db, keyId: string | undefined): Promise<string[]> {
  const damaged: string[] = []
  for (const { table, column, like, what } of sealedColumns) {
    const value = sql.ref(column)
    const other = keyId === undefined ? sql`true` : sql`${value} not like ${`${like}${keyId}.%`}`
    const { rows } = await sql<{ count: number }>`
      select count(*) as count from ${sql.table(table)} where ${value} like ${`${like}%`} and ${other}`.execute(db)
    if (Number(rows[0]?.count) > 0) damaged.push(`${what}: ${rows[0]!.count}`)
  }
  return damaged
}

/** Compares texts in a time that tells nothing of where they differ. */
export function sameSecret(a: string, b: string): boolean {
  const [left, right] = [Buffer.from(a), Buffer.from(b)]
  return left.length === right.length && timingSafeEqual(left, right)
}
