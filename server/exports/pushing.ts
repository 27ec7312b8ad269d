import { readdir } from 'node:fs/promises'
import path from 'node:path'
import type { Claim } from '../queue/queue.ts'
import { underClaim } from '../queue/under-claim.ts'
import type { Made } from './make.ts'
import type { Pushed } from './outcomes.ts'
import * as store from './store.ts'
import { ExportFailure, type ExportWork, type Told } from './work.ts'

/**
 * Sends what was made to the hub, a folder as its files. A hub that refuses takes nothing from the export itself. All accounts share the
 * operator's token, so each may write into repositories that its own exports have made, and no others.
 */
export async function pushFiles(work: ExportWork, claim: Claim, row: store.ExportRow, { out }: Made, told: Told, signal: AbortSignal): Promise<Pushed> {
  const repository = row.push_to!
  // The token was taken away since it was asked for.
  if (!work.push) return { repository, url: null, error: 'The service has no token for the hub any more.' }
  told('push', 0)
  const files = row.format === 'gguf' ? [{ name: path.basename(out), path: out }] : await filesIn(out)
  try {
    if (await work.push.create(repository, signal)) await underClaim(work, claim, (trx) => store.ownRepository(trx, row.account_id, repository))
    else if (!(await store.ownsRepository(work.db, row.account_id, repository)))
      return { repository, url: null, error: `There is a repository ${repository} already, which no export of this account has made. Name another.` }
    const url = await work.push.upload(repository, files, `Export of ${row.model_id}`, (done) => told('push', done), signal)
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
