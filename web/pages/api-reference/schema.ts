// Reading schemas: their parts, their limits in words, and an example of a value.
import { type Description, nameOf, type Schema } from '../../lib/openapi.ts'

/** The schema itself, and its name where it has one. `allOf` around a reference adds a description to it. */
export function resolve(description: Description, schema: Schema): { name?: string; schema: Schema } {
  const { allOf, ...rest } = schema
  const only = schema.$ref ? schema : allOf?.length === 1 ? allOf[0]! : undefined
  if (!only?.$ref) return { schema }
  const name = nameOf(only)!
  const target = description.components.schemas[name] ?? {}
  return { name, schema: schema.$ref ? target : { ...target, ...rest } }
}

/** One of several: what stands for the choice. */
export const alternatives = (schema: Schema): Schema[] | undefined => schema.oneOf ?? schema.anyOf

/** Whether there is more to see of a schema than its type. */
export function hasParts(description: Description, schema: Schema): boolean {
  const { schema: found } = resolve(description, schema)
  if (found.properties && Object.keys(found.properties).length > 0) return true
  if (found.items) return hasParts(description, found.items)
  if (typeof found.additionalProperties === 'object') return hasParts(description, found.additionalProperties)
  return alternatives(found)?.some((alternative) => hasParts(description, alternative)) ?? false
}

/** A type in words: `string`, `array of Message`, `string or null`. */
export function typeOf(description: Description, schema: Schema): string {
  const { name, schema: found } = resolve(description, schema)
  const kind = name ?? plainType(description, found)
  return found.nullable ? `${kind} or null` : kind
}

function plainType(description: Description, schema: Schema): string {
  const choices = alternatives(schema)
  if (choices && choices.length > 2 && choices.every((choice) => choice.$ref)) return `one of ${choices.length} objects`
  if (choices) return [...new Set(choices.map((choice) => typeOf(description, choice)))].join(' or ')
  if (schema.type === 'array') return `array of ${schema.items ? typeOf(description, schema.items) : 'anything'}`
  if (schema.type === 'object' || schema.properties) return 'object'
  if (schema.format === 'binary') return 'file'
  return schema.type ?? 'anything'
}

/** Defaults, ranges and the rest, each a few words. */
export function limitsOf(schema: Schema): string[] {
  const words: string[] = []
  // The largest safe integers are what a range without an end becomes.
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema
  if (minimum !== undefined && minimum > Number.MIN_SAFE_INTEGER)
    words.push(exclusiveMinimum === true ? `above ${minimum}` : `at least ${minimum}`)
  else if (typeof exclusiveMinimum === 'number') words.push(`above ${exclusiveMinimum}`)
  if (maximum !== undefined && maximum < Number.MAX_SAFE_INTEGER)
    words.push(exclusiveMaximum === true ? `below ${maximum}` : `at most ${maximum}`)
  const { minLength, maxLength, minItems, maxItems } = schema
  if (minLength && minLength > 1) words.push(`${minLength} characters or more`)
  if (maxLength !== undefined) words.push(`at most ${maxLength.toLocaleString('en')} characters`)
  if (minItems) words.push(minItems === 1 ? 'not empty' : `${minItems} entries or more`)
  if (maxItems !== undefined) words.push(`at most ${maxItems.toLocaleString('en')} entries`)
  if (schema.default !== undefined) words.push(`default ${JSON.stringify(schema.default)}`)
  else if (schema['x-default']) words.push(`default: ${schema['x-default']}`)
  return words
}

const sensible: Record<string, unknown> = {
  model_id: 'HuggingFaceTB/SmolLM2-135M-Instruct',
  base_model_id: 'HuggingFaceTB/SmolLM2-135M-Instruct',
  model: 'HuggingFaceTB/SmolLM2-135M-Instruct',
  dataset_id: 'ds_…',
  dataset: 'ds_…',
  graders: [{ type: 'json_equal', name: 'fields' }],
  events: ['training.completed'],
  baseline: 'HuggingFaceTB/SmolLM2-135M-Instruct',
  name: 'tickets',
  description: 'Tickets of spring',
  url: 'https://example.com/hooks',
  email: 'someone@example.com',
  input: 'The export button does nothing.',
  prompt: 'Once upon a time',
  messages: [{ role: 'user', content: 'I forgot my password.' }],
  limit: 20,
  purpose: 'fine-tune',
  training_file: 'file-…',
  input_file_id: 'file-…',
  endpoint: '/v1/chat/completions',
  completion_window: '24h',
}
/** Named by what they are of: in these operations `model` is one of the account's own. */
const ofOperation: Record<string, Record<string, unknown>> = {
  createDeployment: { model: 'mdl_…' },
  createEvaluation: { model: 'mdl_…' },
  switchDeployment: { model: 'mdl_…' },
  createExport: { model: 'mdl_…', model_id: 'mdl_…' },
}
/** Optional fields that an example is better with. */
const required: Record<string, string[]> = {
  chatCompletions: ['max_tokens'],
  completions: ['max_tokens'],
  createResponse: ['input'],
}

/** A value that the schema allows: what is required, and what is wanted of the operation. */
export function exampleOf(description: Description, schema: Schema, operation: string, field = '', depth = 0): unknown {
  const { schema: found } = resolve(description, schema)
  if (found.example !== undefined) return found.example
  const example = { ...sensible, ...ofOperation[operation] }[field]
  if (example !== undefined && fits(found, example)) return example
  if (found.default !== undefined) return found.default
  if (found.enum) return found.enum.find((value) => value !== null)
  const choices = alternatives(found)
  if (choices?.[0]) return depth > 6 ? null : exampleOf(description, choices[0], operation, field, depth + 1)
  if (found.type === 'array')
    return found.items && (found.minItems ?? 1) > 0 && depth < 6
      ? [exampleOf(description, found.items, operation, field.replace(/s$/, ''), depth + 1)]
      : []
  if (found.properties) {
    const names = Object.keys(found.properties).filter(
      (name) => found.required?.includes(name) || (depth === 0 && required[operation]?.includes(name)),
    )
    // A change of something has no required field: one shows how it is done.
    if (names.length === 0 && depth === 0) names.push(...Object.keys(found.properties).slice(0, 1))
    return Object.fromEntries(
      names.map((name) => [name, exampleOf(description, found.properties![name]!, operation, name, depth + 1)]),
    )
  }
  if (found.type === 'integer' || found.type === 'number') return field === 'max_tokens' ? 64 : (found.minimum ?? 1)
  if (found.type === 'boolean') return true
  if (found.type === 'string') return field.endsWith('_id') ? `${field.slice(0, -3)}_…` : '…'
  return {}
}

const fits = (schema: Schema, value: unknown) => {
  const types = (alternatives(schema) ?? [schema]).map(({ type }) => type)
  const type = Array.isArray(value) ? 'array' : typeof value
  return types.includes(undefined) || types.includes(type) || (type === 'number' && types.includes('integer'))
}
