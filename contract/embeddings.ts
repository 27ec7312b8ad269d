import { z } from 'zod'
import { textOrTokens } from './lists.ts'
import { routesOf } from './route.ts'

export const inputsMax = 2048

export const EmbeddingsRequest = z.looseObject({
  model: z.string().min(1).max(256).describe('A model of the hub that makes embeddings.'),
  input: textOrTokens(inputsMax).describe(`A string or its tokens, or up to ${inputsMax} of either.`),
  encoding_format: z
    .enum(['float', 'base64'])
    .nullish()
    .describe('base64 is of 32-bit floats, little-endian. Default float.'),
  dimensions: z.int().min(1).nullish().describe('Shorter vectors, where the model was trained for it.'),
})
export type EmbeddingsRequest = z.infer<typeof EmbeddingsRequest>

export const EmbeddingsResponse = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({ object: z.literal('embedding'), index: z.int(), embedding: z.union([z.array(z.number()), z.string()]) }),
  ),
  model: z.string(),
  usage: z.object({ prompt_tokens: z.int(), total_tokens: z.int() }),
})
export type EmbeddingsResponse = z.infer<typeof EmbeddingsResponse>

const route = routesOf({ tag: 'Inference', openai: true })
export const embeddings = route('POST', '/embeddings', {
  scope: 'inference',
  summary: 'Turn texts into vectors',
  body: EmbeddingsRequest,
  responses: { 200: EmbeddingsResponse },
  concurrent: true,
})
