import { z } from 'zod'
import { Deleted, ListQuery, page, Time } from './common.ts'
import { route } from './route.ts'

export const DatasetFormat = z.enum(['jsonl', 'csv', 'parquet', 'huggingface'])
export type DatasetFormat = z.infer<typeof DatasetFormat>

export const Dataset = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  format: DatasetFormat,
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
})

export const Validation = z.object({
  valid: z.boolean(),
  total_samples: z.int(),
  avg_tokens_per_sample: z.number().optional().describe('With the chat template and tokenizer of the default base model.'),
  errors: z.array(z.string()).optional().describe('Each begins with the line it is about.'),
  error_count: z.int().optional().describe('How many rows are wrong; `errors` lists the first of them.'),
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
  body: z.strictObject({}).nullish(),
  responses: { 200: Validation },
})
