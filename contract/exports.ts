import { z } from 'zod'
import { Deleted, digits, eventOf, page, Time, TimedQuery } from './common.ts'
import { routesOf } from './route.ts'

export const exportFormats = ['huggingface', 'gguf', 'onnx'] as const

/** GGUF file types without quantization; the converter writes them directly. */
export const unquantized = ['F32', 'F16', 'BF16'] as const
/** Quantizations that need an importance matrix, which the trainer measures. */
export const matrixQuantizations = [
  'IQ3_XS',
  'IQ3_XXS',
  'Q2_K_S',
  'IQ2_M',
  'IQ2_S',
  'IQ2_XS',
  'IQ2_XXS',
  'IQ1_M',
  'IQ1_S',
] as const
/** Quantizations that llama.cpp makes from full precision; engine/llama/file-types.ts has their numbers. */
export const quantizations = [
  'Q8_0',
  'Q6_K',
  'Q5_K_M',
  'Q5_K_S',
  'Q5_1',
  'Q5_0',
  'Q4_K_M',
  'Q4_K_S',
  'Q4_1',
  'Q4_0',
  'IQ4_NL',
  'IQ4_XS',
  'Q3_K_L',
  'Q3_K_M',
  'Q3_K_S',
  'IQ3_M',
  'IQ3_S',
  'Q2_K',
  ...matrixQuantizations,
  'TQ2_0',
  'TQ1_0',
  'Q2_0',
  'Q1_0',
  'MXFP4_MOE',
] as const
export const onnxPrecisions = ['fp32', 'fp16', 'int8', 'int4'] as const

const Repository = z.string().regex(/^[\w][\w.-]{0,95}\/[\w][\w.-]{0,95}$/, 'must be OWNER/NAME of a repository')

export const CreateExport = z.strictObject({
  model: z.string().min(1).max(256).describe('A model of the account, or the name of a deployment that serves one.'),
  format: z.enum(exportFormats),
  quantization: z
    .string()
    .max(20)
    .optional()
    .describe(
      `For gguf one of ${[...unquantized, ...quantizations].join(', ')} ` +
        '(default Q8_0; of an adapter alone F32, F16, BF16 or Q8_0, default F16); ' +
        `for onnx one of ${onnxPrecisions.join(', ')} (default fp32).`,
    ),
  merge: z
    .boolean()
    .default(true)
    .describe('For huggingface and gguf: false exports the adapter alone, without its base.'),
  archive: z.enum(['tar', 'zip']).optional().describe('For huggingface and onnx, which are folders. Default tar.'),
  push_to: Repository.optional().describe(
    'A repository of the Hugging Face Hub that gets the files too; the service must have a token.',
  ),
})
export type CreateExport = z.infer<typeof CreateExport>

export const exportStatuses = ['queued', 'running', 'ready', 'failed', 'expired'] as const

export const exportStages = ['reference', 'merge', 'convert', 'quantize', 'check', 'pack', 'push'] as const
export type ExportStage = (typeof exportStages)[number]

export const ExportCheck = z
  .object({
    agrees: z.boolean(),
    problem: z.string().nullable().describe('What disagrees, where that is beyond the bounds.'),
    runtime: z.string().describe('The runtime that computed the answers of the exported file.'),
    prompts: z.int(),
    tokens: z.int().describe('Tokens of the trainer’s answers, which the exported file’s are compared with.'),
    identical: z.number().describe('Share of the answers that are the same to the end.'),
    matching_tokens: z
      .number()
      .describe(
        'Share of the tokens that are the same before the answers differ. What follows a tie does not count: a token ' +
          'that the trainer finds hardly likelier than another.',
      ),
    log_probability_difference: z
      .number()
      .describe('How far the logarithms of the tokens’ probabilities are apart, on average, in nats.'),
  })
  .describe('Compares the answers of the exported file, in its own runtime, with those of the trainer.')
export type ExportCheck = z.infer<typeof ExportCheck>

export const ExportFile = z.object({ name: z.string(), size_bytes: z.int(), sha256: z.string() })
export type ExportFile = z.infer<typeof ExportFile>

export const Export = z.object({
  id: z.string(),
  status: z.enum(exportStatuses),
  model: z.string().describe('The model, by its id.'),
  format: z.enum(exportFormats),
  quantization: z.string().nullable(),
  merge: z.boolean(),
  archive: z.enum(['tar', 'zip']).nullable(),
  stage: z.enum(exportStages).nullable(),
  progress: z.number().describe('0 to 1.'),
  files: z.array(ExportFile).describe('Once ready; the first is the exported model.'),
  size_bytes: z.int().nullable(),
  check: ExportCheck.nullable(),
  push: z.object({ repository: z.string(), url: z.string().nullable(), error: z.string().nullable() }).nullable(),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  created_at: Time,
  started_at: Time.nullable(),
  finished_at: Time.nullable(),
  expires_at: Time.nullable().describe(
    'When its files are removed; null if it is not ready, or stays until it is deleted.',
  ),
})
export type Export = z.infer<typeof Export>

export const ExportQuery = TimedQuery.extend({
  status: z.enum(exportStatuses).optional().describe('Those with this status.'),
  model: z.string().min(1).max(256).optional().describe('Those of the model with this id.'),
})
export type ExportQuery = z.infer<typeof ExportQuery>

export const exportEventTypes = ['status', 'progress', 'log', 'warning', 'error'] as const
export const ExportEvent = eventOf(exportEventTypes)
export type ExportEvent = z.infer<typeof ExportEvent>

const route = routesOf({ tag: 'Exports' })
const IdParams = z.object({ export_id: z.string() })

export const createExport = route('POST', '/exports', {
  scope: 'exports:write',
  summary: 'Make files of a model to take away; they are checked against the training before they are ready',
  body: CreateExport,
  responses: { 201: Export },
})
export const listExports = route('GET', '/exports', {
  scope: 'exports:read',
  summary: 'The exports of the account, newest first or as ordered',
  query: ExportQuery,
  responses: { 200: page(Export) },
})
export const getExport = route('GET', '/exports/{export_id}', {
  scope: 'exports:read',
  summary: 'One export',
  params: IdParams,
  responses: { 200: Export },
})
export const exportEvents = route('GET', '/exports/{export_id}/events', {
  scope: 'exports:read',
  summary: 'The events of an export, one JSON object a line, live until it has ended',
  params: IdParams,
  query: z.strictObject({ after: digits(0).default(0).describe('Continue after this `seq`. Default 0.') }),
  produces: 'application/x-ndjson',
  responses: { 200: ExportEvent },
})
export const downloadExport = route('GET', '/exports/{export_id}/download', {
  scope: 'exports:read',
  summary:
    'A file of an export. Takes `Range` and `If-Range`; the `ETag` is its SHA-256. With an S3 storage it redirects ' +
    'to a presigned URL of the bucket, unless the request has a condition',
  params: IdParams,
  query: z.strictObject({
    file: z.string().min(1).max(300).optional().describe('The name of the file. Default: the first.'),
  }),
  produces: 'application/octet-stream',
  responses: {
    200: z.string().meta({ format: 'binary' }),
    307: z.string().meta({ description: 'The file is at the presigned URL in `Location`, for an hour.' }),
  },
})
export const deleteExport = route('DELETE', '/exports/{export_id}', {
  scope: 'exports:write',
  summary: 'Delete an export and its files; one that is being made is cancelled',
  params: IdParams,
  responses: { 200: Deleted },
})
