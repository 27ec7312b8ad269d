import type { ErrorBody } from './generated/types.ts'

/** What an error of the service says. */
export type ErrorDetails = ErrorBody['error']

/** An error that the service answered. `message` says what is wrong and what to do about it. */
export class TuneryError extends Error {
  override readonly name = 'TuneryError'
  /** The HTTP status. */
  readonly status: number
  /** Stable; docs/errors.md lists all of them. `unknown` for an answer that is not the service's. */
  readonly code: ErrorDetails['code'] | 'unknown'
  readonly details: Record<string, unknown> | undefined
  /** The field of the request that is wrong, where the service tells one. */
  readonly param: string | undefined
  /** Names the request in the service's log. */
  readonly request_id: string | undefined
  readonly headers: Headers

  constructor(status: number, headers: Headers, error: Partial<ErrorDetails> & { message: string }) {
    super(error.message)
    this.status = status
    this.code = error.code ?? 'unknown'
    this.details = error.details
    this.param = error.param ?? undefined
    this.request_id = headers.get('x-request-id') ?? undefined
    this.headers = headers
  }
}

/** The error for an answer that is not one of the service's. */
export const notTunery = ({ status, headers }: Response) =>
  new TuneryError(status, headers, {
    message:
      `The answer (${status}) is not one of Tunery's. ` +
      'The base address must be that of a service, with its version: https://…/v1.',
  })

/** The service could not be reached, or a connection broke and could not be taken up again. */
export class TuneryConnectionError extends Error {
  override readonly name = 'TuneryConnectionError'
}
