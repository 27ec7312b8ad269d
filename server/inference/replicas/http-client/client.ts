// One HTTP request to an engine or an upstream, and the reading of its answer. Over connections of our own (wire/):
// node's client took a third of the time that this service adds to a request, and undici hardly less.
import { validateHeaderValue } from 'node:http'
import { NotAnswered, StaleConnection } from './connection.ts'
import type { Connections } from './connection-pool.ts'
import type { Incoming } from './response.ts'

export interface Outgoing {
  method: 'GET' | 'POST'
  path: string
  headers?: Record<string, string>
  /** JSON text. */
  payload?: string
}

/**
 * Sends it and resolves with the head of the answer, whose body waits until `resume` is called. When `signal` aborts,
 * the connection is closed, also in the middle of the answer. Throws NotAnswered. A connection that was kept from an
 * earlier request and turns out to be closed is replaced once; a server that is then gone may have ended by the
 * request. `fresh` asks on a new connection.
 */
export async function send(
  connections: Connections,
  outgoing: Outgoing,
  signal: AbortSignal,
  fresh = false,
): Promise<Incoming> {
  const text = textOf(outgoing, connections.host)
  try {
    return await (fresh ? connections.open() : connections.take()).ask(text, signal)
  } catch (error) {
    if (!(error instanceof StaleConnection)) throw error
    return await connections
      .open()
      .ask(text, signal)
      .catch((again) => {
        throw again instanceof NotAnswered ? new NotAnswered(again.message, true) : again
      })
  }
}

function textOf({ method, path, headers, payload }: Outgoing, host: string): string {
  let head = `${method} ${path} HTTP/1.1\r\nhost: ${host}\r\n`
  if (payload !== undefined)
    head += `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(payload)}\r\n`
  for (const name in headers) {
    const value = headers[name]!
    validateHeaderValue(name, value)
    head += `${name}: ${value}\r\n`
  }
  return `${head}\r\n${payload ?? ''}`
}

/** The body has more bytes than it may. */
export class TooLarge extends Error {}

/**
 * The whole body. Throws NotAnswered where the connection ends before it does, TooLarge where it has more than
 * `max_bytes`.
 */
export function readAll(response: Incoming, max_bytes = Number.POSITIVE_INFINITY): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let bytes = 0
    response.on('data', (chunk) => {
      chunks.push(chunk)
      bytes += chunk.length
      if (bytes <= max_bytes) return
      reject(new TooLarge(`its answer has more than ${Math.round(max_bytes / 1e6)} MB`))
      chunks.length = 0
      response.destroy()
    })
    let ended = false
    response.on('end', () => {
      ended = true
      resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks))
    })
    response.on('error', (error) => reject(new NotAnswered(error.message, true)))
    response.on('close', () => {
      if (!ended) reject(new NotAnswered('the connection was closed', true))
    })
    if (response.closed) reject(new NotAnswered('the connection was closed', true))
    else response.resume()
  })
}

/**
 * The first bytes of a body, which is paused after them; undefined where it is empty. Throws NotAnswered where there
 * are none to come.
 */
export function readFirst(response: Incoming): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    const clean = () => {
      response.off('data', onData)
      response.off('end', onEnd)
      response.off('error', onError)
      response.off('close', onClose)
    }
    const onData = (chunk: Buffer) => {
      response.pause()
      clean()
      resolve(chunk)
    }
    const onEnd = () => {
      clean()
      resolve(undefined)
    }
    const onError = (error: Error) => {
      clean()
      reject(new NotAnswered(error.message, true))
    }
    const onClose = () => onError(new Error('the connection was closed'))
    response.on('data', onData).on('end', onEnd).on('error', onError).on('close', onClose)
    if (response.closed) onClose()
    else response.resume()
  })
}
