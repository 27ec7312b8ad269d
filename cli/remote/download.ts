// Resumable download of a file from the service. Only a file with the expected hash gets its name.
import { createHash, type Hash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { type FileHandle, open, rename, rm } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
// Node's own fetch ends the process when a server closes a connection whose answer is read slowly
// (https://github.com/nodejs/undici/issues/5360).
import { fetch, type Response } from 'undici'
import type { ErrorBody, ExportFile } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import type { Service } from '../support/service.ts'

const request = ({ url, key }: Service, route: string, init: { headers: Record<string, string> }): Promise<Response> =>
  fetch(url + route, { ...init, headers: { ...init.headers, authorization: `Bearer ${key}` } })

/** Throws a UsageError with the service's reason, or another error if a retry may succeed (5xx, 429). */
async function assertOk(response: Response): Promise<Response> {
  if (response.ok) return response
  if (response.status >= 500 || response.status === 429) throw new Error(`the service answered ${response.status}`)
  throw new UsageError(((await response.json()) as ErrorBody).error.message)
}

/** Most consecutive attempts without progress. */
const maxRetries = 10
const wait_ms = (tries: number) => Math.min(10_000, 250 * 2 ** tries)

interface DownloadOptions extends Service {
  route: string
  file: ExportFile
  target: string
  onProgress(bytes: number): void
}

/** Downloads the file to `target`, resuming the part that an earlier call left. Throws a UsageError. */
export async function downloadFile({ route, file, target, onProgress, ...service }: DownloadOptions): Promise<void> {
  const { sha256, size_bytes } = file
  if (!/^[0-9a-f]{64}$/.test(sha256))
    throw new UsageError('The service does not say the SHA-256 of the file, so it cannot be downloaded.')
  // The hash in the name keeps the part of another file from being resumed.
  const part = `${target}.${sha256.slice(0, 12)}.part`
  const handle = await open(part, 'a+').catch((error: NodeJS.ErrnoException) => {
    throw new UsageError(`${part} cannot be written: ${error.message}`)
  })
  try {
    const state: DownloadState = { handle, bytes: 0, hash: createHash('sha256') }
    await resumePart(state, part, size_bytes)
    for (let tries = 0; state.bytes < size_bytes; ) {
      const before = state.bytes
      try {
        await fetchRest(service, route, state, onProgress)
        // A successful empty answer counts as a failure, or it would be requested in a tight loop.
        if (state.bytes <= before && state.bytes < size_bytes) throw new Error('the service sent nothing')
      } catch (error) {
        if (error instanceof UsageError) throw error
        if (isDiskError(error)) throw new UsageError(`${part} cannot be written: ${(error as Error).message}`)
        tries = state.bytes > before ? 0 : tries + 1
        if (tries >= maxRetries)
          throw new UsageError(
            `The download broke ${maxRetries} times (${(error as Error).message}). The same command resumes it.`,
          )
        await sleep(wait_ms(tries))
      }
    }
    if (state.hash.digest('hex') !== sha256) {
      await rm(part, { force: true })
      throw new UsageError(
        'The downloaded file is damaged: its SHA-256 is not the expected one. It was removed; try again.',
      )
    }
    await handle.sync()
  } finally {
    const isEmpty = (await handle.stat()).size === 0
    await handle.close()
    if (isEmpty) await rm(part, { force: true })
  }
  await rename(part, target)
}

interface DownloadState {
  handle: FileHandle
  bytes: number
  hash: Hash
}

async function resumePart(state: DownloadState, part: string, size_bytes: number): Promise<void> {
  const { size } = await state.handle.stat()
  if (size > size_bytes) await state.handle.truncate(0)
  else for await (const chunk of createReadStream(part)) append(state, chunk as Buffer)
}

function append(state: DownloadState, chunk: Uint8Array): void {
  state.hash.update(chunk)
  state.bytes += chunk.length
}

async function fetchRest(
  service: Service,
  route: string,
  state: DownloadState,
  onProgress: (bytes: number) => void,
): Promise<void> {
  // No If-Range: the files of an export never change, and a bucket that it redirects to has another ETag. The hash at
  // the end is what counts.
  const headers: Record<string, string> = state.bytes > 0 ? { range: `bytes=${state.bytes}-` } : {}
  const response = await assertOk(await request(service, route, { headers }))
  if (response.status === 200 && state.bytes > 0) {
    await state.handle.truncate(0)
    Object.assign(state, { bytes: 0, hash: createHash('sha256') })
  }
  for await (const chunk of response.body!) {
    await state.handle.appendFile(chunk)
    append(state, chunk)
    onProgress(state.bytes)
  }
}

const isDiskError = (error: unknown) =>
  ['ENOSPC', 'EDQUOT', 'EIO', 'EROFS', 'EFBIG'].includes(String((error as { code?: unknown }).code))
