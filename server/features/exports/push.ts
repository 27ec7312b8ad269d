// Uploads exports to a repository of the operator's hub, with the operator's token.
import { openAsBlob } from 'node:fs'
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { createRepo, HubApiError, uploadFilesWithProgress } from '@huggingface/hub'
import { withLease } from '../../platform/queue/lease-writes.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import * as store from './store.ts'
import {
  ExportFailure,
  type ExportOutput,
  type ExportWork,
  type Push,
  type PushResult,
  type ReportProgress,
} from './work.ts'

/** Both methods throw ExportFailure `push_failed` if the hub refuses or cannot be reached. */
export function createPush({ url, token }: { url: string; token: string }): Push {
  const repoOptions = (repository: string) => ({
    repo: { type: 'model' as const, name: repository },
    hubUrl: url,
    accessToken: token,
  })

  async function asPushFailure<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      signal.throwIfAborted()
      const reason = error instanceof HubApiError ? `${error.statusCode}: ${error.message}` : (error as Error).message
      throw new ExportFailure('push_failed', `${url} did not take the files (${reason.slice(0, 500)}).`)
    }
  }

  return {
    create: (repository, signal) =>
      asPushFailure(signal, async () => {
        try {
          await createRepo({
            ...repoOptions(repository),
            private: true,
            fetch: (input, init) => fetch(input, { ...init, signal }),
          })
          return true
        } catch (error) {
          if (error instanceof HubApiError && error.statusCode === 409) return false
          throw error
        }
      }),
    upload: (repository, files, title, onProgress, signal) =>
      asPushFailure(signal, async () => {
        const contents = await Promise.all(
          files.map(async ({ name, path }) => ({ path: name, content: await openAsBlob(path) })),
        )
        const sizes = new Map(contents.map(({ path, content }) => [path, content.size]))
        const total = contents.reduce((sum, { content }) => sum + content.size, 0)
        const done = new Map<string, number>()
        for await (const event of uploadFilesWithProgress({
          ...repoOptions(repository),
          files: contents,
          commitTitle: title,
          abortSignal: signal,
          useWebWorkers: false,
        })) {
          if (event.event !== 'fileProgress') continue
          // Each file is hashed, then sent; each phase reports progress from 0 to 1.
          done.set(
            event.path,
            ((event.state === 'hashing' ? 0 : 0.5) + event.progress / 2) * (sizes.get(event.path) ?? 0),
          )
          onProgress([...done.values()].reduce((sum, bytes) => sum + bytes, 0) / Math.max(1, total))
        }
        return `${url.replace(/\/$/, '')}/${repository}`
      }),
  }
}

/**
 * Uploads the export to the hub; a folder as single files. A failed push does not fail the export. All accounts share
 * the operator's token, so an account may only write to repositories that its own exports created.
 */
export async function pushFiles(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  { out, projector }: ExportOutput,
  reportProgress: ReportProgress,
  signal: AbortSignal,
): Promise<PushResult> {
  const repository = row.push_to!
  // The operator removed the token after the export was created.
  if (!work.push) return { repository, url: null, error: 'The service no longer has a token for the hub.' }
  reportProgress('push', 0)
  const ggufs = projector ? [out, projector.path] : [out]
  const files =
    row.format === 'gguf' ? ggufs.map((file) => ({ name: path.basename(file), path: file })) : await filesIn(out)
  try {
    if (await work.push.create(repository, signal))
      await withLease(work, claim, (trx) => store.claimRepository(trx, row.account_id, repository))
    else if (!(await store.ownsRepository(work.db, row.account_id, repository)))
      return {
        repository,
        url: null,
        error: `There is already a repository ${repository}, which no export of this account created. Name another.`,
      }
    const url = await work.push.upload(
      repository,
      files,
      `Export of ${row.model_id}`,
      (done) => reportProgress('push', done),
      signal,
    )
    return { repository, url, error: null }
  } catch (error) {
    if (!(error instanceof ExportFailure)) throw error
    return { repository, url: null, error: error.message }
  }
}

async function filesIn(folder: string): Promise<{ name: string; path: string }[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name))
  return files.sort().map((file) => ({ name: path.relative(folder, file).replaceAll(path.sep, '/'), path: file }))
}
