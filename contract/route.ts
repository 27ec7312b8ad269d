import type { z } from 'zod'
import { ErrorBody } from './errors.ts'
import type { Scope } from './scopes.ts'

/**
 * One operation of the API. `path` is relative to the base address and writes parameters as `{name}`. A parameter that
 * ends in `*` matches the rest of the path, slashes included, up to an optional last segment.
 */
export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  path: string
  /** What a key must carry. `session`: for sessions of the dashboard alone. `public`: for everyone, throttled. */
  scope: Scope | 'session' | 'public'
  /** An alternative scope. */
  or_scope?: Scope
  /**
   * Further scopes, all of which are needed, for what the route lets out or sets going: who reads rows of datasets by
   * any route needs `datasets:read`, who lets models answer needs `inference`.
   */
  also?: readonly Scope[]
  /** Further scopes for bodies with a field that is not null or empty, by its path with dots. */
  also_with?: Readonly<Record<string, readonly Scope[]>>
  tag: string
  summary: string
  // From zod's core: to compare a schema with all that z.ZodType has takes a third of a type check.
  params?: z.core.$ZodType
  query?: z.core.$ZodType
  body?: z.core.$ZodType
  /** The schema of each success status. All errors have the same shape. */
  responses: Record<number, z.core.$ZodType>
  /** OpenAI-compatible: errors have `type` and `param`, and unknown fields are ignored. */
  openai?: boolean
  /**
   * Creates something though it answers 200: an object, as OpenAI's API does, or a change that a repetition would undo.
   * 201 says the same. With an Idempotency-Key it does so once.
   */
  creates?: boolean
  /** Largest JSON body in bytes, where it may be larger than others. */
  body_bytes?: number
  /** Counts toward the account's concurrent requests until its response has ended. */
  concurrent?: boolean
  /**
   * Allowed on a full disk, like every DELETE: what it ends frees space. Writes in one transaction, before anything
   * else.
   */
  frees?: boolean
  /** The only base address of an operation of another API, whose paths are not under /v1. */
  base?: '/api/v1'
  /**
   * For requests with the header `X-API-Key` alone, which has the key with the prefix `tml-`, as Tinker's SDK sends it.
   */
  key_header?: boolean
  /** Media type of a streamed response, and of a request that is not JSON. */
  produces?: 'application/x-ndjson' | 'text/event-stream' | 'application/octet-stream'
  consumes?: 'multipart/form-data'
  /** Text fields of a form, besides its file. */
  form?: z.core.$ZodType
  /** The name of the form's part that is the file. Default: `file`. */
  file_part?: string
}

/** Largest body in bytes of requests that may show pictures. What is no picture may have 8 MiB of it. */
export const pictureBodyBytes = 32 * 1024 * 1024

/**
 * A function that defines routes with these properties. It infers a route's exact type, so that handlers know their
 * input and output.
 */
export const routesOf =
  <const Shared extends Partial<Route>>(shared: Shared) =>
  <const Method extends Route['method'], const Path extends string, const Own extends Partial<Route>>(
    method: Method,
    path: Path,
    own: Own & Omit<Route, 'method' | 'path' | keyof Shared>,
  ): Omit<Shared, keyof Own> & Own & { method: Method; path: Path } => ({ ...shared, method, path, ...own })

/** Error responses of every operation. */
export const errorResponses = Object.fromEntries(
  [400, 401, 403, 404, 408, 413, 415, 416, 429, 431, 500, 503].map((status) => [status, ErrorBody]),
)
