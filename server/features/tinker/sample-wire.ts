// What a client asks to sample, in the form of the engine's route, and the engine's answer in the client's form.
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { SampleOutput } from './wire/messages.ts'
import type { Sample } from './wire/requests.ts'

const TopToken = z.object({ token: z.int(), logprob: z.number() })
export const Sampled = z.object({
  choices: z.array(
    z.object({
      tokens: z.array(z.int()),
      logprobs: z.array(z.number()),
      top: z.array(z.array(TopToken)).optional(),
      finish_reason: z.string(),
    }),
  ),
  prompt_logprobs: z.array(z.number().nullable()).optional(),
  prompt_top: z.array(z.array(TopToken).nullable()).optional(),
  usage: z.object({
    prompt_tokens: z.int(),
    completion_tokens: z.int(),
    prompt_tokens_details: z.object({ cached_tokens: z.int() }).optional(),
  }),
})

/** An answer of the engine's route. */
export type Sampled = z.infer<typeof Sampled>

/** The tokens of a prompt. Throws invalid_request, parameter_not_supported. */
export function promptOf(body: Sample): number[] {
  for (const [field, given] of [
    ['target_prompt_logprobs', body.target_prompt_logprobs != null],
    ['prompt_alt_tokens_k', body.prompt_alt_tokens_k > 0],
    ['record_stability_info', body.record_stability_info === true],
  ] as const)
    if (given) throw new ApiError('parameter_not_supported', `'${field}' is not supported here.`)
  const prompt = body.prompt.chunks.flatMap(({ type, tokens }) => {
    if (type !== 'encoded_text' || !tokens)
      throw new ApiError('parameter_not_supported', 'Only tokens can be sampled from here, no pictures and no audio.')
    return tokens
  })
  if (prompt.length === 0) throw new ApiError('invalid_request', 'The prompt has no tokens.')
  const { prompt_logprobs_last_n: last } = body
  if (last != null && (!body.prompt_logprobs || last > prompt.length - 1))
    throw new ApiError(
      'invalid_request',
      `'prompt_logprobs_last_n' needs prompt_logprobs, and may be 1 to ${prompt.length - 1} with this prompt.`,
    )
  return prompt
}

/** The body of the engine's route (engine/http/routes/sample.ts). */
export function engineFields(prompt: number[], body: Sample, max_tokens: number) {
  const { temperature, top_k, top_p, seed, stop } = body.sampling_params
  const stops = stop == null ? [] : [stop].flat()
  const numbers = stops.filter((one) => typeof one === 'number')
  return {
    prompt,
    n: body.num_samples,
    max_tokens,
    temperature,
    // The whole vocabulary, whose probabilities are those that are told.
    top_k: top_k <= 0 ? 0 : Math.min(top_k, 100),
    top_p,
    seed: seed ?? null,
    stop: stops.filter((one) => typeof one === 'string'),
    ...(numbers.length > 0 && { stop_tokens: numbers }),
    // No sequence at all stops nothing, not even at the end of an answer.
    ...(Array.isArray(stop) && stop.length === 0 && { ignore_end: true }),
    ...(body.topk_sample_logprobs > 0 && { top_logprobs: body.topk_sample_logprobs }),
    ...((body.prompt_logprobs || body.topk_prompt_logprobs > 0) && { prompt_logprobs: body.topk_prompt_logprobs }),
  }
}

export const outputOf = ({ choices, usage, ...of }: Sampled, body: Sample): SampleOutput => ({
  sequences: choices.map(({ tokens, logprobs, top, finish_reason }) => ({
    stop_reason: finish_reason === 'length' ? 'length' : 'stop',
    tokens,
    logprobs,
    ...(top && { top }),
  })),
  ...promptOutput(of, body),
  cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
})

function promptOutput(
  { prompt_logprobs, prompt_top }: Pick<Sampled, 'prompt_logprobs' | 'prompt_top'>,
  body: Sample,
): Pick<SampleOutput, 'prompt_logprobs' | 'prompt_top'> {
  const length = prompt_logprobs?.length ?? 0
  const first = body.prompt_logprobs_last_n == null ? 0 : length - body.prompt_logprobs_last_n
  return {
    ...(body.prompt_logprobs && { prompt_logprobs: prompt_logprobs?.map((value, at) => (at < first ? null : value)) }),
    ...(body.topk_prompt_logprobs > 0 && { prompt_top: prompt_top?.map((row, at) => (at < first ? null : row)) }),
  }
}
