// A model that is shown to people without an account, by a link. Off unless the operator turns it on.
import { z } from 'zod'
import { ChatResponse } from './chat.ts'
import { Deleted, ListQuery, page, Time } from './common.ts'
import { routesOf } from './route.ts'

const Bounds = {
  requests_per_day: z.int().min(1).max(10_000).default(50).describe('Requests of all visitors together in a UTC day.'),
  max_tokens: z.int().min(1).max(2048).default(256).describe('Most tokens of an answer.'),
}

export const CreateShare = z.strictObject({
  evaluation: z
    .string()
    .min(1)
    .max(100)
    .nullish()
    .describe('A completed evaluation of this model, whose result the page shows.'),
  expires_at: Time.nullish().describe('When the link ends to work. Default: never.'),
  ...Bounds,
})
export type CreateShare = z.infer<typeof CreateShare>

export const Share = z.object({
  id: z.string().describe('Usage of visitors is reported with it as `key_id`.'),
  model_id: z.string(),
  evaluation: z.string().nullable(),
  requests_per_day: z.int(),
  max_tokens: z.int(),
  requests_today: z.int(),
  expires_at: Time.nullable(),
  created_at: Time,
})
export type Share = z.infer<typeof Share>

const route = routesOf({ tag: 'Models' })
const ModelParams = z.object({ model_id: z.string() })

export const createShare = route('POST', '/fine-tuning/models/{model_id}/shares', {
  scope: 'deployments:write',
  also: ['inference'],
  also_with: { evaluation: ['tuning:read'] },
  summary: 'Make a link to a page of the model, for people without an account; it is shown once',
  params: ModelParams,
  body: CreateShare,
  responses: {
    201: Share.extend({ link: z.string().describe('The address of the page below that of the dashboard.') }),
  },
})
export const listShares = route('GET', '/fine-tuning/models/{model_id}/shares', {
  scope: 'deployments:read',
  summary: 'The links to the page of a model that were not withdrawn, newest first',
  params: ModelParams,
  query: ListQuery,
  responses: { 200: page(Share) },
})
export const deleteShare = route('DELETE', '/fine-tuning/models/{model_id}/shares/{share_id}', {
  scope: 'deployments:write',
  summary: 'Withdraw a link: it works no more from now on',
  params: z.object({ model_id: z.string(), share_id: z.string() }),
  responses: { 200: Deleted },
})

const Token = z.string().min(1).max(200).describe('What the link has after `#`.')
export const sharedCharactersMax = 8000
/** Counted by this machine's engine; an upstream has the limit of characters alone. */
export const sharedPromptTokensMax = 2000

export const SharedModel = z.object({
  name: z.string(),
  description: z.string(),
  base_model_id: z.string(),
  evaluation: z
    .object({
      name: z.string(),
      rows: z.int(),
      score: z.number().nullable(),
      pass_rate: z.number().nullable(),
      baseline_score: z.number().nullable().describe('Score of the compared model; null without one.'),
      difference: z
        .object({ mean: z.number(), low: z.number().nullable(), high: z.number().nullable() })
        .nullable()
        .describe('Score less that of the baseline, with its 95 % confidence interval.'),
      finished_at: Time.nullable(),
    })
    .nullable(),
  max_tokens: z.int(),
  max_prompt_tokens: z.int(),
  requests_left: z.int().describe('Requests that all visitors together may still make until `resets_at`.'),
  resets_at: Time,
})
export type SharedModel = z.infer<typeof SharedModel>

export const SharedChat = z.strictObject({
  token: Token,
  messages: z
    .array(z.strictObject({ role: z.enum(['user', 'assistant']), content: z.string().min(1).max(sharedCharactersMax) }))
    .min(1)
    .max(50)
    .refine((all) => all.reduce((sum, { content }) => sum + content.length, 0) <= sharedCharactersMax, {
      error: `may have ${sharedCharactersMax} characters together`,
    }),
  stream: z.boolean().nullish(),
})
export type SharedChat = z.infer<typeof SharedChat>

const shared = routesOf({ tag: 'Shared models', scope: 'public' })
export const lookAtShare = shared('POST', '/share/look', {
  summary: 'What a link shows: the model, its evaluation, and how much it may still be asked',
  body: z.strictObject({ token: Token }),
  responses: { 200: SharedModel },
})
export const chatWithShare = shared('POST', '/share/chat', {
  summary: 'Ask the model of a link, within its bounds; one request at a time',
  body: SharedChat,
  produces: 'text/event-stream',
  responses: { 200: ChatResponse },
  openai: true,
})
