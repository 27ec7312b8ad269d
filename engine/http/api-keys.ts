// API keys of a stand-alone engine. Read from a file or the environment, never from the command line, which every user
// of the machine can read.
import { createHash, timingSafeEqual } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { ApiError } from '../../contract/errors.ts'

export const keyVariable = 'TUNERY_ENGINE_KEY'
const charactersMin = 16

export interface ApiKeys {
  /** Throws ApiError invalid_api_key unless the request carries a valid key. */
  check(request: IncomingMessage): void
}

/**
 * Reads the keys from the file (one per line) or from the environment. Returns null if neither is set. Throws if a key
 * is malformed or the file has none: an empty file must not open the server.
 */
export function readApiKeys(file: string | undefined, env: NodeJS.ProcessEnv): ApiKeys | null {
  const keyFromEnv = env[keyVariable]
  if (file === undefined && keyFromEnv === undefined) return null
  if (file !== undefined && keyFromEnv !== undefined)
    throw new Error(`Give the keys in --api-key-file or in ${keyVariable}, not in both.`)
  const lines = (file === undefined ? keyFromEnv! : readText(file)).split('\n').map((line) => line.trim())
  const keys = lines.filter((line) => line !== '' && !line.startsWith('#'))
  const source = file === undefined ? keyVariable : `The file of --api-key-file, ${file},`
  if (keys.length === 0)
    throw new Error(`${source} holds no key. Put one in, or omit the setting to serve anyone who reaches the port.`)
  if (!keys.every((key) => key.length >= charactersMin && /^[\x21-\x7e]+$/.test(key)))
    throw new Error(
      `${source} holds a key that is not ${charactersMin} or more ASCII characters without blanks. ` +
        "'openssl rand -hex 24' makes one.",
    )
  const digests = keys.map(digest)
  return {
    check(request) {
      const header = request.headers.authorization
      if (!header)
        throw new ApiError('invalid_api_key', 'No API key was given. Send the header `Authorization: Bearer <key>`.')
      const key = /^\s*bearer\s+(\S+)\s*$/i.exec(header)?.[1]
      if (key === undefined) throw new ApiError('invalid_api_key', 'The Authorization header must be `Bearer <key>`.')
      const presented = digest(key)
      // Compare with every key, so that the timing reveals nothing.
      if (digests.filter((digest) => timingSafeEqual(digest, presented)).length === 0)
        throw new ApiError('invalid_api_key', 'This API key is not valid here.')
    },
  }
}

const digest = (key: string) => createHash('sha256').update(key).digest()

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw new Error(`--api-key-file can't be read: ${(error as Error).message}`)
  }
}
