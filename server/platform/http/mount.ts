// Mounts routes on a Fastify instance: those of the contract under /v1 and /api/v1, those of another API where its
// clients look for them. Knows no feature.
import multipart from '@fastify/multipart'
import type { FastifyInstance, FastifyReply, FastifyRequest, FastifySchemaCompiler } from 'fastify'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import { errorResponses, type Route } from '../../../contract/route.ts'
import type { Reserve } from '../storage/disk-reserve.ts'
import type { Caller } from './caller.ts'
import { isCreateRoute, runIdempotent } from './idempotency.ts'
import { validationError } from './validation.ts'

declare module 'fastify' {
  interface FastifyInstance {
    reserve?: Reserve
  }
  interface FastifyContextConfig {
    route?: Route
    /** For browsers that are sent elsewhere and come back: no operation of the contract, and no key is needed. */
    redirect?: true
  }
  interface FastifyRequest {
    caller: Caller | null
    /**
     * Checks key and scope again. Set on requests whose handler reads the body itself, which calls it after the whole
     * body has been read, and on streams of events.
     */
    reauthorize: (() => Promise<Caller>) | null
    /** Checks key and scope again, for answers that took long. Null for requests without a key. */
    recheck: (() => Promise<unknown> | unknown) | null
    /** The JSON body as the client wrote it. */
    bodyText: string | null
  }
}

type Output<S, Otherwise> = S extends z.core.$ZodType ? z.output<S> : Otherwise
type Success<R extends Route> = { [S in keyof R['responses']]: z.input<R['responses'][S]> }[keyof R['responses']]

export interface Call<R extends Route> {
  body: Output<R['body'], undefined>
  params: Output<R['params'], undefined>
  query: Output<R['query'], undefined>
  /** Undefined on public routes. */
  caller: R['scope'] extends 'public' ? undefined : Caller
  request: FastifyRequest
  reply: FastifyReply
}

/** Largest body, in bytes, of a request that needs no key. */
const publicBodyLimit = 64 * 1024

/** What was computed for longer is answered only if key and scope still allow it. */
const recheck_ms = 400

/** Lets paths of another API be those of ours too: which one is meant is told by the header of the key. */
export function tellKeyHeaders(app: FastifyInstance): void {
  app.addConstraintStrategy({
    name: 'keyHeader',
    storage() {
      const handlers = new Map<unknown, never>()
      return {
        get: (value) => handlers.get(value) ?? null,
        set: (value, handler) => void handlers.set(value, handler as never),
      }
    },
    deriveConstraint: ({ headers }) => (headers['x-api-key'] === undefined ? undefined : 'sent'),
    validate() {},
  })
}

/** Returned by a handler that writes the answer itself. */
export const answered = Symbol('answered')

