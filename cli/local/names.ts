import { DisplayName } from '../../contract/common.ts'
import { UsageError } from '../support/errors.ts'

/** Validates the option `--name`. `usage`: the message if it is missing. */
export function readName(text: string | undefined, usage: string): string {
  if (!text?.trim()) throw new UsageError(usage)
  const { data, error } = DisplayName.safeParse(text)
  if (error) throw new UsageError(`--name: ${error.issues[0]!.message}.`)
  return data
}
