// Reads the settings from the environment, and describes them.
import { readFileSync } from 'node:fs'
import type { z } from 'zod'
import { fileProblem } from '../lib/file-problem.ts'
import type { Setting } from './settings/kinds.ts'
import { settings } from './settings/list.ts'

type Settings = typeof settings
export type Config = { [K in keyof Settings]: z.output<Settings[K]['schema']> }

const envName = (name: string) => `TUNERY_${name.toUpperCase()}`

/** An invalid setting; the message tells the operator how to fix it. */
export class ConfigError extends Error {}

/** What is wrong with a setting's value, without the value where it may hold a secret. */
function problemOf(name: string, value: string | undefined): string {
  if (secretSettings.has(name)) return 'is no such key'
  return addressSettings.has(name) ? 'cannot be used' : `is '${value}'`
}

/** Reads all settings from the environment. Throws a ConfigError that lists all problems, unknown TUNERY_ names too. */
export function readConfig(env: NodeJS.ProcessEnv): Config {
  const problems: string[] = []
  const settingOf = new Map(Object.keys(settings).map((name) => [envName(name), name]))
  for (const name of Object.keys(env))
    if (name.startsWith('TUNERY_') && !settingOf.has(name))
      problems.push(`${name} is not a setting; './tunery config' lists all settings.`)
  const config: Record<string, unknown> = {}
  for (const [name, { schema, default: fallback }] of Object.entries(settings)) {
    const value = env[envName(name)]
    const result = schema.safeParse(value === undefined || value === '' ? fallback : value)
    if (result.success) config[name] = result.data
    else {
      const messages = result.error.issues.map((issue) => issue.message).join('; ')
      problems.push(`${envName(name)} ${problemOf(name, value)}: ${messages}.`)
    }
  }
  for (const service of ['database', 'redis'] as const) {
    const [url, password] = [config[`${service}_url`], config[`${service}_password`]]
    if (typeof url !== 'string' || typeof password !== 'string') continue
    const whole = withPassword(url, password)
    if (whole === undefined)
      problems.push(
        `${envName(`${service}_password`)} is set, so ${envName(`${service}_url`)} must be a URL with a host and ` +
          'without a password. Set the password in one of them.',
      )
    else config[`${service}_url`] = whole
  }
  problems.push(...certificateProblems(config.database_url))
  if (problems.length > 0) throw new ConfigError(problems.join('\n'))
  return config as Config
}

/** What is wrong with the files that a Postgres URL names. */
function certificateProblems(url: unknown): string[] {
  const parameters = (typeof url === 'string' && URL.parse(url)?.searchParams) || new URLSearchParams()
  return ['sslrootcert', 'sslcert', 'sslkey'].flatMap((name) => {
    const file = parameters.get(name)
    if (!file) return []
    try {
      readFileSync(file)
      return []
    } catch (error) {
      return [`${envName('database_url')}: the file ${file} of its ${name} ${fileProblem(file, error)}.`]
    }
  })
}

/** The URL with this password, escaped; undefined if it has one already, or no host to put it before. */
function withPassword(url: string, password: string): string | undefined {
  const parsed = URL.parse(url)
  if (!parsed?.host || parsed.password) return undefined
  parsed.password = encodeURIComponent(password)
  return parsed.href
}

/** Every setting for the documentation, independent of this machine. */
export const settingsReference = () =>
  Object.entries<Setting>(settings).map(([name, { schema, default: fallback, default_text, about }]) => ({
    name: envName(name),
    schema,
    default: default_text ?? (fallback ? `\`${fallback}\`` : ''),
    about,
  }))

/** Hides the API keys in a setting that is JSON text (upstreams). */
const redactKeys = (value: unknown) =>
  typeof value === 'string' ? value.replace(/("api_key"\s*:\s*")(?:[^"\\]|\\.)*/g, '$1…') : value

/** Settings whose values are never shown. */
const secretSettings = new Set([
  'huggingface_token',
  'oidc_client_secret',
  'ray_token',
  'database_password',
  'redis_password',
  'key',
])
/** Addresses that may have a password. */
const addressSettings = new Set(['database_url', 'redis_url', 'ray_address'])
/** An address without its password; nothing of what is no address. */
function redactPassword(address: unknown) {
  if (typeof address !== 'string') return address
  const parsed = URL.parse(address)
  if (!parsed?.host) return '…'
  const { protocol, username, password, host, pathname, search } = parsed
  return password ? `${protocol}//${username}:…@${host}${pathname}${search}` : address
}

/** Environment variables of settings that hold a secret. */
export const secretSettingNames = () => [...secretSettings].map(envName)

/** Every setting with its environment variable, current value and default. */
export function describeConfig(config: Config) {
  const shown = (value: unknown) =>
    value instanceof Map ? [...value].map((pair) => pair.join('=')).join(',') : (value ?? null)
  return Object.entries(settings).map(([name, { default: fallback, about }]) => ({
    name: envName(name),
    value:
      secretSettings.has(name) && config[name as keyof Config]
        ? '…'
        : addressSettings.has(name)
          ? (redactPassword(config[name as keyof Config]) ?? null)
          : redactKeys(shown(config[name as keyof Config])),
    default: fallback ?? null,
    about,
  }))
}
