import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import { jsonSchemaTransform } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { errorResponses, type Route } from '../../contract/route.ts'
import { isCreateRoute } from './idempotency.ts'

// The plugin's default policy has upgrade-insecure-requests, which breaks the page: this service does not speak https.
const pagePolicy = [
  "default-src 'none'; base-uri 'none'; connect-src 'self'; font-src 'self' data:; form-action 'none'",
  "frame-ancestors 'none'; img-src 'self' data:; script-src 'self'; style-src 'self'",
].join('; ')

/** Serves OpenAPI 3.0 at /v1/openapi.json and a page at /docs, made from the schemas that validate the routes. */
export async function describeApi(app: FastifyInstance, version: string): Promise<void> {
  /** Operations with a body that may be left out. */
  const optional = new Set<string>()
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
      components: { securitySchemes: { key: { type: 'http', scheme: 'bearer' } } },
      security: [{ key: [] }],
    },
    stripBasePath: true,
    transform: (input) => {
      const route = input.route.config?.route
      if (route?.body?.safeParse(undefined).success) optional.add(`${route.method.toLowerCase()} ${route.path}`)
      const result = jsonSchemaTransform(
        route ? { ...input, schema: forDescription(route, input.schema as object) } : input,
      )
      return route
        ? {
            ...result,
            url: `/v1${route.path.replace('*}', '}')}`.replace('{', ':').replace('}', ''),
            schema: withStreams(route, result.schema as object),
          }
        : result
    },
    transformObject: (document) => {
      if (!('openapiObject' in document)) return document.swaggerObject
      for (const [path, operations] of Object.entries(document.openapiObject.paths ?? {}))
        for (const [method, operation] of Object.entries(operations ?? {}))
          if (optional.has(`${method} ${path}`))
            (operation as { requestBody: { required: boolean } }).requestBody.required = false
      return document.openapiObject
    },
  })
  // validatorUrl null: otherwise the page sends the description to a third party's validator.
  await app.register(swaggerUi, {
    routePrefix: '/docs',
    uiConfig: { tryItOutEnabled: false, validatorUrl: null },
    staticCSP: pagePolicy,
  })
  app.get('/v1/openapi.json', { schema: { hide: true } }, async () => app.swagger())
}

const forDescription = (route: Route, schema: object) => ({ ...schema, ...(route.params && { params: route.params }) })

// Describes forms and streams, which Fastify does not validate or serialize, in JSON schema.
function withStreams(route: Route, schema: object): object {
  const json = (type: z.ZodType) => z.toJSONSchema(type, { target: 'openapi-3.0', io: 'input', unrepresentable: 'any' })
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
    const { $schema: _, ...form } = json(route.form)
    const file = route.file_part ?? 'file'
    content.body = {
      ...form,
      required: [file],
      properties: { [file]: { type: 'string', format: 'binary' }, ...form.properties },
    }
  }
  if (route.produces) {
    const types = route.produces === 'text/event-stream' ? ['application/json', route.produces] : [route.produces]
    const [status, body] = Object.entries(route.responses)[0]!
    const errors = Object.fromEntries(
      Object.entries(errorResponses).map(([code, error]) => [
        code,
        { description: 'Error', content: { 'application/json': { schema: json(error) } } },
      ]),
    )
    const success = {
      description: 'Success',
      content: Object.fromEntries(types.map((type) => [type, { schema: json(body) }])),
    }
    const fileResponses = {
      206: { ...success, description: 'The range that was asked for' },
      304: { description: 'The client has it already' },
    }
    content.response = {
      [status]: success,
      ...(route.produces === 'application/octet-stream' && fileResponses),
      ...errors,
    }
  }
  return content
}
