// Failures of work on the data folder that the user can fix.
import { ApiError } from '../../contract/errors.ts'
import { ConfigError } from '../../server/config.ts'
import { BackupError } from '../../server/maintenance/backup/manifest.ts'
import { MigrateError } from '../../server/maintenance/migrate/error.ts'
import { NewerDatabase } from '../../server/platform/db/migrate.ts'
import { storageError } from '../../server/platform/storage/durable-files.ts'
import { WrongInstallation } from '../../server/platform/storage/installation.ts'
import { UsageError } from '../support/errors.ts'

/** The error as a UsageError, if its message says what to do. */
export function asUsageError(error: unknown): unknown {
  const message =
    error instanceof ConfigError ||
    error instanceof ApiError ||
    error instanceof BackupError ||
    error instanceof MigrateError ||
    error instanceof NewerDatabase ||
    error instanceof WrongInstallation ||
    storageError(error)
  return message ? new UsageError((error as Error).message) : error
}
