// HTTP to vLLM's server on its unix socket.
import { Agent, type IncomingMessage, request } from 'node:http'
import { json } from 'node:stream/consumers'

export interface Connection {
  /** Resolves when the head of the response has arrived. */
  post(path: string, body: unknown, signal: AbortSignal): Promise<IncomingMessage>
  /** Whether it answers a GET of this path with 200. */
  answers(path: string, signal: AbortSignal): Promise<boolean>
  close(): void
}

/** vLLM refused a request. */
export class Refused extends Error {
  readonly status: number
  constructor(status: number, reason: string) {
    super(reason)
    this.status = status
  }
}

/** It closes idle connections after 5 s. */
const idle_ms = 4000

export function createConnection(socketPath: string, api_key: string): Connection {
  const agent = new Agent({ keepAlive: true, timeout: idle_ms })
  const send = (method: string, path: string, body: string | null, signal: AbortSignal) =>
    new Promise<IncomingMessage>((resolve, reject) => {
      const headers = {
        host: 'localhost',
        authorization: `Bearer ${api_key}`,
        ...(body !== null && { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
      }
      // The agent's timeout is for idle connections alone: a long prompt takes as long as it takes.
      const sent = request({ socketPath, method, path, headers, agent, signal, timeout: 0 }, resolve)
      sent.on('error', reject).end(body ?? undefined)
    })
  return {
    post: (path, body, signal) => send('POST', path, JSON.stringify(body), signal),
    async answers(path, signal) {
      const response = await send('GET', path, null, signal).catch(() => undefined)
      response?.on('error', () => {}).resume()
      return response?.statusCode === 200
    },
    close: () => agent.destroy(),
  }
}

/** Reads a whole answer. Throws Refused for another status than 200. */
export async function readJson(response: IncomingMessage): Promise<unknown> {
  const body: unknown = await json(response).catch((error) => {
    if (response.statusCode === 200) throw error
    return {}
  })
  if (response.statusCode !== 200) throw new Refused(response.statusCode ?? 0, reasonOf(body))
  return body
}

/** vLLM's words for an error. */
export function reasonOf(body: unknown): string {
  const { error, message } = (body ?? {}) as { error?: { message?: unknown } | null; message?: unknown }
  return String(error?.message ?? message ?? 'it gave no reason')
}

/** vLLM's words for an error, in the text of an answer. */
export function reasonIn(text: string): string {
  try {
    return reasonOf(JSON.parse(text))
  } catch {
    return text.slice(0, 300)
  }
}

/** The data of each event of a stream, in order. */
export async function* readEvents(response: IncomingMessage): AsyncGenerator<string> {
  response.setEncoding('utf8')
  let pending = ''
  for await (const text of response) {
    pending += text
    for (let end = pending.indexOf('\n\n'); end >= 0; end = pending.indexOf('\n\n')) {
      const event = pending.slice(0, end)
      pending = pending.slice(end + 2)
      if (event.startsWith('data: ')) yield event.slice('data: '.length)
    }
  }
}
