// Models that the `model` field of inference accepts.
import { z } from 'zod'
import { ModelCategory } from './common.ts'
import { routesOf } from './route.ts'

export const ModelCard = z.object({
  id: z.string(),
  object: z.literal('model'),
  created: z.int(),
  owned_by: z.string(),
  category: ModelCategory.nullable().describe(
    'The category of its base. An `embedding` model makes embeddings and does not chat. Null: an upstream serves it, ' +
      'and nothing else is known.',
  ),
  status: z
    .enum(['loaded', 'loading', 'not_loaded'])
    .describe('Whether a request would wait for the model to be loaded first.'),
})
export type ModelCard = z.infer<typeof ModelCard>
export const ModelList = z.object({ object: z.literal('list'), data: z.array(ModelCard) })

const route = routesOf({ tag: 'Inference', openai: true })
export const listCallableModels = route('GET', '/models', {
  scope: 'inference',
  summary: 'Everything that the `model` field of inference takes',
  responses: { 200: ModelList },
})
export const getCallableModel = route('GET', '/models/{model_id*}', {
  scope: 'inference',
  summary: 'One of them',
  params: z.object({ model_id: z.string() }),
  responses: { 200: ModelCard },
})
