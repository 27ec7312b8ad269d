// The format of API keys, and the hash under which they are stored.
import { hash } from 'node:crypto'
import { crc32 } from 'node:zlib'
import { randomBase62 } from './ids.ts'

// `tny_`, 30 characters of base62 (178 bits) and a checksum of 6: secret scanners can find such a key, and a typo is
// detected without a lookup.
const pattern = /^tny_[0-9A-Za-z]{36}$/
export const prefixLength = 12

const checksum = (body: string) => toBase62(crc32(body)).padStart(6, '0')

export function newKey(): string {
  const body = randomBase62(30)
  return `tny_${body}${checksum(body)}`
}

/** Checks the format and the checksum. */
export function isWellFormed(key: string): boolean {
  return pattern.test(key) && key.slice(34) === checksum(key.slice(4, 34))
}

function toBase62(value: number): string {
  const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
  let text = ''
  for (let rest = value; rest > 0; rest = Math.floor(rest / 62)) text = alphabet[rest % 62] + text
  return text
}

export const hashOf = (key: string) => hash('sha256', key, 'hex')
