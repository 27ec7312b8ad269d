// Figures of the requests for one model name, over time.
import { z } from 'zod'
import { Time } from './common.ts'
import { routesOf } from './route.ts'

export const timelineSteps = ['minute', 'hour', 'day'] as const
export type TimelineStep = (typeof timelineSteps)[number]

const period = {
  from: Time.optional().describe('Begin of the first bucket; rounded down to a whole step. By default 24 hours ago.'),
  to: Time.optional().describe('By default now.'),
  step: z
    .enum(timelineSteps)
    .optional()
    .describe(
      'Length of a bucket, in UTC. By default a minute up to 3 hours, an hour up to 7 days, else a day. Minutes go ' +
        'back 7 days.',
    ),
}
export const PeriodQuery = z.strictObject(period)
export type PeriodQuery = z.infer<typeof PeriodQuery>
export const TimelineQuery = z.strictObject({
  model: z.string().min(1).max(256).describe('A name as requests give it: a deployment, a base or a tuned model.'),
  ...period,
})
export type TimelineQuery = z.infer<typeof TimelineQuery>

const Percentiles = z.object({ p50: z.number(), p95: z.number() }).nullable()

const Errors = z.object({
  client_left: z.int().describe('The client left before the end of the answer.'),
  broken: z.int().describe('The answer broke off after it had begun.'),
  failed: z.int().describe('The model or its server failed before the answer began (5xx).'),
  refused: z.int().describe('The queue was full, or the service was stopping (429, 503).'),
  invalid: z.int().describe('The request was not valid (4xx).'),
})

const figures = {
  requests: z.int().describe('Answered, broken, left, failed, refused and invalid ones.'),
  errors: Errors,
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  latency_ms: Percentiles.describe('From the request to the end of the answer; of complete answers. Null: none.'),
  first_token_ms: Percentiles.describe('From the request to the first token; of streamed answers. Null: none.'),
}

export const Timeline = z
  .object({
    model: z.string(),
    from: Time,
    to: Time,
    step: z.enum(timelineSteps),
    buckets: z
      .array(z.object({ at: Time.describe('Its begin.'), ...figures }))
      .describe('All of the period, oldest first, also those without a request.'),
    total: z.object(figures),
  })
  .describe(
    'Counted by the time at which requests came, for the last 90 days, by minute for the last 7. What was refused ' +
      'before its model was read (a wrong key, the rate limit of the account) is not counted, nor are single ' +
      'requests that fail within a batch or an evaluation, which count when they are answered. Percentiles are ' +
      'exact to 2.5 %.',
  )
export type Timeline = z.infer<typeof Timeline>

const route = routesOf({ tag: 'Usage' })
export const getTimeline = route('GET', '/usage/timeline', {
  scope: 'usage:read',
  summary: 'Requests, errors, tokens and latency of one model name over time',
  query: TimelineQuery,
  responses: { 200: Timeline },
})
