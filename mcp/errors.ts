// Errors of tools, told without keys and without where they happened.
import { TuneryConnectionError, TuneryError } from '../sdk/index.ts'

/** An error whose message says what to do, as those of the service. */
export class ToolError extends Error {
  readonly code: string

  constructor(code: string, message: string) {
    super(message)
    this.code = code
  }
}

const hints: Partial<Record<TuneryError['code'], string>> = {
  invalid_api_key: 'The user must give this server another key.',
  insufficient_permissions: 'The key of this server may not do that. The user can give it a key with more scopes.',
  rate_limit_exceeded: 'Do not try again at once.',
  not_found: 'List what there is, and use an id from the list.',
}

/** What went wrong and what to do, without where it happened in the program. */
export function describeError(error: unknown): string {
  if (error instanceof ToolError) return `${error.code}: ${error.message}`
  if (error instanceof TuneryConnectionError)
    return `service_not_reachable: ${error.message} Ask the user whether the service runs; nothing else helps.`
  if (error instanceof TuneryError) {
    const hint = hints[error.code]
    const field = error.param ? ` (field: ${error.param})` : ''
    return `${error.code}: ${error.message}${field}${hint ? ` ${hint}` : ''}`
  }
  return 'internal_error: This server failed at that call. Its log has the details; the service itself may be well.'
}

/** Whether an error is a defect of this program, to be logged. */
export const isDefect = (error: unknown) =>
  !(error instanceof ToolError || error instanceof TuneryConnectionError || error instanceof TuneryError)

/** Cuts keys out of a text that leaves this process. */
export const withoutKeys = (text: string, key: string) =>
  text.replaceAll(key, 'tny_…').replace(/\btny_\w{8,}/g, 'tny_…')
