import type { Run } from '../support/options.ts'
import type { LocalCommands } from './commands.ts'

/** Failures that the user can fix come as UsageErrors. */
const guarded = (load: () => Promise<Run>) => async (): Promise<Run> => {
  const run = (await load()) as (...args: unknown[]) => Promise<void> | void
  return async (...args: unknown[]) => {
    try {
      await run(...args)
    } catch (error) {
      const { asUsageError } = await import('./errors.ts')
      throw asUsageError(error)
    }
  }
}

/** Server and database are loaded by the commands that need them alone. */
export const local: LocalCommands = {
  createKey: guarded(async () => (await import('./keys.ts')).createLocalKey),
  createAccount: guarded(async () => (await import('./accounts.ts')).createAccount),
  listAccounts: guarded(async () => (await import('./accounts.ts')).listAccounts),
  changeAccount: guarded(async () => (await import('./accounts.ts')).changeAccount),
  signInLink: guarded(async () => (await import('./sign-in-link.ts')).createSignInLink),
  addModel: guarded(async () => (await import('./models.ts')).addModel),
  bundle: guarded(async () => (await import('./bundle.ts')).bundle),
  check: guarded(async () => (await import('./backup.ts')).check),
  backup: guarded(async () => (await import('./backup.ts')).backup),
  restore: guarded(async () => (await import('./backup.ts')).restore),
  migrateData: guarded(async () => (await import('./migrate-data.ts')).migrateData),
  config: guarded(async () => (await import('./config.ts')).config),
  checkMachine: async () => (await import('./doctor.ts')).checkMachine,
}
