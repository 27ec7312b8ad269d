// Downloads of checkpoints from the Hugging Face Hub. Interrupted files resume, and every file must match the hub's
// hash. Only data is downloaded (safetensors, JSON, templates), never code.
import { createHash, type Hash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdir, open, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { syncPath } from '../../platform/storage/durable-files.ts'

export interface Source {
  /** Base URL of the hub. */
  url: string
  token: string | undefined
  model_id: string
}

export interface CheckpointFile {
  path: string
  size: number
  /** In hex: SHA-256 of the content, or its SHA-1 as a git blob. */
  hash: { sha256: string } | { git_sha1: string }
}

export interface Checkpoint {
  /** The commit hash. */
  revision: string
  files: CheckpointFile[]
}

/** A permanent failure: retrying would not help. */
export class DownloadFailed extends Error {
  readonly code:
    | 'not_on_hub'
    | 'access_denied'
    | 'no_safetensors'
    | 'storage_full'
    | 'conversion_failed'
    | 'hash_mismatch'
    | 'hub_unreachable'
  constructor(code: DownloadFailed['code'], message: string) {
    super(message)
    this.code = code
  }
}

/** A downloaded file does not match the hub's hash or size. */
export class HashMismatch extends Error {}

const max_files = 500
const Size = z.int().nonnegative()
const hex = (digits: number) => z.string().regex(new RegExp(`^[0-9a-f]{${digits}}$`))
const Listing = z.object({
  sha: hex(40),
  siblings: z.array(
    z.object({
      rfilename: z.string().max(500),
      size: Size.nullish(),
      blobId: hex(40).nullish(),
      lfs: z.object({ sha256: hex(64), size: Size }).nullish(),
    }),
  ),
})

/**
 * Safetensors weights and their small description files. `consolidated*` is a second copy of the weights in the format
 * of their publisher, which some repositories have.
 */
const isCheckpointFile = (file: string) =>
  /^[\w-][\w.-]*(\/[\w-][\w.-]*)*$/.test(file) &&
  (/\.(json|jinja)$/.test(file) ||
    file === 'tokenizer.model' ||
    (/^[^/]+\.safetensors$/.test(file) && !file.startsWith('consolidated')))

/**
 * Requests a path of the hub. Throws DownloadFailed if the hub refuses permanently, another Error if a retry may work.
 */
async function requestHub(
  source: Source,
  path: string,
  headers: Record<string, string>,
  signal: AbortSignal,
): Promise<Response> {
  const { url, token, model_id } = source
  // No compression: sizes and byte ranges refer to the plain file.
  const sent = { 'accept-encoding': 'identity', ...headers, ...(token && { authorization: `Bearer ${token}` }) }
  const response = await fetch(`${url.replace(/\/$/, '')}/${path}`, { headers: sent, signal })
  if (response.ok) return response
  await response.body?.cancel()
  const { status } = response
  if (status === 401 || status === 403)
    throw new DownloadFailed(
      'access_denied',
      `${url} does not give ${model_id} to this service (${status}): accept the model's license on its page there, ` +
        'and set TUNERY_HUGGINGFACE_TOKEN to a token of that account.',
    )
  if (status === 404)
    throw new DownloadFailed('not_on_hub', `${url} has no model ${model_id}, or a file of it is gone (404).`)
  throw new Error(`${url} answered ${status}`)
}

/** The files of a checkpoint at a branch or commit. */
export async function listCheckpoint(source: Source, revision: string, signal: AbortSignal): Promise<Checkpoint> {
  const response = await requestHub(
    source,
    `api/models/${source.model_id}/revision/${encodeURIComponent(revision)}?blobs=true`,
    {},
    signal,
  )
  const { sha, siblings } = Listing.parse(await response.json())
  const files = siblings
    .filter(({ rfilename }) => isCheckpointFile(rfilename))
    .map(({ rfilename, size, blobId, lfs }): CheckpointFile => {
      if (lfs) return { path: rfilename, size: lfs.size, hash: { sha256: lfs.sha256 } }
      if (size == null || !blobId) throw new Error(`${source.url} names no hash of ${rfilename}`)
      return { path: rfilename, size, hash: { git_sha1: blobId } }
    })
  if (!files.some((file) => file.path.endsWith('.safetensors')))
    throw new DownloadFailed(
      'no_safetensors',
      `${source.model_id} has no safetensors files; other formats can run code when they are read and are not taken.`,
    )
  if (files.length > max_files)
    throw new DownloadFailed(
      'no_safetensors',
      `${source.model_id} has ${files.length} files, more than a checkpoint has.`,
    )
  return { revision: sha, files }
}

const sizeOf = async (file: string) => (await stat(file).catch(() => undefined))?.size

/** Bytes of these files that a folder already has, partial files included. */
export async function bytesIn(folder: string, files: CheckpointFile[]): Promise<number> {
  let bytes = 0
  for (const file of files) {
    const target = path.join(folder, file.path)
    bytes += Math.min(file.size, (await sizeOf(target)) ?? (await sizeOf(`${target}.part`)) ?? 0)
  }
  return bytes
}

/**
 * Downloads a file into a folder and resumes a partial one. Calls `onBytes` with the number of new bytes; a restart
 * reports the discarded bytes as a negative number. Throws HashMismatch and removes the file if its content is wrong.
 */
export async function fetchFile(
  source: Source,
  revision: string,
  file: CheckpointFile,
  folder: string,
  signal: AbortSignal,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const target = path.join(folder, file.path)
  if ((await sizeOf(target)) === file.size) return
  await mkdir(path.dirname(target), { recursive: true })
  const part = `${target}.part`
  const handle = await open(part, 'a')
  try {
    let bytes = (await handle.stat()).size
    let hash = hashFor(file)
    async function restart() {
      await handle.truncate(0)
      onBytes(-Math.min(bytes, file.size))
      bytes = 0
      hash = hashFor(file)
    }
    if (bytes > file.size) await restart()
    if (bytes > 0)
      for await (const chunk of createReadStream(part, { highWaterMark: 1 << 20, signal })) hash.update(chunk as Buffer)
    if (bytes < file.size) {
      const range: Record<string, string> = bytes > 0 ? { range: `bytes=${bytes}-` } : {}
      const response = await requestHub(source, `${source.model_id}/resolve/${revision}/${file.path}`, range, signal)
      const from =
        response.status === 206 ? Number(/^bytes (\d+)-/.exec(response.headers.get('content-range') ?? '')?.[1]) : 0
      if (from !== bytes) await restart()
      if (response.status === 206 && from !== bytes)
        throw new Error(`${source.url} answered with another range of ${file.path} than requested`)
      for await (const chunk of response.body!) {
        bytes += chunk.length
        if (bytes > file.size) throw new HashMismatch(`${file.path} has more bytes than the hub names`)
        hash.update(chunk)
        await handle.writeFile(chunk)
        onBytes(chunk.length)
      }
    }
    if (bytes < file.size) throw new Error(`the connection ended after ${bytes} of ${file.size} bytes of ${file.path}`)
    const expected = 'sha256' in file.hash ? file.hash.sha256 : file.hash.git_sha1
    if (hash.digest('hex') !== expected)
      throw new HashMismatch(`${file.path} is not the file that the hub names: its hash differs`)
    await handle.sync()
  } catch (error) {
    if (error instanceof HashMismatch) await rm(part, { force: true })
    throw error
  } finally {
    await handle.close()
  }
  await rename(part, target)
  await syncPath(path.dirname(target))
}

function hashFor({ hash, size }: CheckpointFile): Hash {
  return 'sha256' in hash ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`)
}
