// OpenAI's alpha API of graders: tried on one answer, or checked. And what signs requests to endpoints of users.
import { z } from 'zod'
import { Grader } from './graders.ts'
import { routesOf } from './route.ts'

const route = routesOf({ tag: 'Graders', openai: true })

export const RunGrader = z.looseObject({
  grader: Grader,
  model_sample: z.string().max(1_000_000).describe('The answer: `{{sample.output_text}}`, and its JSON.'),
  item: z.record(z.string(), z.unknown()).nullish().describe('The row: `{{item.…}}`.'),
})
export type RunGrader = z.infer<typeof RunGrader>

const Details = z.string().nullable()
const Errors = z.object({
  formula_parse_error: z.boolean(),
  invalid_variable_error: z.boolean().describe('The row lacks a field.'),
  model_grader_parse_error: z.boolean(),
  model_grader_refusal_error: z.boolean(),
  model_grader_server_error: z.boolean(),
  model_grader_server_error_details: Details,
  other_error: z.boolean(),
  python_grader_runtime_error: z.boolean(),
  python_grader_runtime_error_details: Details.describe('Python’s message and line.'),
  python_grader_server_error: z.boolean(),
  python_grader_server_error_type: Details,
  sample_parse_error: z.boolean().describe('The answer lacks what the grader reads.'),
  truncated_observation_error: z.boolean(),
  unresponsive_reward_error: z.boolean(),
  details: Details.describe('Which error it was, of any grader.'),
})
export type GraderErrors = z.infer<typeof Errors>

export const GraderRun = z.object({
  reward: z.number().nullable().describe('The score. Null if the grader failed: it is no score of 0.'),
  sub_rewards: z.record(z.string(), z.number().nullable()).describe('Scores of the parts of `multi`.'),
  metadata: z.object({
    name: z.string(),
    type: z.string(),
    errors: Errors,
    execution_time: z.number().describe('In seconds.'),
    scores: z.record(z.string(), z.number().nullable()),
    token_usage: z.int().nullable().describe('Tokens that judges used.'),
    sampled_model_name: z.string().nullable().describe('The judge.'),
  }),
  model_grader_token_usage_per_model: z.record(
    z.string(),
    z.object({ prompt_tokens: z.int(), completion_tokens: z.int(), total_tokens: z.int() }),
  ),
})
export type GraderRun = z.infer<typeof GraderRun>

export const runGrader = route('POST', '/fine_tuning/alpha/graders/run', {
  scope: 'tuning:write',
  also: ['inference'],
  concurrent: true,
  summary: 'Score one answer by a grader',
  body: RunGrader,
  responses: { 200: GraderRun },
})
export const validateGrader = route('POST', '/fine_tuning/alpha/graders/validate', {
  scope: 'tuning:write',
  concurrent: true,
  summary: 'Check a grader: its templates, patterns, source, address and judges',
  body: z.looseObject({ grader: Grader }),
  responses: { 200: z.object({ grader: z.looseObject({}) }) },
})

export const getGraderSecret = routesOf({ tag: 'Graders' })('GET', '/graders/secrets/{name}', {
  scope: 'tuning:write',
  summary: 'The secret that signs requests to endpoints of graders with this `secret_name`',
  params: z.object({ name: z.string().regex(/^[a-z0-9_-]{1,64}$/, 'must be letters, digits, _ and -, at most 64') }),
  responses: {
    200: z.object({ name: z.string(), secret: z.string().describe('`whsec_…`, as of Standard Webhooks.') }),
  },
})
