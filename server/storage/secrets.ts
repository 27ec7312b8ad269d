// Secrets that must be read again (those of webhooks, answers that hold a new key) are in the database encrypted only.
import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto'
import { keyOf } from './key-file.ts'

export interface Secrets {
  /**
   * Encrypts a text for one `place`, such as the id of its row: it opens nowhere else, so that rows cannot be
   * exchanged.
   */
  seal(text: string, place: string): string
  /** Throws where the text was sealed with another key or for another place, or was changed. */
  open(sealed: string, place: string): string
}

const cipher = 'aes-256-gcm'
const nonceBytes = 12
const tagBytes = 16

/** AES-256-GCM with a random nonce and the key of `file`, which is made where there is none. */
export function createSecrets(file: string): Secrets {
  const key = keyOf(file)
  const name = createHash('sha256').update('name').update(key).digest('hex').slice(0, 8)
  return {
    seal(text, place) {
      const nonce = randomBytes(nonceBytes)
      const sealing = createCipheriv(cipher, key, nonce).setAAD(Buffer.from(place))
      const body = Buffer.concat([nonce, sealing.update(text, 'utf8'), sealing.final(), sealing.getAuthTag()])
      return `v1.${name}.${body.toString('base64url')}`
    },
    open(sealed, place) {
      const [version, by, body] = sealed.split('.')
      if (version !== 'v1' || !body) throw new Error('this is no sealed secret')
      if (by !== name)
        throw new Error(
          `this secret was sealed with another key than that of ${file}: set TUNERY_SECRET_KEY_FILE to the right one`,
        )
      const bytes = Buffer.from(body, 'base64url')
      const opening = createDecipheriv(cipher, key, bytes.subarray(0, nonceBytes))
        .setAAD(Buffer.from(place))
        .setAuthTag(bytes.subarray(-tagBytes))
      return opening.update(bytes.subarray(nonceBytes, -tagBytes), undefined, 'utf8') + opening.final('utf8')
    },
  }
}
