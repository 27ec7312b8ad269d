import { z } from 'zod'
import { Deleted, ListQuery, Method, page, Time } from './common.ts'
import { route } from './route.ts'

export const Comparison = z
  .object({
    agrees: z.boolean(),
    problem: z.string().nullable().describe('What disagrees, and what to do.'),
    rows: z.int(),
    tokens: z.int().describe('Learned tokens that were compared.'),
    change: z.number().describe('By how much training changed the logarithm of a token’s probability, on average, as the trainer has it.'),
    difference: z.number().describe('By how much the engine’s change differs from the trainer’s, on average.'),
    base_difference: z.number().describe('By how much the two differ about what the training began with: the precisions they hold it in.'),
  })
  .describe('What training changed in the probabilities of fixed rows, as the engine has it beside the trainer.')
export type Comparison = z.infer<typeof Comparison>

export const TunedModel = z.object({
  id: z.string(),
  name: z.string().nullable(),
  kind: z.enum(['adapter', 'model']).describe('An adapter on a base, or whole weights.'),
  base_model_id: z.string(),
  parent_model_id: z.string().nullable().describe('The model of the account whose whole weights an adapter stands on, where these are not the base’s.'),
  job_id: z.string().nullable().describe('Null for one that was uploaded.'),
  method: Method,
  size_mb: z.number(),
  comparison: Comparison.nullable().describe('Null until it has been made: at the end of the job, or when the model is first deployed.'),
  created_at: Time,
})
export type TunedModel = z.infer<typeof TunedModel>

/** The text fields of the upload form; the file is the part named `file`. */
export const AdapterFields = z.strictObject({
  name: z.string().trim().min(1).max(200).optional().describe('Default: the name of the file.'),
  base_model_id: z.string().min(1).max(256).optional().describe('Default: what the adapter’s own adapter_config.json names.'),
})
export type AdapterFields = z.infer<typeof AdapterFields>

const tag = 'Models'
const IdParams = z.object({ model_id: z.string() })

export const uploadAdapter = route({
  method: 'POST',
  path: '/fine-tuning/models',
  scope: 'tuning:write',
  tag,
  summary: 'Bring a LoRA adapter of your own: a zip of its PEFT folder, in safetensors',
  consumes: 'multipart/form-data',
  form: AdapterFields,
  responses: { 201: TunedModel },
})
export const listTunedModels = route({
  method: 'GET',
  path: '/fine-tuning/models',
  scope: 'tuning:read',
  tag,
  summary: 'The models of the account, newest first',
  query: ListQuery,
  responses: { 200: page(TunedModel) },
})
export const getTunedModel = route({
  method: 'GET',
  path: '/fine-tuning/models/{model_id}',
  scope: 'tuning:read',
  tag,
  summary: 'One model of the account',
  params: IdParams,
  responses: { 200: TunedModel },
})
export const deleteTunedModel = route({
  method: 'DELETE',
  path: '/fine-tuning/models/{model_id}',
  scope: 'tuning:write',
  tag,
  summary: 'Delete a model that no deployment, job or other model needs',
  params: IdParams,
  responses: { 200: Deleted },
})
