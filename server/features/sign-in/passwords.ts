// Passwords as argon2id hashes in PHC form.
import { type Argon2Algorithm, type Argon2Parameters, argon2, randomBytes, timingSafeEqual } from 'node:crypto'
import { promisify } from 'node:util'
import { ApiError } from '../../../contract/errors.ts'
import { passwordLength } from '../../../contract/sign-in.ts'
import { createMutex } from '../../../lib/mutex.ts'

/** OWASP's parameters: memory in KiB, passes, lanes. */
const memory = 19_456
const passes = 2
const parallelism = 1
const tagLength = 32

const derive = promisify(
  argon2 as (a: Argon2Algorithm, p: Argon2Parameters, done: (e: Error | null, key: Buffer) => void) => void,
)
/** One at a time: each takes 19 MB and a core, and who signs in can wait. */
const mutex = createMutex()
/** Most hashes in progress and waiting: about two seconds of work, so that many sign-ins at once pile up nothing. */
export const hashesMax = 32
let hashes = 0

/** Throws overloaded while too many wait. */
async function hashOf(
  password: string,
  nonce: Buffer,
  cost: { memory: number; passes: number; parallelism: number },
): Promise<Buffer> {
  if (hashes >= hashesMax) throw new ApiError('overloaded', 'Many people sign in at once. Try again in a moment.')
  hashes++
  const message = password.normalize('NFKC')
  return mutex(() => derive('argon2id', { message, nonce, tagLength, ...cost })).finally(() => hashes--)
}

const base64 = (bytes: Buffer) => bytes.toString('base64').replaceAll('=', '')

export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(16)
  const tag = await hashOf(password, salt, { memory, passes, parallelism })
  return `$argon2id$v=19$m=${memory},t=${passes},p=${parallelism}$${base64(salt)}$${base64(tag)}`
}

const pattern = /^\$argon2id\$v=19\$m=(\d+),t=(\d+),p=(\d+)\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/

/** Whether the password is right. Takes as long without a hash, so that its absence does not show. */
export async function verifyPassword(hash: string | undefined, password: string): Promise<boolean> {
  const [, m = memory, t = passes, p = parallelism, salt = 'AAAAAAAAAAAAAAAAAAAAAA', tag = ''] =
    pattern.exec(hash ?? '') ?? []
  const cost = { memory: Number(m), passes: Number(t), parallelism: Number(p) }
  const computed = await hashOf(password, Buffer.from(salt, 'base64'), cost)
  const expected = Buffer.from(tag, 'base64')
  return computed.length === expected.length && timingSafeEqual(computed, expected)
}

/** Whether a hash was made with other parameters than today's. */
export const isOutdated = (hash: string) => !hash.startsWith(`$argon2id$v=19$m=${memory},t=${passes},p=${parallelism}$`)

// Those of ten characters and more that lists of stolen passwords begin with.
const commonest = new Set(
  (
    'password12 password123 password1234 passw0rd123 1234567890 12345678910 123456789a 0123456789 9876543210 ' +
    '0987654321 qwertyuiop qwerty12345 qwerty123456 1q2w3e4r5t 1qaz2wsx3edc asdfghjkl1 iloveyou123 letmein123 ' +
    'welcome123 administrator changeme123 abcdefghij abc1234567 aaaaaaaaaa 1111111111 0000000000 football123 ' +
    'sunshine123 princess123'
  ).split(' '),
)

/** Throws password_refused for a password that is guessed first. */
export function requireGoodPassword(password: string, email: string | null): void {
  const plain = password.toLowerCase()
  const local = email?.toLowerCase().split('@')[0] ?? ''
  const isEmail = email !== null && (plain === email.toLowerCase() || (local.length >= 5 && plain === local))
  if (!commonest.has(plain) && new Set(plain).size > 2 && !isEmail) return
  throw new ApiError(
    'password_refused',
    `This password is among the first that are guessed. Take ${passwordLength.min} characters or more of your own.`,
    { param: 'password' },
  )
}
