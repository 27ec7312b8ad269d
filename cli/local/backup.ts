import path from 'node:path'
import pkg from '../../package.json' with { type: 'json' }
import { readConfig } from '../../server/config.ts'
import { backUp } from '../../server/maintenance/backup/backup.ts'
import { checkDataDir } from '../../server/maintenance/backup/check.ts'
import type { Manifest } from '../../server/maintenance/backup/manifest.ts'
import { restore as restoreBackup } from '../../server/maintenance/backup/restore.ts'
import { UsageError } from '../support/errors.ts'
import type { GlobalOptions } from '../support/options.ts'
import { show } from '../support/output.ts'

const summaryOf = ({ created_at, files }: Manifest) => ({
  created_at,
  files: files.length,
  size_bytes: files.reduce((sum, { size_bytes }) => sum + size_bytes, 0),
})
const sizeOf = ({ files }: Manifest) =>
  `${files.length} files, ${(files.reduce((sum, { size_bytes }) => sum + size_bytes, 0) / 1e6).toFixed(1)} MB`

/** The data folder, whose database is SQLite. Throws a UsageError if the database is elsewhere. */
function sqliteDataDir(): { data_dir: string; storage_url?: string | undefined } {
  const { data_dir, database_url, storage_url } = readConfig(process.env)
  if (database_url === undefined) return { data_dir, storage_url }
  throw new UsageError(
    'The database is in Postgres (TUNERY_DATABASE_URL), which this command does not know. Back it up and restore it ' +
      'with pg_dump and pg_restore, and the files as docs/guides/operate.md says: the bucket by its versions or a ' +
      'copy, a data folder without a storage by a copy while the service is stopped.',
  )
}

/** Checks the database and its files; sets exit status 1 if there are problems. */
export async function check({ json }: GlobalOptions): Promise<void> {
  const { data_dir, storage_url } = sqliteDataDir()
  const problems = await checkDataDir(data_dir, storage_url)
  if (json) console.log(JSON.stringify({ ok: problems.length === 0, problems }))
  else console.log(problems.length === 0 ? `${data_dir} is whole.` : problems.join('\n'))
  if (problems.length > 0) process.exitCode = 1
}

/** Backs up the data folder. Safe while a server runs. */
export async function backup(target: string, options: GlobalOptions): Promise<void> {
  const folder = path.resolve(target)
  const { data_dir, storage_url } = sqliteDataDir()
  const manifest = await backUp(data_dir, folder, pkg.version, storage_url)
  show(
    options,
    { folder, ...summaryOf(manifest) },
    `Backed up into ${folder}: ${sizeOf(manifest)}. The key of the secrets (secret.key) is not in it; keep that apart.`,
  )
}

export async function restore(source: string, options: GlobalOptions): Promise<void> {
  const { data_dir, storage_url } = sqliteDataDir()
  const manifest = await restoreBackup(path.resolve(source), data_dir, storage_url)
  show(
    options,
    { data_dir, ...summaryOf(manifest) },
    `Restored the backup of ${manifest.created_at} into ${data_dir}: ${sizeOf(manifest)}. ` +
      'Put your secret.key in place before the service starts.',
  )
}
