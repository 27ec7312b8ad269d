// How the program was started: from a checkout of Tunery, or as the package that npm installed.

interface Invocation {
  /** What users type. */
  name: string
  version: string
  /** Absolute path or name with which a shell starts the program. */
  executable: string
  /** The data folder of the checkout; a package has none. */
  dataDir: string | undefined
}

let current: Invocation | undefined

/** Called once, before any command. */
export function setInvocation(invocation: Invocation): void {
  current = invocation
}

export function invocation(): Invocation {
  current ??= { name: './tunery', version: '0.0.0', executable: './tunery', dataDir: process.env.TUNERY_DATA_DIR }
  return current
}

/** A command as a user types it: `./tunery jobs list`. */
export const typed = (words: string): string => `${invocation().name} ${words}`
