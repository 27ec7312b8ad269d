// Failures of work on the data folder that the user can fix.
import { ApiError } from '../../contract/errors.ts'
import { ConfigError } from '../../server/config.ts'
import { NewerDatabase } from '../../server/db/migrate.ts'
import { BackupError } from '../../server/storage/backup/manifest.ts'
import { storageError } from '../../server/storage/durable-files.ts'
import { WrongInstallation } from '../../server/storage/installation.ts'
import { MigrateError } from '../../server/storage/migrate/error.ts'
import { UsageError } from '../support/errors.ts'

/** The error as a UsageError, if its message says what to do. */
export function asUsageError(error: unknown): unknown {
  const known =
    error instanceof ConfigError ||
    error instanceof ApiError ||
    error instanceof BackupError ||
    error instanceof MigrateError ||
    error instanceof NewerDatabase ||
    error instanceof WrongInstallation ||
    storageError(error)
  return known ? new UsageError((error as Error).message) : error
}
