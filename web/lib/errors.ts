import { TuneryError } from '../../sdk/index.ts'

/** What an error says of a field of the request, such as `name` or `config.training_config.epochs`. */
export function fieldError(error: unknown, field: string): string | undefined {
  if (!(error instanceof TuneryError)) return undefined
  const named = error.param ?? error.details?.field
  return named === field ? besideField(error.message) : undefined
}

/** A message of the API beside the field that it is about: `'name': must not be empty.` as `Must not be empty.` */
const besideField = (message: string) =>
  message.replace(/^'[\w.]+': /, '').replace(/^\p{Ll}/u, (letter) => letter.toUpperCase())

/** What an error says that belongs to none of these fields: it stands by the form's button. */
export function formError(error: unknown, fields: readonly string[]): string | undefined {
  if (!error || fields.some((field) => fieldError(error, field))) return undefined
  return error instanceof Error ? error.message : String(error)
}
