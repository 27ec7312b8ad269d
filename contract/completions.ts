// Text completions, OpenAI's older endpoint.
import { z } from 'zod'
import { textOrTokens } from './lists.ts'
import { routesOf } from './route.ts'
import { finishReasons, onlyIf, Sampling, StreamOptions, Usage } from './sampling.ts'

export const promptsMax = 64

export const CompletionRequest = z.looseObject({
  model: z.string().min(1).max(256),
  prompt: textOrTokens(promptsMax).describe(`A string or its tokens, or up to ${promptsMax} of either.`),
  ...Sampling.shape,
  max_tokens: z
    .int()
    .min(0)
    .max(4096)
    .nullish()
    .describe('1 to 4096; 0 only with echo. Default 1024, or what the context leaves.'),
  parse_special: z
    .boolean()
    .nullish()
    .describe(
      'Whether control tokens that are written in the prompt, such as <|im_end|>, are parsed as such. ' +
        'Default true, and false with a `suffix`; false treats the prompt as plain text.',
    ),
  echo: z
    .boolean()
    .nullish()
    .describe('Whether to put the prompt before the answer, with its log-probabilities if these are requested.'),
  logprobs: z
    .int()
    .min(0)
    .max(20)
    .nullish()
    .describe('Return the log-probability of each token and of this many of the likeliest tokens at each position.'),
  best_of: onlyIf((value) => value === 1, { enum: [1, null] }, 'Use n'),
  suffix: z
    .string()
    .nullish()
    .describe(
      'Text that follows the answer, which fills in what is between prompt and suffix. Only a model whose tokenizer ' +
        'has tokens for this takes one, such as a code model. Not with `echo`.',
    ),
  stream: z.boolean().nullish(),
  stream_options: StreamOptions.nullish(),
})
export type CompletionRequest = z.infer<typeof CompletionRequest>

export const CompletionLogprobs = z.object({
  tokens: z.array(z.string()),
  token_logprobs: z.array(z.number().nullable()),
  top_logprobs: z.array(z.record(z.string(), z.number()).nullable()).nullable(),
  text_offset: z.array(z.int()),
})
export type CompletionLogprobs = z.infer<typeof CompletionLogprobs>

export const CompletionResponse = z.object({
  id: z.string(),
  object: z.literal('text_completion'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.object({
      index: z.int(),
      text: z.string(),
      logprobs: CompletionLogprobs.nullable(),
      finish_reason: z.enum(finishReasons).nullable(),
    }),
  ),
  usage: Usage.nullish(),
})
export type CompletionResponse = z.infer<typeof CompletionResponse>

const route = routesOf({ tag: 'Inference', openai: true })
export const completions = route('POST', '/completions', {
  scope: 'inference',
  summary: 'Continue a text, whole or as a stream',
  body: CompletionRequest,
  produces: 'text/event-stream',
  responses: { 200: CompletionResponse },
  concurrent: true,
})
