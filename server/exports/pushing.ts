import { readdir } from 'node:fs/promises'
import path from 'node:path'
import type { Made } from './make.ts'
import type { Pushed } from './outcomes.ts'
import type { ExportRow } from './store.ts'
import { ExportFailure, type ExportWork, type Told } from './work.ts'

/** Sends what was made to the hub, a folder as its files. A hub that refuses takes nothing from the export itself. */
export async function pushFiles(work: ExportWork, row: ExportRow, { out }: Made, told: Told, signal: AbortSignal): Promise<Pushed> {
  const repository = row.push_to!
  // The token was taken away since it was asked for.
  if (!work.push) return { repository, url: null, error: 'The service has no token for the hub any more.' }
  told('push', 0)
  const files = row.format === 'gguf' ? [{ name: path.basename(out), path: out }] : await filesIn(out)
  try {
    const { url } = await work.push(repository, files, `Export of ${row.model_id}`, (done) => told('push', done), signal)
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
