// OpenAI's batches: a file of requests that are answered in the background.
import { z } from 'zod'
import { Metadata } from './common.ts'
import { CursorQuery, fileExpiry, openaiList } from './files.ts'
import { routesOf } from './route.ts'

export const batchEndpoints = ['/v1/chat/completions', '/v1/completions', '/v1/embeddings'] as const
export type BatchEndpoint = (typeof batchEndpoints)[number]

/** Requests of one batch, and bytes of its file, at most. */
export const batchRequestsMax = 50_000
export const batchBytesMax = 200e6

const unix = z.int().nullable()

export const BatchError = z.object({
  code: z.string(),
  message: z.string(),
  param: z.string().nullable(),
  line: z.int().nullable().describe('Line of the input file, from 1.'),
})
export type BatchError = z.infer<typeof BatchError>

export const Batch = z.object({
  id: z.string(),
  object: z.literal('batch'),
  endpoint: z.enum(batchEndpoints),
  model: z.string().optional().describe('The model of all requests. Missing if they name several.'),
  errors: z
    .object({ object: z.literal('list'), data: z.array(BatchError) })
    .nullable()
    .describe('Why a batch with the status `failed` was not begun.'),
  input_file_id: z.string(),
  completion_window: z.literal('24h'),
  status: z.enum([
    'validating',
    'failed',
    'in_progress',
    'finalizing',
    'completed',
    'expired',
    'cancelling',
    'cancelled',
  ]),
  output_file_id: z.string().nullable().describe('Answers, one a line, in the order in which they were made.'),
  error_file_id: z.string().nullable().describe('Requests without an answer, each with its error.'),
  created_at: z.int(),
  in_progress_at: unix,
  expires_at: z.int(),
  finalizing_at: unix,
  completed_at: unix,
  failed_at: unix,
  expired_at: unix,
  cancelling_at: unix,
  cancelled_at: unix,
  request_counts: z.object({ total: z.int(), completed: z.int(), failed: z.int() }),
  usage: z.object({
    input_tokens: z.int(),
    input_tokens_details: z.object({ cached_tokens: z.int() }),
    output_tokens: z.int(),
    output_tokens_details: z.object({ reasoning_tokens: z.int() }),
    total_tokens: z.int(),
  }),
  metadata: Metadata.nullable(),
})
export type Batch = z.infer<typeof Batch>

export const CreateBatch = z.looseObject({
  input_file_id: z.string().min(1).max(100).describe('A file with the purpose `batch`.'),
  endpoint: z.enum(batchEndpoints, { error: `must be one of ${batchEndpoints.join(', ')}` }),
  completion_window: z
    .literal('24h', { error: "must be '24h'" })
    .describe('What is not answered by then ends as `expired`.'),
  metadata: Metadata.nullish(),
  output_expires_after: z
    .strictObject({
      anchor: z.literal('created_at'),
      seconds: z.int().min(fileExpiry.min_seconds).max(fileExpiry.max_seconds),
    })
    .nullish()
    .describe('After how long the result files are deleted. Without it they are kept until you delete them.'),
})
export type CreateBatch = z.infer<typeof CreateBatch>

const route = routesOf({ tag: 'Batches', openai: true })
const BatchParams = z.object({ batch_id: z.string() })

export const createBatch = route('POST', '/batches', {
  scope: 'inference',
  summary: 'Answer the requests of a file in the background, after all live requests',
  body: CreateBatch,
  responses: { 200: Batch },
  creates: true,
})
export const listBatches = route('GET', '/batches', {
  scope: 'inference',
  summary: 'The batches of the account, newest first',
  query: CursorQuery,
  responses: { 200: openaiList(Batch) },
})
export const getBatch = route('GET', '/batches/{batch_id}', {
  scope: 'inference',
  summary: 'One batch',
  params: BatchParams,
  responses: { 200: Batch },
})
export const cancelBatch = route('POST', '/batches/{batch_id}/cancel', {
  scope: 'inference',
  summary: 'Cancel a batch; what is answered already is kept',
  params: BatchParams,
  responses: { 200: Batch },
})
