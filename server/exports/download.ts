// A file as it is asked for: whole, or from any byte on, so that a download that broke goes on where it stopped.
import { stat } from 'node:fs/promises'
import path from 'node:path'
import { send } from '@fastify/send'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import type { ExportFile } from '../../contract/exports.ts'
import { answered } from '../http/mount.ts'

export interface Downloadable extends ExportFile {
  folder: string
}

/**
 * Larger pieces than node's own: a file of gigabytes in 64 kB would be many turns of this loop, beside streams that
 * wait for theirs.
 */
const pieceBytes = 1 << 18

export async function sendFile(
  { folder, name, size_bytes, sha256 }: Downloadable,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof answered> {
  // Only the owner's own programs may keep it, and only by asking whether it is still the same.
  reply.header('cache-control', 'private, no-cache')
  const there = await stat(path.join(folder, path.basename(name))).catch(() => undefined)
  // Deleted or expired just now, or lost by the disk, which may leave a part.
  if (there?.size !== size_bytes) throw gone(name)
  const etag = `"${sha256}"`
  reply.header('etag', etag).header('content-disposition', `attachment; filename="${name}"`)
  const { headers } = request.raw
  if (matches(headers['if-none-match'], etag)) {
    await reply.status(304).send()
    return answered
  }
  const range =
    headers['if-range'] === undefined || headers['if-range'] === etag ? rangeOf(headers.range, size_bytes) : undefined
  // What the library would compare is the file's time: here it is its hash, and already compared.
  const asked = { method: request.method, headers: range === undefined ? {} : { range } }
  const options = {
    root: folder,
    etag: false,
    lastModified: false,
    cacheControl: false,
    dotfiles: 'allow',
    index: false,
    highWaterMark: pieceBytes,
  } as const
  const found = await send(asked as never, `/${encodeURIComponent(path.basename(name))}`, options)
  if (found.statusCode === 416) {
    reply.header('content-range', `bytes */${size_bytes}`).removeHeader('content-disposition').removeHeader('etag')
    throw new ApiError(
      'range_not_satisfiable',
      `The file has ${size_bytes} bytes; none of them is in the range asked for.`,
      { details: { size_bytes } },
    )
  }
  if (found.type !== 'file') {
    reply.removeHeader('content-disposition').removeHeader('etag')
    // What the library says names the path.
    if (found.statusCode === 404) throw gone(name)
    throw new Error(`${name} cannot be read`, { cause: found.type === 'error' ? found.metadata.error : undefined })
  }
  for (const [header, value] of Object.entries(found.headers)) reply.header(header.toLowerCase(), value)
  reply.header('content-type', 'application/octet-stream')
  await reply.status(found.statusCode).send(found.stream)
  return answered
}

const gone = (name: string) =>
  new ApiError('export_not_found', `The file ${name} is not there any more. Make another export.`)

const matches = (header: string | undefined, etag: string) =>
  header
    ?.split(',')
    .map((each) => each.trim().replace(/^W\//, ''))
    .some((each) => each === '*' || each === etag)

/**
 * The range, where the header says one as the standard has it; anything else (several, another unit, an end before its
 * beginning) is none, and all of the file is sent. The library would refuse what is malformed, and a longer end of the
 * file than there is.
 */
function rangeOf(header: string | undefined, size_bytes: number): string | undefined {
  const [, from, to] = /^bytes=(\d*)-(\d*)$/i.exec(header?.trim() ?? '') ?? []
  if (from === undefined || to === undefined || from + to === '') return undefined
  if (from === '') return Number(to) >= size_bytes ? 'bytes=0-' : `bytes=-${to}`
  return to !== '' && Number(to) < Number(from) ? undefined : `bytes=${from}-${to}`
}
