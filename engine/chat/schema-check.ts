// Whether a JSON schema can be enforced while an answer is decoded.
import { ApiError } from '../../contract/errors.ts'
import { isWithin } from './template.ts'

/** Throws ApiError schema_not_enforceable. */
export function checkSchema(schema: unknown): void {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) throw new ApiError('schema_not_enforceable', 'A schema must be a JSON object.')
  if (!isWithin(schema, { depth: 32, values: 5000, characters: 200_000 }))
    throw new ApiError('schema_not_enforceable', 'The schema is too large or too deep to be enforced. Make it smaller.')
}
