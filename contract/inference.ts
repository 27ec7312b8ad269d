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

/**
 * What the header x-warnings of an answer may say of a tuned model: it is asked otherwise than it was trained, and may
 * act as if it was not.
 */
export const answerWarnings = {
  system_prompt_missing: 'The model was trained with the same system prompt in every row. This request has none.',
  system_prompt_differs: 'The model was trained with the same system prompt in every row. This request has another.',
  system_prompt_untrained: 'The model was trained without a system prompt. This request has one.',
  tools_missing: 'The model was trained with tools in every row. This request has none.',
  tools_untrained: 'The model was trained without tools. This request has some.',
  thoughts_off:
    'The model was trained to think before each answer. This request turns thoughts off; leave that out of it.',
  thoughts_untrained: 'The model was trained on answers without thoughts. This request asks for thoughts.',
  template_missing:
    'The model was trained on conversations. The prompt of a completion is not put into its chat template; send ' +
    'messages to /chat/completions.',
  template_differs: 'The chat template of the base is not the one that the model was trained with.',
} as const
export type AnswerWarning = keyof typeof answerWarnings

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
