// From a validated request to a generation: sampling parameters, length limits and the runner size to start in.
import type { ChatRequest } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { type Sampling, samplingDefaults } from '../../contract/sampling.ts'
import type { GenerationRequest } from '../batching/generation.ts'
import { firstSizeClass, type MemoryLimits, runnerShapes } from '../batching/slot-sizes.ts'
import type { Model } from '../llama/model.ts'
import type { SamplingParams } from '../sampling/sampler.ts'
import type { TokenizeOptions } from '../tokenizer/tokenizer.ts'
import type { PictureSpan } from '../vision/picture-tokens.ts'

export type SamplingFields = Partial<Sampling & Pick<ChatRequest, 'max_completion_tokens'>>
interface PreparedGeneration {
  request: Omit<GenerationRequest, 'stop' | 'grammar' | 'control_texts' | 'top_logprobs' | 'account' | 'background'>
  /** Index of the runner size to start in. */
  size_class: number
}

/** `param` is the request field of the prompt. Throws like `requirePromptFits`. */
export function prepareGeneration(
  model: Model,
  limits: MemoryLimits,
  prompt: number[],
  fields: SamplingFields,
  param: string,
  pictures: readonly PictureSpan[] = [],
): PreparedGeneration {
  requirePromptFits(model, limits, prompt, param)
  requireBiasOfTokens(model, fields.logit_bias)
  const context_length = servedContextLength(model, limits)
  const requested = fields.max_completion_tokens ?? fields.max_tokens ?? samplingDefaults.max_tokens
  const max_tokens = Math.min(requested, context_length - prompt.length)
  return {
    request: { prompt, pictures, max_tokens, sampling: samplingOf(fields) },
    size_class: firstSizeClass(runnerShapes(model, limits), prompt.length, max_tokens),
  }
}

/** Throws ApiError invalid_request if `logit_bias` names a token that the model does not have. */
function requireBiasOfTokens(model: Model, logit_bias: SamplingFields['logit_bias']): void {
  const unknown = Object.keys(logit_bias ?? {}).find((token) => Number(token) >= model.vocab.size)
  if (unknown === undefined) return
  throw new ApiError(
    'invalid_request',
    `logit_bias names the token ${unknown}, but this model has ${model.vocab.size}, from 0 on. Leave it out.`,
    { param: 'logit_bias' },
  )
}

/**
 * Throws ApiError context_length_exceeded if the prompt leaves no room for an answer, invalid_request if it has no
 * tokens.
 */
export function requirePromptFits(model: Model, limits: MemoryLimits, prompt: readonly number[], param: string): void {
  // Some vocabularies have no token for certain characters, such as control characters.
  if (prompt.length === 0)
    throw new ApiError('invalid_request', `The ${param} has nothing that this model has a token for.`, { param })
  const context_length = servedContextLength(model, limits)
  if (prompt.length >= context_length) throw promptTooLong(prompt.length, '', context_length, param)
}

/**
 * Throws ApiError context_length_exceeded if a prompt with pictures leaves no room for an answer. `tokens`: without the
 * pictures, which take `picture_tokens`.
 */
export function requirePicturesFit(model: Model, limits: MemoryLimits, tokens: number, picture_tokens: number): void {
  const context_length = servedContextLength(model, limits)
  if (tokens + picture_tokens < context_length) return
  throw new ApiError(
    'context_length_exceeded',
    `The prompt has ${tokens + picture_tokens} tokens, ${picture_tokens} of them for its pictures; this model takes ` +
      `${context_length}, prompt and answer together. Send fewer or smaller pictures, or less text.`,
    { details: { prompt_tokens: tokens + picture_tokens, context_length }, param: 'messages' },
  )
}

/**
 * Token limit of the tokenizer, and the error beyond it. The limit is twice the context, so that the error for a
 * moderately long prompt gives the exact length.
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

function promptTooLong(tokens: number, qualifier: string, context_length: number, param: string): ApiError {
  return new ApiError(
    'context_length_exceeded',
    `The prompt has ${qualifier}${tokens} tokens; this model takes ${context_length}, prompt and answer together. ` +
      `Shorten the ${param}.`,
    { details: { prompt_tokens: tokens, context_length }, param },
  )
}

function samplingOf(fields: SamplingFields): SamplingParams {
  return {
    temperature: fields.temperature ?? samplingDefaults.temperature,
    top_p: fields.top_p ?? samplingDefaults.top_p,
    top_k: fields.top_k ?? samplingDefaults.top_k,
    min_p: fields.min_p ?? 0,
    seed: fields.seed == null ? null : BigInt(typeof fields.seed === 'number' ? fields.seed : fields.seed.rawJSON),
    presence_penalty: fields.presence_penalty ?? 0,
    frequency_penalty: fields.frequency_penalty ?? 0,
    repetition_penalty: fields.repetition_penalty ?? 1,
    logit_bias: Object.entries(fields.logit_bias ?? {}).map(([token, bias]) => [Number(token), bias] as const),
  }
}

/** Context length of one request for this model here, in tokens: prompt and answer together. */
export function servedContextLength(model: Model, limits: MemoryLimits): number {
  return model.remote_context_length ?? runnerShapes(model, limits).at(-1)!.tokens_per_slot
}
