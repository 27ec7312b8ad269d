// Turns a zod schema into table rows: one per field, with type and bounds, default and description.
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
  /** Its fields are described elsewhere. */
  'x-opaque'?: boolean
}

export interface FieldRow {
  /** The field's full path, such as `config.lora_config.r`. */
  path: string
  type: string
  /** '' if there is none; `required` if the field must be given. */
  default: string
  description: string
}

const jsonSchema = (schema: z.ZodType, io: 'input' | 'output') =>
  z.toJSONSchema(schema, { io, unrepresentable: 'any' }) as JsonSchema

/** The fields of a request body, nested ones after their parent. Throws an Error for fields without description. */
export function fieldRows(schema: z.ZodType, prefix = ''): FieldRow[] {
  const rows = fieldRowsOf(jsonSchema(schema, 'input'), prefix)
  const undescribed = rows.filter(({ description }) => !description).map(({ path }) => path)
  if (undescribed.length > 0)
    throw new Error(`No description: ${undescribed.join(', ')}. Add .describe('…') to the schema.`)
  return rows
}

/** The type and bounds of a setting's parsed value. */
export const typeOfSetting = (schema: z.ZodType): string => typeText(jsonSchema(schema, 'output'))

function fieldRowsOf(schema: JsonSchema, prefix: string): FieldRow[] {
  const required = new Set(schema.required)
  return Object.entries(schema.properties ?? {}).flatMap(([name, field]) => {
    const path = prefix + name
    const row = {
      path,
      type: typeText(field),
      default: defaultText(field, required.has(name)),
      description: field.description ?? '',
    }
    return [row, ...objectsIn(field, path).flatMap(([inner, at]) => fieldRowsOf(inner, `${at}.`))]
  })
}

/** The object schemas in a field: the field itself, a list's items, a union's choices. */
function objectsIn(schema: JsonSchema, path: string): [JsonSchema, string][] {
  if (schema['x-opaque']) return []
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
/** zod's bound for an integer without one. */
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
