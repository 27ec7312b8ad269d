// Encryption at rest for secrets that must be readable again: webhook secrets, and stored answers with a new API key.
import { createCipheriv, createDecipheriv, createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { readOrCreateKey } from './key-file.ts'

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

/** Compares texts in a time that tells nothing of where they differ. */
export function sameSecret(a: string, b: string): boolean {
  const [left, right] = [Buffer.from(a), Buffer.from(b)]
  return left.length === right.length && timingSafeEqual(left, right)
}