/** Mounts one route. The handler's result is serialized with the route's schema and sent with its success status. */
export function mount<R extends Route>(
  app: FastifyInstance,
  route: R,
  handler: (call: Call<R>) => Promise<Success<R> | typeof answered>,
): void {
  const status = Number(Object.keys(route.responses)[0])
  const isCreate = isCreateRoute(route)
  const streams = route.produces !== undefined
  const onlyReads = route.method === 'GET' || (route.method === 'POST' && !isCreate && !route.frees)
  const freesSpace = route.method === 'DELETE' || route.frees
  async function answer(
    request: FastifyRequest,
    reply: FastifyReply,
    caller: Caller,
    call: (caller: Caller) => ReturnType<typeof handler>,
  ) {
    const work = (): Promise<unknown> =>
      isCreate
        ? runIdempotent(route, request, reply, caller, call as (caller: Caller) => Promise<object>)
        : call(caller)
    const { reserve } = request.server
    return await (freesSpace && reserve ? reserve.use(work) : work())
  }
  // The retry of a creating request builds a lost answer with the item's own handler; see idempotency.ts.
  const [, collection, parameter] = /^(.+)\/\{(\w+)\}$/.exec(route.path) ?? []
  if (route.method === 'GET' && collection && parameter)
    app.itemReaders?.set(collection, {
      route,
      parameter,
      read: (item, caller, request, reply) =>
        handler({
          body: undefined as Call<R>['body'],
          params: { ...(request.params as object), [parameter]: item } as Call<R>['params'],
          query: (route.query && z.parse(route.query, {})) as Call<R>['query'],
          caller: caller as Call<R>['caller'],
          request,
          reply,
        }),
    })
  const register = (target: FastifyInstance) => {
    for (const base of route.base ? [route.base] : ['/v1', '/api/v1'])
      target.route({
        method: route.method,
        url: base + fastifyPath(route.path),
        config: { route },
        ...(route.key_header && { constraints: { keyHeader: 'sent' } }),
        ...(route.scope === 'public' && { bodyLimit: publicBodyLimit }),
        ...(route.body_bytes !== undefined && { bodyLimit: route.body_bytes }),
        schema: {
          hide: base !== '/v1',
          tags: [route.tag],
          summary: route.summary,
          ...(route.body && { body: route.body }),
          ...(route.query && { querystring: route.query }),
          ...(route.params && { params: openParams(route) }),
          ...(route.consumes && { consumes: [route.consumes] }),
          response: streams ? {} : { ...route.responses, ...errorResponses },
        } as object,
        handler: async (request, reply) => {
          if (!request.caller && route.scope !== 'public') throw new Error('a route was reached without a caller')
          const call = (caller: Caller) =>
            handler({
              body: request.body as Call<R>['body'],
              params: renameWildcard(route, request.params) as Call<R>['params'],
              query: request.query as Call<R>['query'],
              caller: caller as Call<R>['caller'],
              request,
              reply,
            })
          const began = performance.now()
          const result = await answer(request, reply, request.caller as Caller, call)
          if (result === answered) return reply
          // What took long may have been asked with a key that has ended since. What was changed or made is answered.
          if (onlyReads && performance.now() - began > recheck_ms) await request.recheck?.()
          return reply.status(status).send(result)
        },
      })
  }
  // The multipart plugin adds hooks to every route of its instance, so each form route gets its own instance.
  if (route.consumes)
    // biome-ignore lint/nursery/noMisusedPromises: Fastify waits for an asynchronous plugin
    app.register(async (forms) => {
      await forms.register(multipart)
      register(forms)
    })
  else register(app)
}

// Fastify writes a parameter as `:name` and a wildcard as `*`. Nothing may follow a `*`, so a literal last segment
// becomes part of the wildcard; see `renameWildcard`.
const fastifyPath = (path: string) => path.replace(/\{\w+\*\}(\/\w+)?$/, '*').replace(/\{(\w+)\}/g, ':$1')

const wildcard = (route: Route) => /\{(\w+)\*\}(\/\w+)?$/.exec(route.path)

function renameWildcard(route: Route, params: unknown): unknown {
  const [, name, end = ''] = wildcard(route) ?? []
  if (!name) return params
  const rest = (params as { '*': string })['*'].replace(/\/$/, '')
  if (!rest.endsWith(end))
    throw new ApiError(
      'not_found',
      `There is no such operation. Did you mean ${route.method} /v1${route.path.replace('*}', '}')}?`,
    )
  return { [name]: rest.slice(0, rest.length - end.length) }
}

const openParams = (route: Route) => (wildcard(route) ? z.object({ '*': z.string() }) : route.params)

/** Checks bodies, queries and parameters with the contract's own schemas. */
export const validatorCompiler: FastifySchemaCompiler<z.ZodType> =
  ({ schema, httpPart }) =>
  (data: unknown) => {
    const repeated =
      httpPart === 'querystring' && Object.entries(data as object).find(([, value]) => Array.isArray(value))?.[0]
    if (repeated)
      return {
        error: new ApiError('invalid_request', `'${repeated}' is given more than once. Give it once.`, {
          details: { field: repeated },
        }),
      }
    const result = schema.safeParse(data)
    return result.success
      ? { value: result.data }
      : { error: validationError(result.error.issues, httpPart ?? 'body', schema) }
  }
