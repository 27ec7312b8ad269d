// Datasets of the Hugging Face Hub: chooses the files of a split and downloads them, from the operator's hub only.
import { createWriteStream } from 'node:fs'
import { mkdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { Readable, Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { downloadFile, HubApiError, listFiles } from '@huggingface/hub'
import { z } from 'zod'
import { Unreadable } from './reader/columns.ts'
import type { TablePart } from './reader/main.ts'

const maxSourceBytes = 65_536
const Name = z.string().min(1).max(200)
const staysInside = (name: string) => !name.includes('..')
const Source = z.strictObject({
  repo_id: z
    .string()
    .regex(/^[\w.-]{1,96}(\/[\w.-]{1,96})?$/, 'must be owner/name')
    .refine(staysInside, 'must be owner/name'),
  split: Name.default('train'),
  config: Name.optional(),
  revision: Name.refine(staysInside, 'must be a branch, tag or commit').optional(),
})
type HubSource = z.infer<typeof Source>

/**
 * The hub dataset that an uploaded JSON file names; undefined if the file is a dataset itself. Throws Unreadable if the
 * JSON is malformed.
 */
export async function hubSourceOf(file: string, size_bytes: number): Promise<HubSource | undefined> {
  if (size_bytes > maxSourceBytes) return undefined
  const text = (await readFile(file, 'utf8')).replace(/^\uFEFF/, '').trim()
  if (!text.startsWith('{')) return undefined
  try {
    return Source.parse(JSON.parse(text))
  } catch (error) {
    const why =
      error instanceof z.ZodError
        ? error.issues.map((issue) => `${issue.path.join('.') || 'it'}: ${issue.message}`).join('; ')
        : (error as Error).message
    throw new Unreadable(
      'file_not_readable',
      'The file must be JSON like {"repo_id":"owner/name","split":"train"}, with "config" and "revision" ' +
        `if wanted: ${why}.`,
    )
  }
}

interface Hub {
  url: string
  /** The token from the upload; never the operator's. */
  token: string | undefined
}

/** Throws if the disk has no space for this many more bytes. */
type RequireDiskSpace = (bytes: number) => Promise<void>

const formats = ['parquet', 'jsonl', 'csv'] as const
/** The branch with the hub's parquet conversion of a public dataset. */
const convertedRevision = 'refs/convert/parquet'

/** Downloads the files of a split into a folder. Throws Unreadable if there are none or the hub refuses or is down. */
export async function fetchFromHub(
  { url, token }: Hub,
  source: HubSource,
  folder: string,
  max_bytes: number,
  signal: AbortSignal,
  requireDiskSpace: RequireDiskSpace,
): Promise<TablePart[]> {
  const repo = { type: 'dataset' as const, name: source.repo_id }
  const abortableFetch = (input: Parameters<typeof fetch>[0], init?: RequestInit) => fetch(input, { ...init, signal })
  const hubOptions = { repo, hubUrl: url, fetch: abortableFetch, ...(token && { accessToken: token }) }
  const listRepository = async (revision: string | undefined) => {
    const files: { path: string; size: number }[] = []
    for await (const file of listFiles({ ...hubOptions, recursive: true, ...(revision && { revision }) }))
      if (file.type === 'file' && files.push(file) > maxListed)
        throw new Unreadable('file_too_large', `The repository has more than ${maxListed} files.`)
    return files
  }
  try {
    let revision = source.revision
    let files = filesOfSplit(await listRepository(revision), source)
    if (files.length === 0 && revision === undefined) {
      revision = convertedRevision
      files = filesOfSplit(await listRepository(revision).catch(emptyWhenNotFound), source)
    }
    if (files.length === 0)
      throw new Unreadable(
        'file_not_readable',
        `${source.repo_id} has no parquet, jsonl or csv file of a split ` +
          `'${source.split}'${source.config ? ` of '${source.config}'` : ''}.`,
      )
    await requireDiskSpace(requireWithinLimits(files, max_bytes))
    await mkdir(folder, { recursive: true })
    const parts: TablePart[] = []
    let left = max_bytes
    for (const [index, file] of files.entries()) {
      const blob = await downloadFile({ ...hubOptions, path: file.path, ...(revision && { revision }) })
      if (!blob) throw new Unreadable('file_not_readable', `${source.repo_id} has no file ${file.path} any more.`)
      const format = formatOf(file.path)!
      const part = path.join(folder, `${String(index).padStart(5, '0')}.${format}`)
      left -= await saveBlob(blob, part, left)
      parts.push({ source: part, format })
    }
    return parts
  } catch (error) {
    throw signal.aborted ? error : toUnreadable(error, source, url)
  }
}

/**
 * The files of a split, of one format, in order: those with the split in their path. For `train` also files without any
 * split in their path, if no path has `train`.
 */
function filesOfSplit<F extends { path: string }>(
  files: F[],
  { split, config }: { split: string; config?: string | undefined },
): F[] {
  const pathHas = (file: F, word: string) =>
    new RegExp(`(^|[/_.-])${word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}([/_.-]|$)`, 'i').test(file.path)
  const tables = files.filter((file) => formatOf(file.path) && (!config || pathHas(file, config)))
  const named = tables.filter((file) => pathHas(file, split))
  const unnamed =
    split === 'train'
      ? tables.filter((file) => !/(^|[/_.-])(test|val|valid|validation|dev|eval)([/_.-]|$)/i.test(file.path))
      : []
  const chosen = named.length > 0 ? named : unnamed
  const format = formats.find((candidate) => chosen.some((file) => formatOf(file.path) === candidate))
  const dataFiles = chosen
    .filter((file) => formatOf(file.path) === format)
    .toSorted((a, b) => (a.path < b.path ? -1 : 1))
  const folders = [...new Set(dataFiles.map((file) => path.posix.dirname(file.path)))]
  if (folders.length > 1)
    throw new Unreadable(
      'file_not_readable',
      `The dataset has this split in several folders (${folders.slice(0, 10).join(', ')}). Name one of ` +
        'them as "config".',
    )
  return dataFiles
}

const maxFiles = 500
const maxListed = 100_000

const formatOf = (file: string) => formats.find((format) => file.toLowerCase().endsWith(`.${format}`))

const emptyWhenNotFound = (error: unknown) => {
  if (error instanceof HubApiError && error.statusCode === 404) return []
  throw error
}

/** The total bytes of the files. Throws Unreadable if there are too many files or bytes. */
function requireWithinLimits(files: { size: number }[], max_bytes: number): number {
  if (files.length > maxFiles)
    throw new Unreadable(
      'file_too_large',
      `The split has ${files.length} files, more than the ${maxFiles} that this service takes.`,
    )
  const bytes = files.reduce((sum, file) => sum + file.size, 0)
  if (bytes > max_bytes)
    throw new Unreadable(
      'file_too_large',
      `The split has ${Math.round(bytes / 1e6)} MB, more than the ${Math.round(max_bytes / 1e6)} MB that ` +
        'this service takes.',
    )
  return bytes
}

async function saveBlob(blob: Blob, file: string, max_bytes: number): Promise<number> {
  let bytes = 0
  const meter = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      bytes += chunk.length
      done(
        bytes > max_bytes
          ? new Unreadable('file_too_large', 'The split has more bytes than this service takes.')
          : null,
        chunk,
      )
    },
  })
  await pipeline(Readable.fromWeb(blob.stream() as never), meter, createWriteStream(file, { mode: 0o600 }))
  return bytes
}

