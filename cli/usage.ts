import { DisplayName } from '../contract/common.ts'

/** Wrong words on the command line; the message says what would be right. */
export class UsageError extends Error {}

/** The option `--name`. `usage` says what to write where there is none. */
export function readName(given: string | undefined, usage: string): string {
  if (!given?.trim()) throw new UsageError(usage)
  const { data, error } = DisplayName.safeParse(given)
  if (error) throw new UsageError(`--name: ${error.issues[0]!.message}.`)
  return data
}
