import { crc32 } from 'node:zlib'
import { randomBase62 } from '../ids.ts'

// `tny_`, 30 characters of base62 (178 bits), 6 of checksum: secret scanners can find such a key, and a typo is told apart from a
// wrong key without a look-up.
const pattern = /^tny_[0-9A-Za-z]{36}$/
export const prefixLength = 12

const checksum = (body: string) => toBase62(crc32(body)).padStart(6, '0')

export function newKey(): string {
  const body = randomBase62(30)
  return `tny_${body}${checksum(body)}`
}

/** Whether the text could be a key at all. */
export function isWellFormed(key: string): boolean {
  return pattern.test(key) && key.slice(34) === checksum(key.slice(4, 34))
}

function toBase62(value: number): string {
  const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
  let text = ''
  for (let rest = value; rest > 0; rest = Math.floor(rest / 62)) text = alphabet[rest % 62] + text
  return text
}
