// Who asks, and what was used.
import { z } from 'zod'
import { defineTool, reads } from './tool.ts'

const Limit = z.number().nullable().describe('Null: no limit.')

const whoAmI = defineTool({
  name: 'who_am_i',
  title: 'Who am I',
  description:
    'The account, member and scopes (permissions) of the key that this server uses, with the limits of the account ' +
    'and what is used of them. Call it first.',
  scopes: ['profile:read'],
  input: z.strictObject({}),
  output: z.object({
    name: z.string(),
    role: z.string(),
    account: z.object({ id: z.string(), name: z.string() }),
    key: z.object({ name: z.string(), scopes: z.array(z.string()) }).nullable(),
    limits: z.object({ requests_per_minute: Limit, requests_per_day: Limit, max_concurrent: Limit }),
    used_today: z.number().describe('Requests since midnight UTC.'),
  }),
  annotations: { ...reads, idempotentHint: true },
  async run(_, { tunery, signal }) {
    const profile = await tunery.user.profile({ signal })
    return {
      summary: `Account ${profile.account.id}, role ${profile.role}, ${profile.key?.scopes.length ?? 0} scopes.`,
      data: { ...profile, used_today: profile.usage.day.used },
    }
  },
})

const Used = z.object({
  requests: z.number(),
  prompt_tokens: z.number(),
  completion_tokens: z.number(),
  trained_tokens: z.number(),
  seconds: z.number(),
  cost: z.number().describe('In `currency`.'),
})

const Day = z.iso.date()

const usage = defineTool({
  name: 'usage',
  title: 'Usage and cost',
  description: 'What the account used and what it cost between two UTC days, in total and grouped.',
  scopes: ['usage:read'],
  input: z.strictObject({
    from: Day.optional().describe('First UTC day, YYYY-MM-DD. Default: 29 days before the last.'),
    to: Day.optional().describe('Last UTC day. Default: today.'),
    group_by: z
      .array(z.enum(['day', 'model', 'key', 'kind']))
      .min(1)
      .max(4)
      .default(['kind']),
  }),
  output: z.object({
    from: z.string(),
    to: z.string(),
    currency: z.string(),
    total: Used,
    items: z.array(
      Used.extend({
        day: z.string().optional(),
        model: z.string().optional(),
        key_id: z.string().optional(),
        kind: z.string().optional(),
      }),
    ),
    left_out: z.number().describe('Items that are not here, as there are too many: group by less.'),
    storage: z.object({ used_bytes: z.number(), max_bytes: Limit }).describe('What the account stores now.'),
  }),
  annotations: { ...reads, idempotentHint: true },
  async run({ from, to, group_by }, { tunery, signal }) {
    const report = await tunery.usage.get({ from, to, group_by: group_by.join(',') }, { signal })
    const { used_bytes, max_bytes } = await tunery.usage.storage({ signal })
    const items = report.items.slice(0, 100)
    const { requests, cost } = report.total
    return {
      summary: `${requests} requests for ${cost} ${report.currency} from ${report.from} to ${report.to}.`,
      data: { ...report, items, left_out: report.items.length - items.length, storage: { used_bytes, max_bytes } },
    }
  },
})

export const accountTools = [whoAmI, usage]
