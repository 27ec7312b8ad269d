// The OpenAPI description of this service, which the API reference and the search of the docs read.
import { useQuery } from '@tanstack/react-query'

/** JSON Schema as OpenAPI 3.0 writes it. */
export interface Schema {
  $ref?: string
  type?: string
  format?: string
  description?: string | undefined
  nullable?: boolean
  enum?: unknown[]
  default?: unknown
  example?: unknown
  'x-default'?: string
  properties?: Record<string, Schema>
  required?: string[] | undefined
  additionalProperties?: boolean | Schema
  items?: Schema
  allOf?: Schema[]
  anyOf?: Schema[]
  oneOf?: Schema[]
  pattern?: string
  minimum?: number
  maximum?: number
  exclusiveMinimum?: boolean | number
  exclusiveMaximum?: boolean | number
  minLength?: number
  maxLength?: number
  minItems?: number
  maxItems?: number
}

export interface Parameter {
  name: string
  in: 'path' | 'query' | 'header'
  required?: boolean | undefined
  description?: string | undefined
  schema: Schema
}

type Content = Record<string, { schema?: Schema | undefined }>

interface DescribedOperation {
  operationId: string
  summary?: string
  tags?: string[]
  parameters?: Parameter[]
  requestBody?: { required?: boolean | undefined; content: Content }
  responses: Record<string, { description?: string | undefined; content?: Content }>
  security?: Record<string, unknown>[]
  'x-scope'?: string
  'x-or-scope'?: string
  'x-also-scopes'?: string[]
  'x-also-scopes-with'?: Record<string, string[]>
  'x-openai'?: boolean
}

export interface Description {
  info: { version: string }
  paths: Record<string, Record<string, DescribedOperation>>
  components: { schemas: Record<string, Schema> }
}

export interface Operation extends Omit<DescribedOperation, 'operationId' | 'summary'> {
  id: string
  method: string
  /** Below the base address `/v1`, such as `/datasets/{dataset_id}`. */
  path: string
  summary: string
  tag: string
}

export const useDescription = () =>
  useQuery({
    queryKey: ['openapi'],
    queryFn: async ({ signal }): Promise<Description> => {
      const response = await fetch('/v1/openapi.json', { signal })
      if (!response.ok) throw new Error(`/v1/openapi.json answered ${response.status}.`)
      return response.json()
    },
    staleTime: Number.POSITIVE_INFINITY,
  })

const cache = new WeakMap<Description, Operation[]>()

/** All operations, in the order of the description. */
export function operationsOf(description: Description): Operation[] {
  let operations = cache.get(description)
  if (!operations) {
    operations = Object.entries(description.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({
        ...operation,
        id: operation.operationId,
        method: method.toUpperCase(),
        path,
        summary: operation.summary ?? operation.operationId,
        tag: operation.tags?.[0] ?? 'other',
      })),
    )
    cache.set(description, operations)
  }
  return operations
}

/** The name of a schema that is referred to. */
export const nameOf = (schema: Schema): string | undefined => schema.$ref?.split('/').at(-1)
