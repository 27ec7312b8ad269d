import { z } from 'zod'
import { Deleted, Description, DisplayName, Labels, Metadata, Method, page, SortedQuery, Time } from './common.ts'
import { objectives } from './hyperparameters.ts'
import { routesOf } from './route.ts'

export const Comparison = z
  .object({
    agrees: z.boolean(),
    problem: z.string().nullable().describe('What disagrees, and what to do.'),
    rows: z.int(),
    tokens: z.int().describe('Learned tokens that were compared.'),
    change: z
      .number()
      .describe('By how much training changed the logarithm of a token’s probability, on average, in the trainer.'),
    difference: z.number().describe('By how much the engine’s change differs from the trainer’s, on average.'),
    base_difference: z
      .number()
      .describe('By how much the two differ on the starting model, because of their precisions.'),
    eight_bits: z
      .boolean()
      .optional()
      .describe(
        'Whether the engine answered with the eight-bit form of the base. The comparison is repeated at a deployment ' +
          'when the base is served in another form.',
      ),
  })
  .describe('How training changed the probabilities of fixed rows: the engine compared with the trainer.')
export type Comparison = z.infer<typeof Comparison>

export const TrainedWith = z
  .object({
    system_prompt: z
      .enum(['same', 'none', 'varies'])
      .describe('`same`: every row had the one in `system_prompt_text`.'),
    system_prompt_text: z.string().nullable(),
    tools: z.enum(['all', 'none', 'some']).describe('Whether the rows had tools.'),
    thoughts: z
      .enum(['all', 'none', 'some'])
      .nullable()
      .describe('Whether the answers had thoughts. Null: its chat template has no place for them.'),
    thoughts_asked: z
      .boolean()
      .optional()
      .describe(
        'Whether its chat template asks for thoughts only where a request does (`enable_thinking`). If all answers ' +
          'had thoughts, a request that says nothing of them asks for them.',
      ),
    chat_template_sha256: z.string(),
  })
  .describe('What the rows of its last training have in common. A model that is asked otherwise acts untrained.')
export type TrainedWith = z.infer<typeof TrainedWith>

export const LineageDataset = z.object({
  id: z.string(),
  name: z.string().nullable(),
  sha256: z
    .string()
    .nullable()
    .describe('SHA-256 of the uploaded file. Null where the dataset was deleted by a version that did not keep it.'),
})
export type LineageDataset = z.infer<typeof LineageDataset>

export const LineageStep = z.object({
  model_id: z.string().describe('What came of it. It may be deleted by now.'),
  name: z.string().nullable().describe('As it was when the next step began.'),
  sha256: z.string().nullable().describe('SHA-256 of the file of weights that the engine serves.'),
  job_id: z.string().nullable().describe('The training. Null for an adapter that was uploaded.'),
  step: z.int().nullable().describe('The step of the training whose weights these are.'),
  method: Method.nullable(),
  objective: z.enum(objectives).nullable().describe('What was learned: answers, or preferences.'),
  dataset: LineageDataset.nullable().describe('As it was when the job was created; it may be deleted by now.'),
  validation_dataset: LineageDataset.nullable(),
})
export type LineageStep = z.infer<typeof LineageStep>

export const Lineage = z
  .object({
    base_model_id: z.string(),
    steps: z.array(LineageStep).describe('Each training or upload on the way, the first one first, this model last.'),
  })
  .describe('What a model came from.')
export type Lineage = z.infer<typeof Lineage>

export const TunedModel = z.object({
  id: z.string(),
  name: z.string().describe('At first that of its job, or of the uploaded file.'),
  description: z.string(),
  metadata: Metadata,
  kind: z.enum(['adapter', 'model']).describe('An adapter on a base, or whole weights.'),
  base_model_id: z.string(),
  parent_model_id: z
    .string()
    .nullable()
    .describe(
      'The model of the account that it continued, which may be deleted by now. Null where it began with the base.',
    ),
  weights_model_id: z
    .string()
    .nullable()
    .describe('The model of the account whose whole weights an adapter was trained on, if not those of the base.'),
  job_id: z.string().nullable().describe('Null for one that was uploaded.'),
  method: Method,
  size_mb: z.number(),
  projector_sha256: z
    .string()
    .nullable()
    .describe(
      'SHA-256 of the projector that was trained with it. Null: it reads pictures as its starting model does, if at ' +
        'all.',
    ),
  comparison: Comparison.nullable().describe(
    'Null until it has been made: at the end of the job, or when the model is first deployed.',
  ),
  created_at: Time,
})
export type TunedModel = z.infer<typeof TunedModel>

export const TunedModelDetails = TunedModel.extend({
  lineage: Lineage,
  trained_with: TrainedWith.nullable().describe(
    'Null of uploaded adapters, and of models of earlier versions. Answers to requests that differ from it carry ' +
      'codes in the header `x-warnings`.',
  ),
})
export type TunedModelDetails = z.infer<typeof TunedModelDetails>

/** Text fields of the upload form; the file is the part `file`. */
export const AdapterFields = z.strictObject({
  name: DisplayName.optional().describe('Default: the name of the file.'),
  description: Description.optional(),
  base_model_id: z
    .string()
    .min(1)
    .max(256)
    .optional()
    .describe('Default: what the adapter’s own adapter_config.json names.'),
})
export type AdapterFields = z.infer<typeof AdapterFields>

const route = routesOf({ tag: 'Models' })
const IdParams = z.object({ model_id: z.string() })

export const uploadAdapter = route('POST', '/fine-tuning/models', {
  scope: 'tuning:write',
  summary: 'Bring a LoRA adapter of your own: a zip of its PEFT folder, in safetensors',
  consumes: 'multipart/form-data',
  form: AdapterFields,
  responses: { 201: TunedModel },
})
export const listTunedModels = route('GET', '/fine-tuning/models', {
  scope: 'tuning:read',
  summary: 'The models of the account, newest first or as sorted',
  query: SortedQuery,
  responses: { 200: page(TunedModel) },
})
export const getTunedModel = route('GET', '/fine-tuning/models/{model_id}', {
  scope: 'tuning:read',
  summary: 'One model of the account, with its lineage',
  params: IdParams,
  responses: { 200: TunedModelDetails },
})
export const changeTunedModel = route('PATCH', '/fine-tuning/models/{model_id}', {
  scope: 'tuning:write',
  summary: 'Change the name, description or metadata of a model',
  params: IdParams,
  body: Labels,
  responses: { 200: TunedModel },
})
export const deleteTunedModel = route('DELETE', '/fine-tuning/models/{model_id}', {
  scope: 'tuning:write',
  summary: 'Delete a model that no deployment, job or other model needs',
  params: IdParams,
  responses: { 200: Deleted },
})
