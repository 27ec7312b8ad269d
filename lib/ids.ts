import { randomFillSync } from 'node:crypto'

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

// Asked of the system a page at a time: each asking costs more than all the rest of an id, and every request has one.
const random = Buffer.alloc(4096)
let used = random.length

function randomByte(): number {
  if (used === random.length) {
    randomFillSync(random)
    used = 0
  }
  const byte = random[used]!
  // What has become part of a key is not kept here beside it.
  random[used++] = 0
  return byte
}

/** `length` random characters of base62, each equally likely. */
export function randomBase62(length: number): string {
  let text = ''
  while (text.length < length) {
    const byte = randomByte()
    if (byte < 248) text += alphabet[byte % 62]
  }
  return text
}

export type IdPrefix =
  | 'acc'
  | 'usr'
  | 'key'
  | 'aud'
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

/** A new id: the prefix of its kind and 20 random characters (119 bits). */
export const newId = (prefix: IdPrefix) => `${prefix}_${randomBase62(20)}`
