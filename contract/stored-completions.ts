// Stored chat completions: answers that an account keeps, with what was asked, to look at and to learn from.
import { z } from 'zod'
import { ChatResponse } from './chat.ts'
import { Description, DisplayName, Metadata, Time } from './common.ts'
import { Dataset } from './datasets.ts'
import { MetadataQuery, openaiList } from './files.ts'
import { routesOf } from './route.ts'

export const StoredCompletion = ChatResponse.extend({
  metadata: Metadata,
  expires_at: z.int().describe('Unix seconds: when it is deleted.'),
})
  .loose()
  .describe('The answer, beside the parameters that it was asked with.')
export type StoredCompletion = z.infer<typeof StoredCompletion>

export const StoredMessage = z.looseObject({
  id: z.string(),
  role: z.string(),
  content: z.string().nullable(),
  content_parts: z.array(z.looseObject({})).nullable().describe('The content, where it was a list of parts.'),
})
export type StoredMessage = z.infer<typeof StoredMessage>

const order = z.enum(['asc', 'desc']).default('asc').describe('By time of creation. Default asc.')
export const StoredQuery = MetadataQuery.extend({
  order,
  model: z.string().max(256).optional().describe('Those that were asked of this name.'),
})
export type StoredQuery = z.infer<typeof StoredQuery>

/** Which stored completions. */
export const StoredFilter = z.strictObject({
  model: z.string().min(1).max(256).optional().describe('Those that were asked of this name.'),
  metadata: Metadata.optional().describe('Those that have these pairs.'),
  created_after: Time.optional(),
  created_before: Time.optional(),
})
export type StoredFilter = z.infer<typeof StoredFilter>

export const DatasetOfStored = z.strictObject({
  filter: StoredFilter.default({}).describe('Which ones. Default: all.'),
  limit: z.int().min(1).optional().describe('The newest so many. Default: all.'),
  name: DisplayName.optional(),
  description: Description.default(''),
})
export type DatasetOfStored = z.infer<typeof DatasetOfStored>

const route = routesOf({ tag: 'Stored completions' })
const openai = routesOf({ tag: 'Stored completions', openai: true })
const Params = z.object({ completion_id: z.string() })
const Deleted = z.object({ id: z.string(), object: z.literal('chat.completion.deleted'), deleted: z.literal(true) })

export const listStored = openai('GET', '/chat/completions', {
  scope: 'datasets:read',
  summary: 'The answers that the account keeps',
  query: StoredQuery,
  responses: { 200: openaiList(StoredCompletion) },
})
export const getStored = openai('GET', '/chat/completions/{completion_id}', {
  scope: 'datasets:read',
  summary: 'One stored answer',
  params: Params,
  responses: { 200: StoredCompletion },
})
export const listStoredMessages = openai('GET', '/chat/completions/{completion_id}/messages', {
  scope: 'datasets:read',
  summary: 'The messages that a stored answer was asked with',
  params: Params,
  query: MetadataQuery.omit({ metadata: true }).extend({ order: order.describe('Order of messages. Default asc.') }),
  responses: { 200: openaiList(StoredMessage) },
})
export const updateStored = openai('POST', '/chat/completions/{completion_id}', {
  scope: 'datasets:write',
  summary: 'Change the metadata of a stored answer, such as what people thought of it',
  params: Params,
  body: z.looseObject({ metadata: Metadata.nullable().describe('All pairs: they replace those before.') }),
  responses: { 200: StoredCompletion },
})
export const deleteStored = openai('DELETE', '/chat/completions/{completion_id}', {
  scope: 'datasets:write',
  summary: 'Delete a stored answer for good',
  params: Params,
  responses: { 200: Deleted },
})
export const deleteManyStored = route('POST', '/chat/completions/delete', {
  scope: 'datasets:write',
  summary: 'Delete all stored answers that match a filter, for good',
  body: z.strictObject({ filter: StoredFilter.describe('Which ones. `{}`: all.') }),
  responses: { 200: z.object({ deleted: z.int() }) },
})
export const datasetOfStored = route('POST', '/datasets/from-completions', {
  scope: 'datasets:write',
  summary: 'Make a dataset of stored answers',
  body: DatasetOfStored,
  responses: { 201: Dataset },
})
