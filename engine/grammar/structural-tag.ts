// Structural tags: free text with tagged parts that each follow a grammar. Used for tool calls.
import { ApiError } from '../../contract/errors.ts'
import { type CallTools, callRules } from './call-rules.ts'
import { writeEbnf } from './ebnf.ts'
import { checkSize } from './schema-check.ts'
import { schemaRules } from './schema-rules.ts'

const formats = new Set([
  'any_text',
  'calls',
  'const_string',
  'json_schema',
  'sequence',
  'or',
  'tag',
  'triggered_tags',
  'tags_with_separator',
  'regex',
])

/**
 * Replaces each JSON Schema in the tag, and calls in the shape of a model, by their grammars. Throws ApiError
 * `schema_not_enforceable`.
 */
export function resolveTag(tag: object): object {
  checkSize(tag)
  const visit = (node: unknown): unknown => {
    if (typeof node !== 'object' || node === null || Array.isArray(node))
      throw tagError('each of its formats has to be an object.')
    const format = node as Record<string, unknown>
    if (!formats.has(format.type as string))
      throw tagError(`${JSON.stringify(format.type)} is not a format that is known here (${[...formats].join(', ')}).`)
    if (format.type === 'json_schema') return { type: 'grammar', grammar: writeEbnf(schemaRules(format.json_schema)) }
    if (format.type === 'calls')
      return { type: 'grammar', grammar: writeEbnf(callRules(format as unknown as CallTools)) }
    const inner = { ...format }
    if (format.content !== undefined) inner.content = visit(format.content)
    for (const key of ['elements', 'tags'])
      if (format[key] !== undefined) {
        if (!Array.isArray(format[key])) throw tagError(`${key} has to be a list.`)
        inner[key] = format[key].map(visit)
      }
    return inner
  }
  const { type, format } = tag as Record<string, unknown>
  return { type: 'structural_tag', format: visit(type === 'structural_tag' || format !== undefined ? format : tag) }
}

function tagError(reason: string): ApiError {
  return new ApiError('schema_not_enforceable', `The structural tag can't be used: ${reason}`)
}
