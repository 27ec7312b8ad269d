import { z } from 'zod'
import type { NewRow } from '../db/schema.ts'

export const usageKinds = ['chat', 'completion', 'embedding'] as const
export type UsageKind = (typeof usageKinds)[number]
/** How an answer ended: whole, left by its client in the middle, or broken off by a failure behind us. */
export const usageFinishes = ['complete', 'client_left', 'broken'] as const
export type UsageFinish = (typeof usageFinishes)[number]

/** What one request of inference used. */
export const UsageRecord = z.object({
  request_id: z.string(),
  /** When the request came, in unix milliseconds. */
  created_at: z.int(),
  account_id: z.string(),
  key_id: z.string(),
  /** The name that the client asked for, and the id of the model that it stood for. */
  model: z.string(),
  model_id: z.string(),
  kind: z.enum(usageKinds),
  prompt_tokens: z.int().min(0),
  completion_tokens: z.int().min(0),
  /** Those of the prompt's tokens that an earlier request had computed. */
  cached_tokens: z.int().min(0),
  duration_ms: z.int().min(0),
  cost: z.number().min(0).default(0),
  finish: z.enum(usageFinishes),
})
export type UsageRecord = z.infer<typeof UsageRecord>

/** A row of usage, of a request or a job. */
export type UsageRow = NewRow<'usage'>
