// For the commands whose scripts rely on exit status 2.
import { asCommandError, UsageError } from '../support/errors.ts'
import { connectedTo } from '../support/service.ts'

/** Gives every failure that can be explained exit status 2, as `export`, `import` and `bundle` have always had it. */
export async function explained<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const commandError = asCommandError(error, connectedTo())
    throw commandError ? new UsageError(commandError.message) : error
  }
}
