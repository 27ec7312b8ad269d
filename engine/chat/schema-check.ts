// Whether a JSON schema can be enforced while an answer is decoded.
import { checkSize } from '../grammar/schema-check.ts'
import { schemaRules } from '../grammar/schema-rules.ts'

/** Throws ApiError schema_not_enforceable. */
export function checkSchema(schema: unknown): void {
  checkSize(schema)
  schemaRules(schema)
}
