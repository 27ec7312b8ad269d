import { TuneryError } from '../../sdk/index.ts'

/** What an error says of a field of the request, such as `name` or `config.training_config.epochs`. */
export function fieldError(error: unknown, field: string): string | undefined {
  if (!(error instanceof TuneryError)) return undefined
  const named = error.param ?? error.details?.field
  return named === field ? error.message : undefined
}

/** What an error says that belongs to none of these fields: it stands by the form's button. */
export function formError(error: unknown, fields: readonly string[]): string | undefined {
  if (!error || fields.some((field) => fieldError(error, field))) return undefined
  return error instanceof Error ? error.message : String(error)
}
