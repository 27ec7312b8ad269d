// What ends a command, and the exit status that each of it gives.
import { TuneryConnectionError, TuneryError } from '../../sdk/index.ts'

/** The exit statuses of all commands; docs/reference/cli.md has the table. */
export const exitStatus = {
  failed: 1,
  usage: 2,
  notAuthorized: 3,
  notFound: 4,
  notReachable: 5,
  interrupted: 130,
} as const

/** A failure whose message tells the user all that is needed: no stack trace. */
export class CommandError extends Error {
  readonly status: number

  constructor(message: string, status: number = exitStatus.failed) {
    super(message)
    this.status = status
  }
}

/** A mistake on the command line, or another failure that the user can fix; the message says how. */
export class UsageError extends CommandError {
  constructor(message: string) {
    super(message, exitStatus.usage)
  }
}

/** Ctrl-C ended the command; `message` says what keeps running and how to come back, and is empty if nothing does. */
export class Interrupted extends CommandError {
  constructor(message = '') {
    super(message, exitStatus.interrupted)
  }
}

const withHint: Partial<Record<TuneryError['code'], string>> = {
  invalid_api_key: "Give another one with 'login', or in TUNERY_KEY.",
}

/**
 * The error as a command ends with it, or undefined if it is a defect of the program. `url`: the service that the
 * command talked to.
 */
export function asCommandError(error: unknown, url?: string): CommandError | undefined {
  if (error instanceof CommandError) return error
  if (error instanceof TuneryConnectionError) return new CommandError(error.message, exitStatus.notReachable)
  if (error instanceof TuneryError && error.code === 'unknown' && url)
    return new UsageError(
      `${url} answered ${error.status} without JSON. ` +
        'TUNERY_URL is the address of a service with its version: https://…/v1.',
    )
  if (error instanceof TuneryError) {
    const hint = withHint[error.code]
    return new CommandError(hint ? `${error.message} ${hint}` : error.message, statusOf(error))
  }
  return undefined
}

function statusOf({ status, code }: TuneryError): number {
  if (code === 'unknown') return exitStatus.usage
  if (status === 401 || status === 403) return exitStatus.notAuthorized
  if (status === 404) return exitStatus.notFound
  return status < 500 && status !== 429 ? exitStatus.usage : exitStatus.failed
}
