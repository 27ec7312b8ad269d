import { ApiError } from '../../contract/errors.ts'

/** The error of a schema that can't be enforced; `path` is a JSON pointer into the schema, '' for its top. */
export function refusal(path: string, why: string): ApiError {
  return new ApiError('schema_not_enforceable', `The schema ${path === '' ? 'at its top' : `at ${path}`} can't be enforced: ${why}`, { details: { path } })
}

/** A JSON pointer's next part. */
export function under(path: string, key: string | number): string {
  return `${path}/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`
}
