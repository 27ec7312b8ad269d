import { z } from 'zod'
import { routesOf } from './route.ts'

const Day = z.iso.date()

export const usageGroups = ['day', 'model', 'key', 'kind'] as const
export type UsageGroup = (typeof usageGroups)[number]

export const UsageQuery = z.strictObject({
  from: Day.optional().describe('First UTC day, `YYYY-MM-DD`; by default 29 days before the last.'),
  to: Day.optional().describe('Last UTC day; by default today.'),
  group_by: z
    .string()
    .max(100)
    .default('day')
    .transform((text) => text.split(','))
    .pipe(z.array(z.enum(usageGroups)).min(1).max(usageGroups.length))
    .describe('One or more of `day`, `model`, `key`, `kind`, with commas between.'),
})
export type UsageQuery = z.output<typeof UsageQuery>

const sums = {
  requests: z.int().describe('Requests of inference and ended jobs.'),
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  cached_tokens: z.int().describe('Those of the prompt’s that an earlier request had computed.'),
  trained_tokens: z.int(),
  seconds: z.number(),
  cost: z.number().describe('By the prices when it was used, in `currency`.'),
}

export const UsageReport = z.object({
  from: Day,
  to: Day,
  currency: z.string(),
  items: z.array(
    z.object({
      day: Day.optional(),
      model: z
        .string()
        .optional()
        .describe('The requested name: of a deployment, of a base, or the id of a tuned model.'),
      model_id: z.string().optional().describe('The model that the name resolved to.'),
      key_id: z.string().optional(),
      kind: z.enum(['chat', 'completion', 'embedding', 'training']).optional(),
      ...sums,
    }),
  ),
  total: z.object(sums),
})
export type UsageReport = z.infer<typeof UsageReport>

const bound = (schema: z.ZodNumber) => schema.positive().nullable()

export const Thresholds = z.strictObject({
  requests_per_day: bound(z.int()).default(null).describe('Null: the limit of the account’s tier, where it has one.'),
  tokens_per_month: bound(z.int())
    .default(null)
    .describe('Tokens in, out and trained, of the UTC month. Null: no events.'),
  cost_per_month: bound(z.number()).default(null),
  percents: z
    .array(z.int().min(1).max(100))
    .min(1)
    .max(10)
    .default([80, 100])
    .transform((percents) => [...new Set(percents)].sort((a, b) => a - b))
    .describe('At which percentages of each threshold `usage.threshold` is sent, once a day or month.'),
})
export type Thresholds = z.output<typeof Thresholds>

const ThresholdsOut = z.object({
  requests_per_day: z.int().nullable(),
  tokens_per_month: z.int().nullable(),
  cost_per_month: z.number().nullable(),
  percents: z.array(z.int()),
})

export const StorageReport = z.object({
  max_bytes: z.int().nullable().describe('By the tier of the account (`max_storage_mb`). Null is unlimited.'),
  used_bytes: z.int(),
  items: z.array(
    z.object({
      kind: z
        .enum([
          'datasets',
          'files',
          'uploads',
          'models',
          'checkpoints',
          'exports',
          'evaluations',
          'responses',
          'completions',
        ])
        .describe(
          '`datasets`: as they were uploaded, or their rows as the service reads them if these are larger. ' +
            '`uploads`: those in parts that are pending, with the size that they announced. `checkpoints`: of jobs ' +
            'that have not ended, paused ones too. `evaluations`: with their answers, and evals. `completions`: ' +
            'stored ones.',
        ),
      count: z.int(),
      bytes: z.int(),
    }),
  ),
})
export type StorageReport = z.infer<typeof StorageReport>

const route = routesOf({ tag: 'Usage' })
export const getUsage = route('GET', '/usage', {
  scope: 'usage:read',
  summary: 'What the account used and what it cost, by day, model, key or kind',
  query: UsageQuery,
  responses: { 200: UsageReport },
})
export const getStorage = route('GET', '/usage/storage', {
  scope: 'usage:read',
  summary: 'How much the account stores, and how much it may',
  responses: { 200: StorageReport },
})
export const getThresholds = route('GET', '/usage/thresholds', {
  scope: 'usage:read',
  summary: 'Thresholds of usage at which the account gets events',
  responses: { 200: ThresholdsOut },
})
export const setThresholds = route('PUT', '/usage/thresholds', {
  scope: 'usage:write',
  summary: 'Set the usage thresholds',
  body: Thresholds,
  responses: { 200: ThresholdsOut },
})
