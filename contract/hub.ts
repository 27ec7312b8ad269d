import { z } from 'zod'
import { Method } from './common.ts'
import { route } from './route.ts'

export const Pricing = z.object({
  currency: z.string(),
  training_per_million_tokens: z.number(),
  input_per_million_tokens: z.number(),
  output_per_million_tokens: z.number(),
})

export const Model = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  category: z.enum(['language', 'code', 'multimodal', 'embedding']),
  params_billions: z.number(),
  context_length: z.int(),
  license: z.string(),
  huggingface_id: z.string().nullable(),
  methods: z.array(Method).describe('The fine-tuning methods that work for this model on this installation today.'),
  pricing: Pricing,
  weights: z.object({
    available: z.boolean().describe('Whether the weights are on this machine, so that the model can be called and trained.'),
    size_mb: z.number().nullable(),
    how_to_get: z.string().nullable().describe('What it takes to get them, where they are not here.'),
  }),
})
export type Model = z.infer<typeof Model>

const Models = z.object({ models: z.array(Model) })

export const Tier = z.object({
  id: z.string(),
  name: z.string(),
  requests_per_minute: z.int().nullable().describe('Null is unlimited.'),
  requests_per_day: z.int().nullable(),
  max_concurrent: z.int().nullable(),
})
export type Tier = z.infer<typeof Tier>

/** Those there are where the operator sets none. */
export const tiers: Tier[] = [
  { id: 'free', name: 'Free', requests_per_minute: 60, requests_per_day: 1000, max_concurrent: 2 },
  { id: 'pro', name: 'Pro', requests_per_minute: 1000, requests_per_day: 50_000, max_concurrent: 10 },
  { id: 'enterprise', name: 'Enterprise', requests_per_minute: 10_000, requests_per_day: null, max_concurrent: 100 },
]

const hub = { method: 'GET', scope: 'hub:read', tag: 'Hub' } as const

export const listModels = route({ ...hub, path: '/hub/', summary: 'The base models', responses: { 200: Models } })
export const getModel = route({
  ...hub,
  path: '/hub/models/{model_id*}',
  summary: 'One base model; its id may be written with plain or encoded slashes',
  params: z.object({ model_id: z.string() }),
  responses: { 200: Model },
})
export const listTiers = route({ ...hub, path: '/hub/tiers', summary: 'The tiers and their limits', responses: { 200: z.object({ tiers: z.array(Tier) }) } })
export const listFeatured = route({ ...hub, path: '/hub/featured', summary: 'Base models to begin with', responses: { 200: Models } })