function toUnreadable(error: unknown, { repo_id, revision }: HubSource, url: string): unknown {
  if (error instanceof Unreadable) return error
  if (error instanceof HubApiError) {
    if (error.statusCode === 401 || error.statusCode === 403)
      return new Unreadable(
        'file_not_readable',
        `${url} does not give ${repo_id} to everyone (${error.statusCode}). Upload the file once more ` +
          'with a token of yours in the field hf_token.',
      )
    if (error.statusCode === 404)
      return new Unreadable(
        'file_not_readable',
        `${url} has no dataset ${repo_id}${revision ? ` with a revision '${revision}'` : ''}, or none ` +
          'that may be seen without a token (field hf_token).',
      )
    return new Unreadable('file_not_readable', `${url} answered ${error.statusCode} for ${repo_id}. Try again later.`)
  }
  if ((error as NodeJS.ErrnoException).code === 'ENOSPC') return error
  return new Unreadable(
    'file_not_readable',
    `${repo_id} could not be fetched from ${url}: ${reason(error)}. If this machine has no network, ` +
      'upload the rows as a file.',
  )
}

const reason = (error: unknown) => {
  const { message, cause } = (error ?? {}) as Partial<Error>
  return String(cause instanceof Error ? cause.message : (message ?? error)).slice(0, 200)
}
