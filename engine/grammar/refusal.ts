import { ApiError } from '../../contract/errors.ts'

// Both quote the schema, which may hold anything of any length.
const pathCharactersMax = 300
const whyCharactersMax = 600

/** The error of a schema that can't be enforced; `path` is a JSON pointer into the schema, '' for its top. */
export function refusal(path: string, why: string): ApiError {
  const place = shortened(path, pathCharactersMax)
  return new ApiError(
    'schema_not_enforceable',
    `The schema ${place === '' ? 'at its top' : `at ${place}`} can't be enforced: ${shortened(why, whyCharactersMax)}`,
    { details: { path: place } },
  )
}

/** A JSON pointer's next part. */
export function under(path: string, key: string | number): string {
  return `${path}/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`
}

const shortened = (text: string, characters: number) => (text.length <= characters ? text : `${text.slice(0, characters)}…`)
