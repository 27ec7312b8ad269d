// A zod schema as rows of a table: one per field, with its type and bounds, its default and what it is.
import { z } from 'zod'

interface JsonSchema {
  type?: string
  description?: string
  default?: unknown
  'x-default'?: string
  enum?: unknown[]
  const?: unknown
  anyOf?: JsonSchema[]
  oneOf?: JsonSchema[]
  items?: JsonSchema
  properties?: Record<string, JsonSchema>
  required?: string[]
  minimum?: number
  maximum?: number
  exclusiveMinimum?: number
  exclusiveMaximum?: number
  minLength?: number
  maxLength?: number
  minItems?: number
  maxItems?: number
}

export interface FieldRow {
  /** The field with those it lies in, such as `config.lora_config.r`. */
  path: string
  type: string
  /** Empty where there is none; `required` where the field must be given. */
  default: string
  description: string
}

const jsonSchema = (schema: z.ZodType, io: 'input' | 'output') =>
  z.toJSONSchema(schema, { io, unrepresentable: 'any' }) as JsonSchema

/**
 * The fields of an object that a request carries, nested ones after their own. Throws an Error that names each field
 * without a description.
 */
export function fieldRows(schema: z.ZodType, prefix = ''): FieldRow[] {
  const rows = rowsOf(jsonSchema(schema, 'input'), prefix)
  const bare = rows.filter(({ description }) => !description).map(({ path }) => path)
  if (bare.length > 0) throw new Error(`No description: ${bare.join(', ')}. Add .describe('…') to the schema.`)
  return rows
}

/** What a setting may be, once its text has been read. */
export const typeOfSetting = (schema: z.ZodType): string => typeText(jsonSchema(schema, 'output'))

function rowsOf(schema: JsonSchema, prefix: string): FieldRow[] {
  const required = new Set(schema.required)
  return Object.entries(schema.properties ?? {}).flatMap(([name, field]) => {
    const path = prefix + name
    const row = {
      path,
      type: typeText(field),
      default: defaultText(field, required.has(name)),
      description: field.description ?? '',
    }
    return [row, ...objectsIn(field, path).flatMap(([inner, at]) => rowsOf(inner, `${at}.`))]
  })
}

/** The objects that a field holds: itself, the items of a list, the choices of a union. */
function objectsIn(schema: JsonSchema, path: string): [JsonSchema, string][] {
  if (schema.properties) return [[schema, path]]
  if (schema.items) return objectsIn(schema.items, `${path}[]`)
  return [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].flatMap((choice) => objectsIn(choice, path))
}

function defaultText(schema: JsonSchema, required: boolean): string {
  if (schema['x-default'] !== undefined) return schema['x-default']
  if (schema.default !== undefined) return `\`${JSON.stringify(schema.default)}\``
  return required ? 'required' : ''
}

const number = (value: number) => value.toLocaleString('en-US', { maximumFractionDigits: 10 })
/** No bound of ours is as large: it stands for none. */
const unbounded = Number.MAX_SAFE_INTEGER

function range(low: number | undefined, high: number | undefined): string {
  const [from, to] = [
    low !== undefined && low > -unbounded ? low : undefined,
    high !== undefined && high < unbounded ? high : undefined,
  ]
  if (from !== undefined && to !== undefined) return `${number(from)} to ${number(to)}`
  if (to !== undefined) return `at most ${number(to)}`
  return from === undefined ? '' : `at least ${number(from)}`
}

function typeText(schema: JsonSchema): string {
  const choices = schema.anyOf ?? schema.oneOf
  if (choices) return choices.map(typeText).join(', or ')
  if (schema.enum) return schema.enum.map((value) => `\`${value}\``).join(', ')
  if (schema.const !== undefined) return `\`${schema.const}\``
  const bounded = (name: string, bounds: string) => (bounds ? `${name}, ${bounds}` : name)
  switch (schema.type) {
    case 'integer':
      return bounded('whole number', range(schema.minimum, schema.maximum))
    case 'number':
      if (schema.exclusiveMinimum !== undefined)
        return `number, above ${number(schema.exclusiveMinimum)}, ${range(undefined, schema.maximum)}`.replace(
          /, $/,
          '',
        )
      return bounded('number', range(schema.minimum, schema.maximum))
    case 'string': {
      const bounds = range(schema.minLength, schema.maxLength)
      return schema.maxLength === undefined ? 'text' : `text, ${bounds} characters`
    }
    case 'array': {
      const bounds = range(schema.minItems, schema.maxItems)
      return `${bounds ? `${bounds} × ` : 'list of '}${typeText(schema.items ?? {})}`
    }
    case 'boolean':
      return '`true` or `false`'
    case 'null':
      return '`null`'
    default:
      return schema.properties || schema.type === 'object' ? 'object' : 'text'
  }
}
