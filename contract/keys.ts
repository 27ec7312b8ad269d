import { z } from 'zod'
import { Deleted, DisplayName, ListQuery, page, Time } from './common.ts'
import { routesOf } from './route.ts'
import { type ScopePreset, scopePresets, scopes } from './scopes.ts'

export const KeyScope = z.enum(scopes)

export const ApiKey = z.object({
  id: z.string(),
  name: z.string(),
  prefix: z.string().describe('The first characters of the key; the rest is stored only as a hash.'),
  scopes: z.array(KeyScope).describe('What the key carries. The role of its member bounds them at every request.'),
  user_id: z.string().describe('The member whose key it is.'),
  status: z.enum(['active', 'expired']),
  created_at: Time,
  expires_at: Time.nullable(),
  last_used_at: Time.nullable().describe('To the minute.'),
})
export type ApiKey = z.infer<typeof ApiKey>

export const NewApiKey = ApiKey.extend({
  key: z.string().describe('The key itself. It is shown this once and cannot be read again.'),
})
export type NewApiKey = z.infer<typeof NewApiKey>

const presets = Object.keys(scopePresets).filter((name) => name !== 'operator') as [Exclude<ScopePreset, 'operator'>]

const route = routesOf({ tag: 'Keys' })
const KeyParams = z.object({ key_id: z.string() })

export const createKey = route('POST', '/keys', {
  scope: 'keys:write',
  summary: 'Make an API key; it is shown once',
  body: z.strictObject({
    name: DisplayName,
    scopes: z
      .union([z.enum(presets), z.array(KeyScope).min(1).max(scopes.length)])
      .default('full')
      .describe('A preset, limited to your own scopes, or a list of scopes that you have.'),
    expires_at: Time.nullable().default(null).describe('From when on the key is refused; null: never.'),
    user_id: z
      .string()
      .max(100)
      .optional()
      .describe('The member whose key it is to be; yourself if left out. Of others only with `members:write`.'),
  }),
  responses: { 201: NewApiKey },
})
export const listKeys = route('GET', '/keys', {
  scope: 'keys:read',
  summary: 'Your keys, newest first; with `members:write`, those of all members',
  query: ListQuery,
  responses: { 200: page(ApiKey) },
})
export const getKey = route('GET', '/keys/{key_id}', {
  scope: 'keys:read',
  summary: 'One key',
  params: KeyParams,
  responses: { 200: ApiKey },
})
export const renameKey = route('PUT', '/keys/{key_id}', {
  scope: 'keys:write',
  summary: 'Rename a key',
  params: KeyParams,
  body: z.strictObject({ name: DisplayName }),
  responses: { 200: ApiKey },
})
export const revokeKey = route('DELETE', '/keys/{key_id}', {
  scope: 'keys:write',
  summary: 'Revoke a key permanently; requests with it are refused within a second',
  params: KeyParams,
  responses: { 200: Deleted },
})
