// Which service a command talks to, and with which key. The two always come from one place, so that a key is never sent
// to another service than its own.
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { Tunery } from '../../sdk/index.ts'
import { UsageError } from './errors.ts'
import { invocation, typed } from './invocation.ts'
import type { GlobalOptions } from './options.ts'
import { type Profile, readProfiles } from './profiles.ts'

export interface Service {
  /** With the API version, as in https://tunery.example.com/v1. */
  url: string
  key: string
  /** The profile that these are of. */
  profile?: string | undefined
}

export interface Connection extends Service {
  tunery: Tunery
}

let last: string | undefined
/** The address that this process connected to last. */
export const connectedTo = () => last

/** A client of the service that options, environment, profiles or the data folder name. Throws a UsageError. */
export function connect(options: GlobalOptions = {}): Connection {
  const service = findService(options, process.env)
  last = service.url
  return { ...service, tunery: new Tunery({ baseUrl: service.url, apiKey: service.key }) }
}

/**
 * Options, then a profile that an option names, then the environment, then the current profile, then the service that
 * runs on the data folder.
 */
export function findService(options: GlobalOptions, env: NodeJS.ProcessEnv): Service {
  if (options.profile !== undefined && options.url === undefined && options.key === undefined)
    return named(options.profile)
  const url = options.url ?? nonEmpty(env.TUNERY_URL)
  const key = options.key ?? nonEmpty(env.TUNERY_KEY)
  const name = options.profile ?? nonEmpty(env.TUNERY_PROFILE)
  if (url !== undefined) {
    const address = normalizeUrl(url)
    if (key !== undefined) return { url: address, key: checkedKey(key) }
    const { profiles } = readProfiles()
    const match = Object.entries(profiles).find(
      ([profileName, { url }]) => url === address && (name === undefined || profileName === name),
    )
    if (match) return { url: address, key: match[1].key, profile: match[0] }
    throw new UsageError(
      `There is no key for ${address}. '${typed(`login ${address}`)}' stores one, or set TUNERY_KEY to one.`,
    )
  }
  if (key !== undefined) {
    if (name !== undefined) return { ...named(name), key: checkedKey(key) }
    return { url: localUrl(), key: checkedKey(key) }
  }
  if (name !== undefined) return named(name)
  const { current, profiles } = readProfiles()
  const fallback = current ?? (Object.hasOwn(profiles, 'local') ? 'local' : undefined)
  if (fallback !== undefined) return named(fallback)
  const advice = invocation().dataDir === undefined ? '' : ` '${typed('keys create --name cli')}' makes a key here.`
  throw new UsageError(
    `There is no key. '${typed('login')}' stores one, or set TUNERY_KEY to a key of the account.${advice}`,
  )
}

const nonEmpty = (text: string | undefined) => (text ? text : undefined)

function named(name: string): Service {
  const { profiles } = readProfiles()
  const profile: Profile | undefined = Object.hasOwn(profiles, name) ? profiles[name] : undefined
  if (!profile)
    throw new UsageError(
      `There is no profile '${name}'. '${typed(`login --profile ${name}`)}' makes one, '${typed('profiles')}' lists ` +
        'them.',
    )
  // The local service may have another port since its start.
  const here = name === 'local' ? runningUrl() : undefined
  return { url: here ?? profile.url, key: profile.key, profile: name }
}

/** The address of the service on the data folder. Throws a UsageError if none runs. */
export function localUrl(): string {
  const url = runningUrl()
  if (url) return url
  const { dataDir } = invocation()
  throw new UsageError(
    dataDir === undefined
      ? 'Set TUNERY_URL to the address of a service, such as https://tunery.example.com/v1.'
      : `No service runs on ${dataDir}. Start one with 'npm start', or set TUNERY_URL to the address of another, ` +
          'such as https://tunery.example.com/v1.',
  )
}

/** What the service on the data folder wrote when it started; undefined if none runs. */
export function runningUrl(): string | undefined {
  const { dataDir } = invocation()
  const file = dataDir === undefined ? undefined : path.join(dataDir, 'server.json')
  if (file === undefined || !existsSync(file)) return undefined
  try {
    const { url } = JSON.parse(readFileSync(file, 'utf8')) as { url?: unknown }
    return typeof url === 'string' ? normalizeUrl(url) : undefined
  } catch {
    return undefined
  }
}

/** An address with its version and no slash at its end. Throws a UsageError. */
export function normalizeUrl(address: string): string {
  const url = URL.canParse(address) ? new URL(address) : undefined
  if (!url || !/^https?:$/.test(url.protocol))
    throw new UsageError(`'${address}' is not the address of a service. It is like https://tunery.example.com/v1.`)
  if (url.username || url.password) throw new UsageError('The address of a service has no user and no password in it.')
  const pathname = url.pathname.replace(/(?<!\/)\/+$/, '')
  return `${url.origin}${pathname || '/v1'}`
}

/** A key that a header can carry. The message does not have it. */
export function checkedKey(key: string): string {
  const trimmed = key.trim()
  if (/^[\x20-\x7e]+$/.test(trimmed)) return trimmed
  throw new UsageError(
    'The key has characters that no key has. Give it as it was shown: tny_ and 36 letters and digits.',
  )
}
