// From a valid request to what a lane computes: sampling, limits, and the size of lane that it needs.

import type { ChatRequest } from '../contract/chat.ts'
import { ApiError } from '../contract/errors.ts'
import { type Sampling, samplingDefaults } from '../contract/sampling.ts'
import type { GenerationRequest } from './generation.ts'
import { laneShapes, type MemoryLimits, type SizeClass } from './lane-sizes.ts'
import type { Model } from './llama/model.ts'

export type SamplingFields = Partial<Sampling & Pick<ChatRequest, 'max_completion_tokens'>>

/** Throws ApiError context_length_exceeded when the prompt leaves no room for an answer. */
export function prepareGeneration(
  model: Model,
  limits: MemoryLimits,
  prompt: number[],
  fields: SamplingFields,
  account: string,
): { request: GenerationRequest; size: SizeClass } {
  const { short, long } = laneShapes(model, limits)
  const context_length = (long ?? short).tokens_per_slot
  if (prompt.length >= context_length)
    throw new ApiError(
      'context_length_exceeded',
      `The prompt has ${prompt.length} tokens; this model takes ${context_length}, prompt and answer together. Shorten the messages.`,
      { details: { prompt_tokens: prompt.length, context_length }, param: 'messages' },
    )
  const wanted = fields.max_completion_tokens ?? fields.max_tokens ?? samplingDefaults.max_tokens
  const max_tokens = Math.min(wanted, context_length - prompt.length)
  const stop = fields.stop == null ? [] : typeof fields.stop === 'string' ? [fields.stop] : fields.stop
  const sampling = {
    temperature: fields.temperature ?? samplingDefaults.temperature,
    top_p: fields.top_p ?? samplingDefaults.top_p,
    top_k: fields.top_k ?? samplingDefaults.top_k,
    seed: fields.seed ?? null,
  }
  return { request: { prompt, max_tokens, stop, sampling, account }, size: prompt.length + max_tokens <= short.tokens_per_slot ? 'short' : 'long' }
}

/** Tokens, prompt and answer together, that one request for this model may take here. */
export function servedContextLength(model: Model, limits: MemoryLimits): number {
  const { short, long } = laneShapes(model, limits)
  return (long ?? short).tokens_per_slot
}
