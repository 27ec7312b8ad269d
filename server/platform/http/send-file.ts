// Sends a file, whole or as a byte range, so that a broken download can be resumed.
import { stat } from 'node:fs/promises'
import path from 'node:path'
import { send } from '@fastify/send'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { answered } from './mount.ts'
import { watchCredential } from './running-requests.ts'

/** A file that never changes while it exists. */
export interface SendableFile {
  folder: string
  /** Its name in the folder. */
  name: string
  /** The name that the client gets. Default: `name`. */
  filename?: string
  size_bytes: number
  sha256: string
  /** The error for a file that is no longer there. */
  missing: ApiError
}

/** Larger than Node's 64 kB: fewer event loop iterations for large files, which delay response streams less. */
const chunkBytes = 1 << 18

export async function sendFile(
  { folder, name, filename = name, size_bytes, sha256, missing }: SendableFile,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof answered> {
  // Only private caches may store it, and must revalidate.
  reply.header('cache-control', 'private, no-cache')
  const stats = await stat(path.join(folder, path.basename(name))).catch(() => undefined)
  // The file was deleted, has expired, or was truncated by a disk failure.
  if (stats?.size !== size_bytes) throw missing
  const etag = `"${sha256}"`
  reply.header('etag', etag).header('content-disposition', disposition(filename))
  const { headers } = request.raw
  if (matches(headers['if-none-match'], etag)) {
    await reply.status(304).send()
    return answered
  }
  const range =
    headers['if-range'] === undefined || headers['if-range'] === etag ? rangeOf(headers.range, size_bytes) : undefined
  // Pass no conditional headers: the library would compare times, and the hash is already compared above.
  const rangeRequest = { method: request.method, headers: range === undefined ? {} : { range } }
  const options = {
    root: folder,
    etag: false,
    lastModified: false,
    cacheControl: false,
    dotfiles: 'allow',
    index: false,
    highWaterMark: chunkBytes,
  } as const
  const sent = await send(rangeRequest as never, `/${encodeURIComponent(path.basename(name))}`, options)
  if (sent.statusCode === 416) {
    reply.header('content-range', `bytes */${size_bytes}`).removeHeader('content-disposition').removeHeader('etag')
    throw new ApiError(
      'range_not_satisfiable',
      `The file has ${size_bytes} bytes; none of them is in the requested range.`,
      { details: { size_bytes } },
    )
  }
  if (sent.type !== 'file') {
    reply.removeHeader('content-disposition').removeHeader('etag')
    // Do not pass on the library's error: its message has the path.
    if (sent.statusCode === 404) throw missing
    throw new Error(`${name} cannot be read`, { cause: sent.type === 'error' ? sent.metadata.error : undefined })
  }
  for (const [header, value] of Object.entries(sent.headers)) reply.header(header.toLowerCase(), value)
  reply.header('content-type', 'application/octet-stream')
  // The client sees that the file is not whole, and resumes with another key.
  reply.raw.once(
    'close',
    watchCredential(request, () => reply.raw.destroy()),
  )
  await reply.status(sent.statusCode).send(sent.stream)
  return answered
}

/** The name as it is if it is plain ASCII, otherwise encoded (RFC 6266). */
const disposition = (name: string) =>
  /^[\w .()+-]+$/.test(name)
    ? `attachment; filename="${name}"`
    : `attachment; filename*=UTF-8''${encodeURIComponent(name).replace(/['()*]/g, percentEncoded)}`

const percentEncoded = (character: string) => `%${character.charCodeAt(0).toString(16)}`

const matches = (header: string | undefined, etag: string) =>
  header
    ?.split(',')
    .map((tag) => tag.trim().replace(/^W\//, ''))
    .some((tag) => tag === '*' || tag === etag)

/**
 * The range for a single valid byte range (RFC 9110). For anything else (several ranges, another unit, end before
 * start) undefined: the whole file is sent. The library would reject malformed ranges and suffixes longer than the
 * file.
 */
function rangeOf(header: string | undefined, size_bytes: number): string | undefined {
  const [, from, to] = /^bytes=(\d*)-(\d*)$/i.exec(header?.trim() ?? '') ?? []
  if (from === undefined || to === undefined || from + to === '') return undefined
  if (from === '') return Number(to) >= size_bytes ? 'bytes=0-' : `bytes=-${to}`
  return to !== '' && Number(to) < Number(from) ? undefined : `bytes=${from}-${to}`
}
