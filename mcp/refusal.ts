import type { ServerResponse } from 'node:http'

/** A refusal: the status, the message for the client, and headers. */
export class Refusal extends Error {
  readonly status: number
  readonly headers: Record<string, string>

  constructor(status: number, message: string, headers: Record<string, string> = {}) {
    super(message)
    this.status = status
    this.headers = headers
  }
}

/** RFC 6750: `invalid_token` only where there was one. */
export const unauthorized = (message: string, hadKey: boolean) =>
  new Refusal(401, message, {
    'www-authenticate':
      'Bearer realm="tunery"' + (hadKey ? ', error="invalid_token", error_description="unknown key"' : ''),
  })

export function refuse(response: ServerResponse, { status, message, headers }: Refusal): void {
  if (response.headersSent) {
    response.destroy()
    return
  }
  // Its body may not have been read.
  response.writeHead(status, { 'content-type': 'application/json', connection: 'close', ...headers })
  response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: status === 404 ? -32001 : -32000, message }, id: null }))
}
