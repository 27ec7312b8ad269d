import { parseStorageUrl } from '../../lib/storage-url.ts'
import pkg from '../../package.json' with { type: 'json' }
import { readConfig } from '../../server/config.ts'
import { moveInstallation } from '../../server/maintenance/migrate/migrate.ts'
import { UsageError } from '../support/errors.ts'
import type { GlobalOptions } from '../support/options.ts'
import { show } from '../support/output.ts'

interface Options extends GlobalOptions {
  toDatabase?: string
  toStorage?: string
  toDataDir?: string
  lostServer?: string[]
}

/** Moves rows and files of the stopped service that the settings name. Never changes them there. */
export async function migrateData(options: Options): Promise<void> {
  const { toDatabase: database_url, toStorage: storage_url, toDataDir: data_dir, lostServer: lost_servers } = options
  if (storage_url !== undefined)
    try {
      parseStorageUrl(storage_url)
    } catch (error) {
      throw new UsageError(`--to-storage ${(error as Error).message}.`)
    }
  const source = readConfig(process.env)
  const to = { database_url, storage_url, data_dir, lost_servers }
  const moved = await moveInstallation(source, to, (line) => console.error(line))
  const { rows, files, bytes, tables } = moved
  const size = `${rows} rows in ${tables.length} tables and ${files} files (${(bytes / 1e6).toFixed(1)} MB)`
  show(options, { ...moved, tunery_version: pkg.version }, `Moved and verified ${size}.\n${nextSteps(options)}`)
}

function nextSteps({ toDatabase, toStorage, toDataDir }: Options): string {
  if (toDataDir !== undefined)
    return (
      `Now set TUNERY_DATA_DIR=${toDataDir}, leave out TUNERY_DATABASE_URL and TUNERY_STORAGE_URL, and start the ` +
      'service. Remove the old data when all is well.'
    )
  const settings = [
    ...(toDatabase === undefined ? [] : ['TUNERY_DATABASE_URL']),
    ...(toStorage === undefined ? [] : ['TUNERY_STORAGE_URL']),
  ].join(' and ')
  return (
    `Now set ${settings} and start the service with the data folder that it had: it has secret.key, which encrypts ` +
    'secrets in the rows. Servers on other machines need a copy of that file (TUNERY_SECRET_KEY_FILE). Remove the ' +
    'old data when all is well.'
  )
}
