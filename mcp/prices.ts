// What answers cost at most, by the prices of the models that give them.
import type { Model, Tunery } from '../sdk/index.ts'
import { isTuneryError } from '../sdk/index.ts'
import type { CostEstimate } from './confirm.ts'

/** Characters of a token, at least: a lower bound for common text, so that estimates are rather too high. */
const charactersPerToken = 2.5

export const tokensOf = (text: string) => Math.ceil(text.length / charactersPerToken)

/** The base of anything that can be called; undefined where the key may not look it up or nothing has that name. */
export async function baseOf(tunery: Tunery, model: string, signal: AbortSignal): Promise<Model | undefined> {
  const lookUp = async <T>(get: () => Promise<T>): Promise<T | undefined> => {
    try {
      return await get()
    } catch (error) {
      if (isTuneryError(error, 'insufficient_permissions', 'model_not_found', 'deployment_not_found')) return undefined
      throw error
    }
  }
  const { models } = (await lookUp(() => tunery.hub.list({}, { signal }))) ?? { models: [] }
  const named = (id: string | undefined) => models.find((model) => model.id === id)
  if (named(model)) return named(model)
  if (model.startsWith('mdl_')) return named((await lookUp(() => tunery.models.get(model, { signal })))?.base_model_id)
  return named((await lookUp(() => tunery.deployments.get(model, { signal })))?.base_model_id)
}

export interface Side {
  model: string
  prompt_tokens: number
  completion_tokens: number
}

/** The price of all answers; null if that of one is not known. */
export async function priceOf(tunery: Tunery, sides: Side[], signal: AbortSignal): Promise<CostEstimate['price']> {
  let amount = 0
  let currency: string | undefined
  for (const { model, prompt_tokens, completion_tokens } of sides) {
    const pricing = (await baseOf(tunery, model, signal))?.pricing
    if (!pricing || (currency !== undefined && currency !== pricing.currency)) return null
    currency = pricing.currency
    amount +=
      (prompt_tokens * pricing.input_per_million_tokens + completion_tokens * pricing.output_per_million_tokens) / 1e6
  }
  return currency === undefined ? null : { amount, currency }
}
