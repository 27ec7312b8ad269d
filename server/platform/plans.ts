// Tiers (limits) and prices: the defaults, or those of the operator's plans file.
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { tiers as defaultTiers, type Pricing, Tier } from '../../contract/hub.ts'
import { fileProblem } from '../../lib/file-problem.ts'
import { type Config, ConfigError } from '../config.ts'

export interface Plans {
  currency: string
  tiers: readonly Tier[]
  tier(id: string): Tier | undefined
  /** The tier, or the strictest one if the id is unknown, as after a change of the plans file. */
  tierOrTightest(id: string): Tier
  pricing(model_id: string): z.output<typeof Pricing>
}

const Price = z.strictObject({
  training_per_million_tokens: z.number().min(0).exactOptional(),
  input_per_million_tokens: z.number().min(0).exactOptional(),
  output_per_million_tokens: z.number().min(0).exactOptional(),
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
        // Files that were written before these were there do not have them.
        max_replicas: z.int().min(0).nullable().default(null),
        max_event_streams: bound.default(null),
        max_storage_mb: bound.default(null),
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

/** The prices of a service without a plans file. */
const free = {
  currency: 'USD',
  training_per_million_tokens: 0,
  input_per_million_tokens: 0,
  output_per_million_tokens: 0,
}

/** Reads the plans file, if set. What it omits keeps its default. Throws ConfigError. */
export function readPlans({ plans_file: file }: Pick<Config, 'plans_file'>): Plans {
  const filePlans = file === undefined ? PlansFile.parse({}) : parse(file)
  const tiers = filePlans.tiers ?? defaultTiers
  const duplicate = tiers.find(({ id }, index) => tiers.findIndex((other) => other.id === id) !== index)
  if (duplicate) throw new ConfigError(`${file}: the tier '${duplicate.id}' is in it twice.`)
  const orUnlimited = (bound: number | null) => bound ?? Number.MAX_SAFE_INTEGER
  const tightest = [...tiers].sort(
    (a, b) =>
      orUnlimited(a.requests_per_minute) - orUnlimited(b.requests_per_minute) ||
      orUnlimited(a.requests_per_day) - orUnlimited(b.requests_per_day),
  )[0]!
  const byId = new Map(tiers.map((tier) => [tier.id, tier]))
  const base = { ...free, ...(filePlans.currency && { currency: filePlans.currency }), ...filePlans.default }
  return {
    currency: base.currency,
    tiers,
    tier: (id) => byId.get(id),
    tierOrTightest: (id) => byId.get(id) ?? tightest,
    pricing: (model_id) => ({ ...base, ...filePlans.models[model_id] }),
  }
}

function parse(file: string): z.output<typeof PlansFile> {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    throw new ConfigError(`TUNERY_PLANS_FILE: ${file} ${fileProblem(file, error)}. Set it to a JSON file, or unset it.`)
  }
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new ConfigError(`TUNERY_PLANS_FILE: ${file} is not valid JSON: ${(error as Error).message}.`)
  }
  const result = PlansFile.safeParse(value)
  if (result.success) return result.data
  throw new ConfigError(
    `TUNERY_PLANS_FILE: ${result.error.issues
      .map(({ path, message }) => `${path.join('.') || 'the file'}: ${message}`)
      .join('; ')}`,
  )
}
