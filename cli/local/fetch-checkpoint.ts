// Checkpoints of the Hugging Face Hub for `models add`, with the downloads of the service: they resume, and every file
// must match the hub's hash.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { ApiError } from '../../contract/errors.ts'
import { readConfig } from '../../server/config.ts'
import {
  bytesIn,
  type CheckpointFile,
  DownloadFailed,
  fetchFile,
  HashMismatch,
  listCheckpoint,
  type Source,
} from '../../server/features/hub/index.ts'
import { storageError } from '../../server/platform/storage/durable-files.ts'
import { requireFreeDisk } from '../../server/platform/storage/free-disk.ts'
import { Interrupted, UsageError } from '../support/errors.ts'
import { createBar } from '../support/output.ts'
import { bar, bytes as bytesText } from '../support/text.ts'

/** Connections in a row that end without a new byte. */
const triesMax = 5

/**
 * Downloads the checkpoint `id` into `folder/hf`. What has come stays there, for the next try. Throws a UsageError that
 * says what to do, or Interrupted when `signal` aborts.
 */
export async function fetchCheckpoint(id: string, folder: string, signal: AbortSignal): Promise<void> {
  const source = hubOf(id)
  const hf = path.join(folder, 'hf')
  const pinned = path.join(folder, 'revision')
  try {
    const { revision, files } = await listCheckpoint(source, 'main', signal)
    // A file of another revision, or of a folder whose copying was killed, may have the same size.
    if (!existsSync(pinned) || readFileSync(pinned, 'utf8') !== revision) rmSync(hf, { recursive: true, force: true })
    mkdirSync(hf, { recursive: true })
    writeFileSync(pinned, revision)
    await fetchFiles(source, revision, files, hf, signal)
  } catch (error) {
    const parts = existsSync(hf) ? readdirSync(hf).length : 0
    if (isFinal(error) || parts === 0) rmSync(folder, { recursive: true, force: true })
    if (signal.aborted) throw new Interrupted(parts > 0 ? 'What has come is kept: the same command continues.' : '')
    throw new UsageError(`${id} could not be added: ${problemOf(error as Error, source, parts > 0)}`)
  }
}

/** The hub of the service's settings; the variables of Hugging Face's own programs name one too. */
function hubOf(model_id: string): Source {
  const { huggingface_url, huggingface_token } = readConfig(process.env)
  const { TUNERY_HUGGINGFACE_URL, HF_ENDPOINT, HF_TOKEN } = process.env
  const url = (TUNERY_HUGGINGFACE_URL === undefined && HF_ENDPOINT) || huggingface_url
  return { url, token: huggingface_token ?? HF_TOKEN, model_id }
}

async function fetchFiles(
  source: Source,
  revision: string,
  files: CheckpointFile[],
  hf: string,
  signal: AbortSignal,
): Promise<void> {
  const total = files.reduce((sum, { size }) => sum + size, 0)
  let bytes = await bytesIn(hf, files)
  let received = 0
  // The rest, and about the whole size again for the engine's file.
  await requireFreeDisk(hf, Math.ceil((2 * total - bytes) / 1e6))
  const progress = createBar(process.stderr, (share) => bar(share, 24, process.stderr))
  const add = (count: number) => {
    bytes += count
    received += Math.max(0, count)
    progress.show(bytes / total, `${bytesText(bytes)} of ${bytesText(total)}`)
  }
  try {
    for (const file of files)
      for (let tries = 1, damaged = 0; ; tries++) {
        const before = received
        try {
          await fetchFile(source, revision, file, hf, signal, add)
          break
        } catch (error) {
          if (error instanceof HashMismatch && damaged++ === 0) {
            // Its file is gone: once more from its beginning.
            bytes = await bytesIn(hf, files)
            continue
          }
          if (received > before) tries = 0
          if (signal.aborted || isFinal(error) || tries >= triesMax) throw error
        }
      }
  } finally {
    progress.end()
  }
}

const isFinal = (error: unknown) => error instanceof DownloadFailed || error instanceof HashMismatch

function problemOf(error: Error, { url }: Source, hasBegun: boolean): string {
  if (error instanceof DownloadFailed) return error.message
  const full = error instanceof ApiError ? error : storageError(error)
  if (full?.code === 'storage_full')
    return hasBegun
      ? 'the disk is full. What has come is kept: make room, and the same command continues.'
      : 'the disk has no room for it. Make some, then run the same command again.'
  if (error instanceof HashMismatch) return `${url} sent a damaged file twice: ${error.message}. Try again later.`
  const advice = hasBegun
    ? 'what has come is kept: the same command continues'
    : 'try again later, or bring its checkpoint folder here another way, and name it with --from FOLDER'
  // An error of fetch has what happened as its cause.
  const { cause } = error
  if (!(cause instanceof Error)) return `${error.message.replace(/\.$/, '')}; ${advice}.`
  const what = hasBegun ? `the connection to ${url} ended` : `${url} cannot be reached from this machine`
  return `${what} (${cause.message}); ${advice}.`
}
