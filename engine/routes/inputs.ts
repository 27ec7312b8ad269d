// The forms in which a request may give texts: one or several, each as a string or as its tokens.
import { ApiError } from '../../contract/errors.ts'
import type { TextOrTokens } from '../../contract/lists.ts'
import type { Model } from '../llama/model.ts'

/** Each text of what `prompt` or `input` was given. */
export function textsOf(given: TextOrTokens): (string | number[])[] {
  return typeof given === 'string' || typeof given[0] === 'number' ? [given as string | number[]] : (given as (string | number[])[])
}

/** Returns `tokens`. Throws ApiError invalid_request where the model's vocabulary lacks one of them. */
export function knownTokens(model: Model, tokens: number[], param: string): number[] {
  const unknown = tokens.find((token) => token >= model.vocab.size)
  if (unknown !== undefined) throw new ApiError('invalid_request', `There is no token ${unknown}: this model has ${model.vocab.size}, from 0 on.`, { param })
  return tokens
}
