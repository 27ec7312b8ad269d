// The profiles of services and keys that `login` stores, in the user's own folder, readable by nobody else.
import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { UsageError } from './errors.ts'

export interface Profile {
  url: string
  key: string
}

export interface Profiles {
  /** The profile that commands use when nothing else is said. */
  current: string | undefined
  profiles: Record<string, Profile>
}

export function profilesFile(env: NodeJS.ProcessEnv = process.env): string {
  const { XDG_CONFIG_HOME } = env
  // The specification of these folders ignores relative paths.
  const base =
    XDG_CONFIG_HOME && path.isAbsolute(XDG_CONFIG_HOME) ? XDG_CONFIG_HOME : path.join(os.homedir(), '.config')
  return path.join(base, 'tunery', 'profiles.json')
}

/** All profiles; none if the file is not there. Throws a UsageError if it cannot be read. */
export function readProfiles(): Profiles {
  const file = profilesFile()
  if (!existsSync(file)) return { current: undefined, profiles: {} }
  try {
    const { current, profiles } = JSON.parse(readFileSync(file, 'utf8')) as Partial<Profiles>
    const valid = Object.entries(profiles ?? {}).filter(
      ([, profile]) => typeof profile?.url === 'string' && typeof profile.key === 'string',
    )
    const read = Object.fromEntries(valid)
    return { current: current !== undefined && Object.hasOwn(read, current) ? current : undefined, profiles: read }
  } catch (error) {
    throw new UsageError(`${file} cannot be read: ${(error as Error).message}. Mend it or delete it.`)
  }
}

/** Replaces the file as a whole: a command that is killed leaves the old one. */
export function writeProfiles(profiles: Profiles): void {
  const file = profilesFile()
  const fresh = `${file}.${process.pid}.new`
  try {
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 })
    writeFileSync(fresh, `${JSON.stringify(profiles, null, 2)}\n`, { mode: 0o600 })
    chmodSync(fresh, 0o600)
    renameSync(fresh, file)
  } catch (error) {
    rmSync(fresh, { force: true })
    throw new UsageError(`${file} cannot be written: ${(error as Error).message}.`)
  }
}

/** Throws a UsageError for a name that would be hard to type. */
export function checkProfileName(name: string): string {
  if (/^[\w.-]{1,64}$/.test(name) && name !== '__proto__') return name
  throw new UsageError(`'${name}' cannot be the name of a profile: letters, digits and . _ - can.`)
}
