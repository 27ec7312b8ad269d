import { randomBytes } from 'node:crypto'

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

/** `length` random characters of base62, each equally likely. */
export function randomBase62(length: number): string {
  let text = ''
  while (text.length < length) for (const byte of randomBytes(length)) if (byte < 248 && text.length < length) text += alphabet[byte % 62]
  return text
}

export type IdPrefix = 'acc' | 'usr' | 'key' | 'ds' | 'job' | 'mdl' | 'dep' | 'evt' | 'req' | 'est' | 'imp'

/** A new id: the prefix of its kind and 20 random characters (119 bits). */
export const newId = (prefix: IdPrefix) => `${prefix}_${randomBase62(20)}`
