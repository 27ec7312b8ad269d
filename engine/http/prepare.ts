// From a valid request to what a lane computes: sampling, limits, and the size of lane that it needs.
import type { ChatRequest } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { type Sampling, samplingDefaults } from '../../contract/sampling.ts'
import type { GenerationRequest } from '../batching/generation.ts'
import { firstSize, laneShapes, type MemoryLimits } from '../batching/slot-sizes.ts'
import type { Model } from '../llama/model.ts'
import type { SamplingParams } from '../sampling/sampler.ts'
import type { TokenizeOptions } from '../tokenizer/tokenizer.ts'

export type SamplingFields = Partial<Sampling & Pick<ChatRequest, 'max_completion_tokens'>>
export type PreparedGeneration = {
  request: Omit<GenerationRequest, 'grammar' | 'control_texts' | 'top_logprobs' | 'account'>
  /** Of the model's lanes, the one to begin in. */
  size: number
}

/** `param` names the field that the prompt came from. Throws as `requireRoom` does. */
export function prepareGeneration(
  model: Model,
  limits: MemoryLimits,
  prompt: number[],
  fields: SamplingFields,
  param: string,
): PreparedGeneration {
  requireRoom(model, limits, prompt, param)
  const shapes = laneShapes(model, limits)
  const context_length = shapes.at(-1)!.tokens_per_slot
  const wanted = fields.max_completion_tokens ?? fields.max_tokens ?? samplingDefaults.max_tokens
  const max_tokens = Math.min(wanted, context_length - prompt.length)
  const stop = fields.stop == null ? [] : typeof fields.stop === 'string' ? [fields.stop] : fields.stop
  return {
    request: { prompt, max_tokens, stop, sampling: samplingOf(fields) },
    size: firstSize(shapes, prompt.length, max_tokens),
  }
}

/**
 * Throws ApiError context_length_exceeded when a prompt leaves no room for an answer, invalid_request when it has no
 * tokens at all.
 */
export function requireRoom(model: Model, limits: MemoryLimits, prompt: readonly number[], param: string): void {
  // Vocabularies may lack single characters, such as some control characters, and leave them out.
  if (prompt.length === 0)
    throw new ApiError('invalid_request', `The ${param} has nothing that this model has a token for.`, { param })
  const context_length = servedContextLength(model, limits)
  if (prompt.length >= context_length) throw promptTooLong(prompt.length, '', context_length, param)
}

/**
 * How far the tokens of a prompt are counted, so that the error for one that is too long can say by how much, and the
 * error for those that go further.
 */
export function promptBounds(
  model: Model,
  limits: MemoryLimits,
  param: string,
): Pick<TokenizeOptions, 'tokens_max' | 'tooLong'> {
  const context_length = servedContextLength(model, limits)
  return {
    tokens_max: 2 * context_length,
    tooLong: (tokens_min) => promptTooLong(tokens_min, 'at least ', context_length, param),
  }
}

function promptTooLong(tokens: number, least: string, context_length: number, param: string): ApiError {
  return new ApiError(
    'context_length_exceeded',
    `The prompt has ${least}${tokens} tokens; this model takes ${context_length}, prompt and answer together. Shorten the ${param}.`,
    { details: { prompt_tokens: tokens, context_length }, param },
  )
}

function samplingOf(fields: SamplingFields): SamplingParams {
  return {
    temperature: fields.temperature ?? samplingDefaults.temperature,
    top_p: fields.top_p ?? samplingDefaults.top_p,
    top_k: fields.top_k ?? samplingDefaults.top_k,
    min_p: fields.min_p ?? 0,
    seed: fields.seed ?? null,
    presence_penalty: fields.presence_penalty ?? 0,
    frequency_penalty: fields.frequency_penalty ?? 0,
    repetition_penalty: fields.repetition_penalty ?? 1,
    logit_bias: Object.entries(fields.logit_bias ?? {}).map(([token, bias]) => [Number(token), bias] as const),
  }
}

/** Tokens, prompt and answer together, that one request for this model may take here. */
export function servedContextLength(model: Model, limits: MemoryLimits): number {
  return laneShapes(model, limits).at(-1)!.tokens_per_slot
}
