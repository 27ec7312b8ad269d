// Shared by chat and text completions: sampling parameters with their ranges, usage and log-probabilities.
import { z } from 'zod'

const Stop = z.union([z.string().min(1), z.array(z.string().min(1)).max(4)])
const TokenId = z.string().regex(/^\d{1,7}$/, 'must be the number of a token')

/**
 * Digits of a number that JavaScript cannot hold, as `parseJson` of lib/json.ts reads them. Exported for the
 * declarations of the client library's package.
 */
export interface Digits {
  readonly rawJSON: string
}
const isDigits = (value: unknown): value is Digits =>
  (JSON as { isRawJSON?(value: unknown): boolean }).isRawJSON?.(value) === true

function isSeed(value: unknown): value is number | Digits {
  if (!isDigits(value)) return Number.isSafeInteger(value)
  const seed = BigInt(value.rawJSON)
  return seed === BigInt.asIntN(64, seed)
}

/** A whole number of 64 bits. One beyond 2^53 keeps its digits. */
export const Seed = z
  .unknown()
  .refine(isSeed, { error: 'must be a whole number of 64 bits, from -2^63 to 2^63 - 1' })
  .meta({ type: 'integer', format: 'int64' }) as unknown as z.ZodType<number | Digits>
export type Seed = z.infer<typeof Seed>

/** Sampling parameters, with the ranges of the specification. Null means unset, as OpenAI's clients send it. */
export const Sampling = z.object({
  temperature: z.number().min(0).max(2).nullish().describe('0 to 2; 0 always takes the likeliest token. Default 0.7.'),
  top_p: z.number().min(0).max(1).nullish().describe('0 to 1. Default 0.9.'),
  top_k: z.int().min(1).max(100).nullish().describe('1 to 100. Default 50.'),
  min_p: z
    .number()
    .min(0)
    .max(1)
    .nullish()
    .describe('Tokens less likely than this share of the likeliest are excluded. Default 0.'),
  max_tokens: z.int().min(1).max(4096).nullish().describe('1 to 4096. Default 1024, or what the context leaves.'),
  stop: Stop.nullish().describe('One sequence or up to four; generation ends before the first that appears.'),
  seed: Seed.nullish().describe('The same seed, prompt and settings give the same answer on the same machine.'),
  n: z.int().min(1).max(8).nullish().describe('How many answers. Default 1.'),
  presence_penalty: z
    .number()
    .min(-2)
    .max(2)
    .nullish()
    .describe('Subtracted once from the logit of every token that is already in the answer. Default 0.'),
  frequency_penalty: z
    .number()
    .min(-2)
    .max(2)
    .nullish()
    .describe('Subtracted from the logit of a token once for each time it is in the answer. Default 0.'),
  repetition_penalty: z
    .number()
    .gt(0)
    .max(2)
    .nullish()
    .describe('Divides (or, below zero, multiplies) the logits of tokens that prompt or answer have. Default 1.'),
  logit_bias: z
    .record(TokenId, z.number().min(-100).max(100))
    .refine((bias) => Object.keys(bias).length <= 1024, 'may name 1,024 tokens at most')
    .nullish()
    .describe('Added to the logits of the tokens with these numbers; −100 forbids one, 100 all but forces it.'),
})
export type Sampling = z.infer<typeof Sampling>

/** Defaults of parameters that a request leaves out. */
export const samplingDefaults = { temperature: 0.7, top_p: 0.9, top_k: 50, max_tokens: 1024 } as const

/**
 * A field of OpenAI's protocol that is not supported and would change the answer: rejected unless its value has no
 * effect (`harmless`); `shape` is the JSON schema of such values besides null. Other unknown fields are ignored, as
 * OpenAI's clients expect.
 */
export const onlyIf = (harmless: (value: unknown) => boolean, shape: object, advice = 'Leave it out') =>
  z
    .unknown()
    .refine((value) => value === undefined || value === null || harmless(value), {
      params: { unsupported: true },
      error: `is not supported. ${advice}`,
    })
    .optional()
    .meta({ description: `Not supported. ${advice}.`, nullable: true, ...shape })

export const StreamOptions = z.looseObject({ include_usage: z.boolean().nullish() })

export const Usage = z.object({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  total_tokens: z.int(),
  prompt_tokens_details: z
    .object({ cached_tokens: z.int().describe('Tokens of the prompt that an earlier request had computed already.') })
    .optional(),
})
export type Usage = z.infer<typeof Usage>

/**
 * Log-probabilities of the model, before sampling and penalties. `bytes` are the bytes of the token, which may be part
 * of a character.
 */
export const TopLogprob = z.object({ token: z.string(), logprob: z.number(), bytes: z.array(z.int()).nullable() })
export type TopLogprob = z.infer<typeof TopLogprob>
export const TokenLogprob = TopLogprob.extend({ top_logprobs: z.array(TopLogprob) })
export type TokenLogprob = z.infer<typeof TokenLogprob>

export const finishReasons = ['stop', 'length', 'tool_calls', 'content_filter'] as const
export type FinishReason = (typeof finishReasons)[number]
