import { DisplayName } from '../../contract/common.ts'
import { UsageError } from '../support/errors.ts'

/** Validates the option `--name`. `usage`: the message if it is missing. */
export function readName(given: string | undefined, usage: string): string {
  if (!given?.trim()) throw new UsageError(usage)
  const { data, error } = DisplayName.safeParse(given)
  if (error) throw new UsageError(`--name: ${error.issues[0]!.message}.`)
  return data
}
