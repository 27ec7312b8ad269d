import { z } from 'zod'
import { Deleted, digits, ListQuery, page, Time } from './common.ts'
import { route } from './route.ts'

export const DatasetFormat = z.enum(['jsonl', 'csv', 'parquet', 'huggingface'])
export type DatasetFormat = z.infer<typeof DatasetFormat>

export const Dataset = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  format: DatasetFormat,
  status: z.enum(['preparing', 'ready', 'unreadable']).describe('Whether its rows have been read yet.'),
  rows: z.int(),
  size_mb: z.number(),
  sha256: z.string().describe('Of the file as it was uploaded.'),
  created_at: Time,
})
export type Dataset = z.infer<typeof Dataset>

/** The text fields of the upload form; the file is the part named `file`. */
export const UploadFields = z.strictObject({
  name: z.string().trim().min(1).max(200).optional().describe('Default: the name of the file.'),
  description: z.string().max(2000).default(''),
  format: DatasetFormat.default('jsonl'),
  hf_token: z
    .string()
    .min(1)
    .max(500)
    .optional()
    .describe('For a dataset of the Hugging Face Hub that is not public: your own token. It is used once and never stored.'),
})

export type UploadFields = z.infer<typeof UploadFields>

const Issue = z.object({ line: z.int(), code: z.string().describe('Stable.'), message: z.string() })

const Tokens = z.object({
  model_id: z.string().describe('The base whose tokens these are.'),
  total: z.int(),
  longest: z.int(),
  max_length: z.int().describe('Rows are cut at this many tokens.'),
  cut_rows: z.int(),
  cut_tokens: z.int(),
  cut: z.array(z.object({ row: z.int(), tokens: z.int(), cut_tokens: z.int() })).describe('The first of the rows that will be cut.'),
  histogram: z.array(z.object({ up_to: z.int().nullable(), rows: z.int() })).describe('Rows by length in tokens.'),
})

export const Validation = z.object({
  valid: z.boolean(),
  total_samples: z.int(),
  avg_tokens_per_sample: z.number().optional().describe('With the chat template and tokenizer of the base asked for, or the default one.'),
  errors: z.array(z.string()).optional().describe('Each begins with the line it is about.'),
  error_count: z.int().optional().describe('How many rows are wrong; `errors` lists the first of them.'),
  issues: z.array(Issue).optional().describe('The same as `errors`, for programs.'),
  warnings: z.array(Issue).optional().describe('What may be meant, and is only told: the first of them.'),
  warning_count: z.int().optional(),
  duplicates: z.int().optional().describe('Rows that stood in the file before, word for word.'),
  tokens: Tokens.optional(),
})
export type Validation = z.infer<typeof Validation>

const IdParams = z.object({ dataset_id: z.string() })

export const uploadDataset = route({
  method: 'POST',
  path: '/datasets/',
  scope: 'datasets:write',
  tag: 'Datasets',
  summary: 'Upload a file of examples',
  consumes: 'multipart/form-data',
  form: UploadFields,
  responses: { 201: Dataset },
})
export const listDatasets = route({
  method: 'GET',
  path: '/datasets/',
  scope: 'datasets:read',
  tag: 'Datasets',
  summary: 'The datasets of the account, newest first',
  query: ListQuery,
  responses: { 200: page(Dataset) },
})
export const getDataset = route({
  method: 'GET',
  path: '/datasets/{dataset_id}',
  scope: 'datasets:read',
  tag: 'Datasets',
  summary: 'One dataset',
  params: IdParams,
  responses: { 200: Dataset },
})
export const deleteDataset = route({
  method: 'DELETE',
  path: '/datasets/{dataset_id}',
  scope: 'datasets:write',
  tag: 'Datasets',
  summary: 'Delete a dataset that no waiting or running job needs',
  params: IdParams,
  responses: { 200: Deleted },
})
export const validateDataset = route({
  method: 'POST',
  path: '/datasets/{dataset_id}/validate',
  scope: 'datasets:read',
  tag: 'Datasets',
  summary: 'Say whether every row can be trained on, and what is wrong where not',
  params: IdParams,
  query: z.strictObject({ model_id: z.string().min(1).max(256).optional().describe('The base whose tokens are counted.') }),
  body: z.strictObject({}).nullish(),
  responses: { 200: Validation },
})

export const Preview = z.object({
  model_id: z.string(),
  row: z.int(),
  messages: z.array(z.unknown()),
  sequences: z
    .array(
      z.object({
        tokens: z.array(z.object({ id: z.int(), text: z.string(), trained: z.boolean().describe('Whether the loss counts it.') })),
        cut_tokens: z.int().describe('How many more there are, beyond the length at which rows are cut.'),
      }),
    )
    .describe('What the trainer sees: one sequence, or one a turn where the template renders earlier turns otherwise.'),
})
export type Preview = z.input<typeof Preview>

export const previewDataset = route({
  method: 'GET',
  path: '/datasets/{dataset_id}/preview',
  scope: 'datasets:read',
  tag: 'Datasets',
  summary: 'The exact tokens of a row as the trainer will see them, and which of them are learned',
  params: IdParams,
  query: z.strictObject({
    model_id: z.string().min(1).max(256).optional().describe('The base; default: the default base.'),
    row: digits(1).default(1).describe('The row, counted from 1. Default 1.'),
  }),
  responses: { 200: Preview },
})
