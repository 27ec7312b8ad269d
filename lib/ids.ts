import { randomFillSync } from 'node:crypto'

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

// Random bytes are fetched 4096 at a time: a system call costs more than the rest of an id, and every request has one.
const pool = Buffer.alloc(4096)
let consumed = pool.length

function randomByte(): number {
  if (consumed === pool.length) {
    randomFillSync(pool)
    consumed = 0
  }
  const byte = pool[consumed]!
  // Clear it: the byte may become part of an API key.
  pool[consumed++] = 0
  return byte
}

/** `length` random base62 characters, uniformly distributed. */
export function randomBase62(length: number): string {
  let text = ''
  while (text.length < length) {
    const byte = randomByte()
    if (byte < 248) text += alphabet[byte % 62]
  }
  return text
}

type IdPrefix =
  | 'acc'
  | 'usr'
  | 'key'
  | 'aud'
  | 'ses'
  | 'inv'
  | 'psk'
  | 'ds'
  | 'job'
  | 'mdl'
  | 'dep'
  | 'evt'
  | 'whk'
  | 'dlv'
  | 'req'
  | 'est'
  | 'imp'
  | 'exp'
  | 'file'
  | 'upl'
  | 'part'
  | 'batch'
  | 'batch_req'
  | 'resp'
  | 'msg'
  | 'fc'
  | 'ctc'
  | 'rs'
  | 'eval'
  | 'evaldef'
  | 'grun'
  | 'chg'
  | 'shr'
  | 'srv'
  | 'rep'
  | 'scd'
  | 'tns'
  | 'tnc'

/** A new id: a prefix for its kind and 20 random characters (119 bits). */
export const newId = (prefix: IdPrefix) => `${prefix}_${randomBase62(20)}`
