// Files sent to a repository of the hub that the operator set, with the operator's token.
import { openAsBlob } from 'node:fs'
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { createRepo, HubApiError, uploadFilesWithProgress } from '@huggingface/hub'
import { type Claim, underClaim } from '../queue/queue.ts'
import type { Made } from './make.ts'
import type { Pushed } from './outcomes.ts'
import * as store from './store.ts'
import { ExportFailure, type ExportWork, type Told } from './work.ts'

export interface Push {
  /** Makes the repository, seen by the token's owner alone. False where there is one of this name. */
  create(repository: string, signal: AbortSignal): Promise<boolean>
  /** Puts the files into it in one commit. Returns its address. */
  upload(
    repository: string,
    files: { name: string; path: string }[],
    title: string,
    onProgress: (done: number) => void,
    signal: AbortSignal,
  ): Promise<string>
}

/** Both throw ExportFailure push_failed where the hub refuses, or is not to be reached. */
export function createPush({ url, token }: { url: string; token: string }): Push {
  const where = (repository: string) => ({
    repo: { type: 'model' as const, name: repository },
    hubUrl: url,
    accessToken: token,
  })

  async function told<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      signal.throwIfAborted()
      const said = error instanceof HubApiError ? `${error.statusCode}: ${error.message}` : (error as Error).message
      throw new ExportFailure('push_failed', `${url} did not take the files (${said.slice(0, 500)}).`)
    }
  }

  return {
    create: (repository, signal) =>
      told(signal, async () => {
        try {
          await createRepo({
            ...where(repository),
            private: true,
            fetch: (asked, init) => fetch(asked, { ...init, signal }),
          })
          return true
        } catch (error) {
          if (error instanceof HubApiError && error.statusCode === 409) return false
          throw error
        }
      }),
    upload: (repository, files, title, onProgress, signal) =>
      told(signal, async () => {
        const contents = await Promise.all(
          files.map(async ({ name, path }) => ({ path: name, content: await openAsBlob(path) })),
        )
        const sizes = new Map(contents.map(({ path, content }) => [path, content.size]))
        const whole = contents.reduce((sum, { content }) => sum + content.size, 0)
        const done = new Map<string, number>()
        for await (const event of uploadFilesWithProgress({
          ...where(repository),
          files: contents,
          commitTitle: title,
          abortSignal: signal,
          useWebWorkers: false,
        })) {
          if (event.event !== 'fileProgress') continue
          // Hashing comes before sending, and each tells from nothing to the whole.
          done.set(
            event.path,
            ((event.state === 'hashing' ? 0 : 0.5) + event.progress / 2) * (sizes.get(event.path) ?? 0),
          )
          onProgress([...done.values()].reduce((sum, bytes) => sum + bytes, 0) / Math.max(1, whole))
        }
        return `${url.replace(/\/$/, '')}/${repository}`
      }),
  }
}

/**
 * Sends what was made to the hub, a folder as its files. A hub that refuses takes nothing from the export itself. All
 * accounts share the operator's token, so each may write into repositories that its own exports have made, and no
 * others.
 */
export async function pushFiles(
  work: ExportWork,
  claim: Claim,
  row: store.ExportRow,
  { out }: Made,
  told: Told,
  signal: AbortSignal,
): Promise<Pushed> {
  const repository = row.push_to!
  // The token was taken away since it was asked for.
  if (!work.push) return { repository, url: null, error: 'The service has no token for the hub any more.' }
  told('push', 0)
  const files = row.format === 'gguf' ? [{ name: path.basename(out), path: out }] : await filesIn(out)
  try {
    if (await work.push.create(repository, signal))
      await underClaim(work, claim, (trx) => store.ownRepository(trx, row.account_id, repository))
    else if (!(await store.ownsRepository(work.db, row.account_id, repository)))
      return {
        repository,
        url: null,
        error: `There is a repository ${repository} already, which no export of this account has made. Name another.`,
      }
    const url = await work.push.upload(
      repository,
      files,
      `Export of ${row.model_id}`,
      (done) => told('push', done),
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
