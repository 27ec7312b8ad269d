// The thread that makes the API's description, of the schemas that validate the routes: it takes 0.4 s, in which
// nothing else runs in it.
import { parentPort, workerData } from 'node:worker_threads'
import { gzipSync } from 'node:zlib'
import swagger from '@fastify/swagger'
import fastify, { type FastifyInstance } from 'fastify'
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { errorResponses, type Route } from '../../../contract/route.ts'
import { isCreateRoute } from './idempotency.ts'
import { mount } from './mount.ts'
import { bodyOf, contractNames } from './schema-names.ts'

/** The description as it is sent: half a megabyte, and a tenth of that compressed. */
export interface Description {
  text: Uint8Array
  compressed: Uint8Array
}

/** Describes an app with the routes of the contract that answers none of them. */
async function makeDescription(version: string): Promise<Description> {
  const app = fastify()
  app.setValidatorCompiler(() => () => true)
  app.setSerializerCompiler(() => JSON.stringify)
  const routes = await describeRoutes(app, version)
  for (const route of routes) mount(app, route, () => Promise.reject(new Error('it only describes')))
  await app.ready()
  const text = Buffer.from(JSON.stringify(app.swagger()))
  return { text, compressed: gzipSync(text) }
}

const isRoute = (value: unknown): value is Route =>
  typeof value === 'object' && value !== null && 'path' in value && 'responses' in value

/** Describes the routes that are mounted from now on. Resolves with those of the contract. */
async function describeRoutes(app: FastifyInstance, version: string): Promise<Route[]> {
  /** Operations with a body that may be left out. */
  const optional = new Set<string>()
  const { schemas, operations } = await contractNames()
  // Objects have names, so that a generated client has a type for each instead of one for each use. A query and
  // a form are described field by field.
  for (const [schema, id] of schemas)
    if (isObject(schema) && !/(Query|Fields)$/.test(id))
      z.globalRegistry.add(schema, { ...z.globalRegistry.get(schema), id })
  await app.register(swagger, {
    openapi: {
      openapi: '3.0.3',
      info: {
        title: 'Tunery',
        version,
        description: 'Fine-tune open models on your examples and serve them by name.',
        license: { name: 'Apache-2.0' },
      },
      servers: [{ url: '/v1' }],
      components: {
        securitySchemes: {
          key: { type: 'http', scheme: 'bearer' },
          session: {
            type: 'apiKey',
            in: 'cookie',
            name: 'tunery_session',
            description: 'The cookie of a session of the dashboard; see /sign-in.',
          },
        },
      },
      security: [{ key: [] }],
    },
    stripBasePath: true,
    transform: (input) => {
      const route = input.route.config?.route
      const body = route && bodyOf(route)
      if (body && z.safeParse(body, undefined).success) optional.add(`${route.method.toLowerCase()} ${route.path}`)
      const operationId = route && operations.get(route)
      const result = jsonSchemaTransform(
        route ? { ...input, schema: forDescription(route, input.schema as object) } : input,
      )
      return route
        ? {
            ...result,
            url: `/v1${route.path.replace('*}', '}')}`.replace('{', ':').replace('}', ''),
            schema: {
              ...withForms(route, result.schema as object),
              ...(operationId && { operationId }),
              'x-scope': route.scope,
              ...(route.or_scope && { 'x-or-scope': route.or_scope }),
              ...(route.also && { 'x-also-scopes': route.also }),
              ...(route.also_with && { 'x-also-scopes-with': route.also_with }),
              ...(route.openai && { 'x-openai': true }),
              ...(route.scope === 'public' && { security: [] }),
              ...(route.scope === 'session' && { security: [{ session: [] }] }),
            },
          }
        : result
    },
    transformObject: (document) => {
      if (!('openapiObject' in document)) return document.swaggerObject
      for (const [path, operations] of Object.entries(document.openapiObject.paths ?? {}))
        for (const [method, operation] of Object.entries(operations ?? {}))
          if (optional.has(`${method} ${path}`))
            (operation as { requestBody: { required: boolean } }).requestBody.required = false
      return withComponents(jsonSchemaTransformObject(document))
    },
  })
  return [...operations.keys()].filter(isRoute)
}

interface Document {
  paths?: Record<string, unknown>
  components?: { schemas?: Record<string, unknown> }
}

/** Objects and unions of them. Texts and enums are as short as their names. */
const isObject = (schema: z.core.$ZodType): boolean =>
  schema instanceof z.ZodObject || (schema instanceof z.ZodUnion && schema.options.every(isObject))

/** The description with the components that it refers to, and no others. */
function withComponents<D extends Document>(document: D): D {
  const all = document.components?.schemas ?? {}
  const used = new Set<string>()
  const collect = (part: unknown) => {
    for (const [, name] of JSON.stringify(part).matchAll(/"#\/components\/schemas\/(\w+)"/g))
      if (name && !used.has(name)) {
        used.add(name)
        collect(all[name])
      }
  }
  collect(document.paths)
  const schemas = Object.fromEntries(Object.entries(all).filter(([name]) => used.has(name)))
  const named = forGenerators({ ...document, components: { ...document.components, schemas } }) as D
  nameAlternatives(named.components!.schemas as Record<string, Schema>)
  return named
}

