// HTTP/1.1 client for the engine and upstreams: sends one request, on undici, and reads its response.
import { validateHeaderValue } from 'node:http'
import { type ConnectionPool, type HttpRequest, NoResponse, StaleConnection } from './connection-pool.ts'
import type { HttpResponse } from './response.ts'

/**
 * Sends the request and resolves when the head of the response has arrived; the body is paused until `resume()`.
 * An abort of `signal` closes the connection, also in the middle of the body. Retries once on a new connection when a
 * reused one turns out to be closed; if that fails too, the request may have crashed the server, so `mayHaveStarted` is
 * set. `newConnection` bypasses the pool. Throws NoResponse.
 */
export async function send(
  pool: ConnectionPool,
  request: HttpRequest,
  signal: AbortSignal,
  newConnection = false,
): Promise<HttpResponse> {
  for (const name in request.headers) validateHeaderValue(name, request.headers[name]!)
  try {
    return await pool.send(request, signal, newConnection)
  } catch (error) {
    if (!(error instanceof StaleConnection)) throw error
    return await pool.send(request, signal, true).catch((again) => {
      throw again instanceof NoResponse ? new NoResponse(again.message, true) : again
    })
  }
}

/** The body exceeds its size limit. */
export class BodyTooLarge extends Error {}

/** Reads the whole body. Throws NoResponse if the connection breaks first, BodyTooLarge beyond `max_bytes`. */
export function readAll(response: HttpResponse, max_bytes = Number.POSITIVE_INFINITY): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let bytes = 0
    response.on('data', (chunk) => {
      chunks.push(chunk)
      bytes += chunk.length
      if (bytes <= max_bytes) return
      reject(new BodyTooLarge(`its answer has more than ${Math.round(max_bytes / 1e6)} MB`))
      chunks.length = 0
      response.destroy()
    })
    let ended = false
    response.on('end', () => {
      ended = true
      resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks))
    })
    response.on('error', (error) => reject(new NoResponse(error.message, true)))
    response.on('close', () => {
      if (!ended) reject(new NoResponse('the connection was closed', true))
    })
    if (response.closed) reject(new NoResponse('the connection was closed', true))
    else response.resume()
  })
}

/** Reads the first chunk, then pauses; undefined for an empty body. Throws NoResponse if the connection breaks. */
export function readFirstChunk(response: HttpResponse): Promise<Buffer | undefined> {
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
      reject(new NoResponse(error.message, true))
    }
    const onClose = () => onError(new Error('the connection was closed'))
    response.on('data', onData).on('end', onEnd).on('error', onError).on('close', onClose)
    if (response.closed) onClose()
    else response.resume()
  })
}
