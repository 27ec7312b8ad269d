import type { z } from 'zod'
import { ErrorBody } from './errors.ts'
import type { Scope } from './scopes.ts'

/**
 * One operation of the wire contract. `path` is relative to the base address and spells parameters `{name}`; a
 * parameter that ends in `*` takes the rest of the path, slashes included, up to a last word that may follow it.
 */
export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  path: string
  scope: Scope
  /** Another scope that allows it as well. */
  or_scope?: Scope
  tag: string
  summary: string
  params?: z.ZodType
  query?: z.ZodType
  body?: z.ZodType
  /** The schema of each success status. Errors have one shape and need not be listed. */
  responses: Record<number, z.ZodType>
  /** Speaks OpenAI's dialect: its errors carry `type` and `param`, and unknown fields are ignored. */
  openai?: boolean
  /** Counts among what an account has under way at once, until its answer has ended. */
  concurrent?: boolean
  /**
   * Works on a full disk too, as every deletion does: what it ends makes room. It writes in one transaction, before
   * anything else.
   */
  frees?: boolean
  /** Media type of an answer that is written as a stream, and of a request that is not JSON. */
  produces?: 'application/x-ndjson' | 'text/event-stream' | 'application/octet-stream'
  consumes?: 'multipart/form-data'
  /** The text fields of a form, beside its part named `file`. */
  form?: z.ZodType
}

/** Fixes a route's exact type, so that handlers know their input and output. */
export const route = <const R extends Route>(definition: R): R => definition

/** What any operation may answer beside its success. */
export const errorResponses = Object.fromEntries(
  [400, 401, 403, 404, 408, 413, 415, 416, 429, 431, 500, 503].map((status) => [status, ErrorBody]),
)