interface Schema {
  type?: string
  enum?: unknown[]
  properties?: Record<string, Schema>
  [keyword: string]: unknown
}

/** Keywords that name nothing. */
const structural = new Set(['properties', 'items', 'allOf', 'anyOf', 'oneOf'])

/** Gives each object that is one of several alternatives its own component; its `type` makes the name. */
function nameAlternatives(components: Record<string, Schema>): void {
  const pascal = (text: string) =>
    text.replace(/(?:^|[^a-z\d])([a-z\d])/gi, (_, letter: string) => letter.toUpperCase())
  function walk(value: unknown, name: string): void {
    if (typeof value !== 'object' || value === null) return
    for (const [key, each] of Object.entries(value)) {
      const own = structural.has(key) || Array.isArray(value) ? name : name + pascal(key)
      walk(each, own)
      if ((key !== 'oneOf' && key !== 'anyOf') || !Array.isArray(each)) continue
      const objects = each.filter((option: Schema) => option.properties)
      for (const option of objects as Schema[]) {
        const kind = option.properties!.type?.enum?.[0] ?? option.properties!.role?.enum?.[0] ?? ''
        const text = JSON.stringify(option)
        let free = name + pascal(String(kind))
        for (let number = 2; components[free] && JSON.stringify(components[free]) !== text; number++)
          free = `${name}${pascal(String(kind))}${number}`
        components[free] = option
        each[each.indexOf(option)] = { $ref: `#/components/schemas/${free}` }
      }
    }
  }
  for (const [name, schema] of Object.entries(components)) walk(schema, name)
}

/**
 * For generators of clients. In OpenAPI 3.0 nothing beside a `$ref` counts, so `nullable` and `description` go around
 * it. A default that is an object or null says no more than that the field may be left out, and generators refuse it.
 */
function forGenerators(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(forGenerators)
  if (typeof value !== 'object' || value === null) return value
  const { $ref, ...rest } = value as Record<string, unknown>
  const kept = Object.entries(rest).filter(([name, each]) => name !== 'default' || typeof each !== 'object')
  const others = Object.fromEntries(kept.map(([name, each]) => [name, forGenerators(each)]))
  if (Array.isArray(others.enum)) {
    // An enum has a type, and null only if it is listed.
    const values = others.enum.filter((each) => each !== null)
    others.type ??= typeof (values[0] ?? '')
    if (values.length < others.enum.length) others.nullable = true
    if (others.nullable === true) others.enum = [...values, null]
    // Few generators know enums of booleans.
    if (others.type === 'boolean') delete others.enum
  }
  if (typeof $ref !== 'string') return $ref === undefined ? others : { $ref: forGenerators($ref), ...others }
  return Object.keys(others).length === 0 ? { $ref } : { allOf: [{ $ref }], ...others }
}

/** What Fastify does not validate or serialize itself: parameters with slashes, and streams. */
function forDescription(route: Route, schema: object): object {
  const [status, body] = Object.entries(route.responses)[0]!
  const types = route.produces === 'text/event-stream' ? ['application/json', route.produces] : [route.produces]
  const success = { description: 'Success', content: Object.fromEntries(types.map((type) => [type, { schema: body }])) }
  return {
    ...schema,
    body: bodyOf(route),
    ...(route.params && { params: route.params }),
    ...(route.produces && { response: { [status]: success, ...errorResponses } }),
  }
}

// Adds forms, the headers of creating requests, and the answers to a request for a range of a file.
function withForms(route: Route, schema: object): object {
  const content: Record<string, unknown> = { ...schema }
  if (isCreateRoute(route))
    content.headers = {
      type: 'object',
      properties: {
        'Idempotency-Key': {
          type: 'string',
          minLength: 1,
          maxLength: 255,
          pattern: '^[!-~]+$',
          description: 'The same key and body give the same answer for 24 hours.',
        },
      },
    }
  if (route.form) {
    const { $schema: _, ...form } = z.toJSONSchema(route.form, {
      target: 'openapi-3.0',
      io: 'input',
      unrepresentable: 'any',
    })
    const file = route.file_part ?? 'file'
    content.body = {
      ...form,
      required: [file],
      properties: { [file]: { type: 'string', format: 'binary' }, ...form.properties },
    }
  }
  if (route.produces === 'application/octet-stream') {
    const [status] = Object.keys(route.responses)
    const bytes = {
      description: 'The bytes of the file',
      content: { [route.produces]: { schema: { type: 'string', format: 'binary' } } },
    }
    content.response = {
      ...(content.response as object),
      [status!]: bytes,
      206: { ...bytes, description: 'The range that was asked for' },
      304: { description: 'The client has it already' },
    }
  }
  return content
}

parentPort!.postMessage(await makeDescription(workerData as string))
