// What an account may ask for and what it pays: the tiers and the prices, which an operator may set in a file of their
// own.
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { type Pricing, Tier, tiers as usualTiers } from '../contract/hub.ts'
import { type Config, ConfigError } from './config.ts'

export interface Plans {
  currency: string
  tiers: readonly Tier[]
  tier(id: string): Tier | undefined
  /** The same; of a tier that is not known here (another process reads another file), the tightest there is. */
  tierOrTightest(id: string): Tier
  pricing(model_id: string): z.output<typeof Pricing>
}

const Price = z.strictObject({
  training_per_million_tokens: z.number().min(0).optional(),
  input_per_million_tokens: z.number().min(0).optional(),
  output_per_million_tokens: z.number().min(0).optional(),
})
const bound = z.int().min(1).nullable()
const PlansFile = z.strictObject({
  tiers: z
    .array(
      Tier.extend({
        id: z.string().regex(/^[a-z0-9_-]{1,64}$/),
        name: z.string().min(1).max(200),
        requests_per_minute: bound,
        requests_per_day: bound,
        max_concurrent: bound,
      }).strict(),
    )
    .min(1)
    .optional(),
  currency: z
    .string()
    .regex(/^[A-Z]{3}$/)
    .optional(),
  default: Price.optional(),
  models: z.record(z.string(), Price).default({}),
})

type Settings = Pick<Config, 'plans_file' | 'currency' | 'training_price' | 'input_price' | 'output_price'>

/**
 * Reads the file, if there is one; what it leaves out is as the other settings say. Throws a ConfigError that tells
 * what is wrong in it.
 */
export function readPlans({ plans_file: file, currency, training_price, input_price, output_price }: Settings): Plans {
  const usual = {
    currency,
    training_per_million_tokens: training_price,
    input_per_million_tokens: input_price,
    output_per_million_tokens: output_price,
  }
  const given = file === undefined ? PlansFile.parse({}) : parse(file)
  const tiers = given.tiers ?? usualTiers
  const twice = tiers.find(({ id }, index) => tiers.findIndex((other) => other.id === id) !== index)
  if (twice) throw new ConfigError(`${file}: the tier '${twice.id}' stands in it twice.`)
  const many = (bound: number | null) => bound ?? Number.MAX_SAFE_INTEGER
  const tightest = [...tiers].sort(
    (a, b) =>
      many(a.requests_per_minute) - many(b.requests_per_minute) || many(a.requests_per_day) - many(b.requests_per_day),
  )[0]!
  const byId = new Map(tiers.map((tier) => [tier.id, tier]))
  const base = { ...usual, ...(given.currency && { currency: given.currency }), ...given.default }
  return {
    currency: base.currency,
    tiers,
    tier: (id) => byId.get(id),
    tierOrTightest: (id) => byId.get(id) ?? tightest,
    pricing: (model_id) => ({ ...base, ...given.models[model_id] }),
  }
}

function parse(file: string): z.output<typeof PlansFile> {
  let value: unknown
  try {
    value = JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    throw new ConfigError(`TUNERY_PLANS_FILE cannot be read: ${(error as Error).message}`)
  }
  const result = PlansFile.safeParse(value)
  if (result.success) return result.data
  throw new ConfigError(
    `TUNERY_PLANS_FILE: ${result.error.issues.map(({ path, message }) => `${path.join('.') || 'the file'}: ${message}`).join('; ')}`,
  )
}
