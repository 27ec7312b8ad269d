// Graders: how an answer of an evaluation is scored, in the JSON of OpenAI's API, and some more.
import { z } from 'zod'
import { JsonObject, ShortName } from './common.ts'
import { Seed } from './sampling.ts'

/** Scores farther from 0 are failures: means and deviations of larger ones are no longer finite, or mean nothing. */
export const scoreMax = 1_000_000
const Bound = z.number().min(-scoreMax).max(scoreMax)

/** Text with `{{item.…}}` (fields of the row) and `{{sample.…}}` (the answer). */
const Template = z.string().max(100_000)

const output = Template.default('{{sample.output_text}}').describe('What is graded. Default: the text of the answer.')
const reference = Template.default('{{item.reference}}').describe(
  'What it is compared with. Default: the answer of the row.',
)

export const TemplatePart = z.strictObject({ type: z.enum(['input_text', 'output_text']), text: Template })
const Content = z.union(
  [
    Template,
    TemplatePart,
    z
      .array(z.union([Template, TemplatePart]))
      .min(1)
      .max(20),
  ],
  { error: 'must be text: a string, or parts of the type input_text or output_text' },
)
type Content = z.infer<typeof Content>

/** The text of a content, its parts one after the other. */
export function contentText(content: Content): string {
  if (typeof content === 'string') return content
  return Array.isArray(content) ? content.map(contentText).join('') : content.text
}

/** A message of a template, in the forms of OpenAI's API. */
export const TemplateMessage = z.strictObject({
  type: z.literal('message').optional(),
  role: z.enum(['user', 'assistant', 'system', 'developer']),
  content: Content,
})
const judge = {
  model: z.string().min(1).max(256).describe('A model of this service that judges.'),
  input: z.array(TemplateMessage).min(1).max(20),
}

const JudgeSampling = z.strictObject({
  temperature: z.number().min(0).max(2).nullish().describe('Default 0.'),
  top_p: z.number().gt(0).max(1).nullish(),
  seed: Seed.nullish(),
  max_completions_tokens: z.int().min(1).max(4096).nullish().describe('Default 64, and not less.'),
  reasoning_effort: z.string().nullish().describe('Without effect: a judge answers in a form.'),
})

export const StringCheckGrader = z.strictObject({
  type: z.literal('string_check'),
  name: ShortName,
  input: Template,
  reference: Template,
  operation: z
    .enum(['eq', 'ne', 'like', 'ilike'])
    .describe('Equal, not equal, contains, contains whatever the case of letters.'),
})

export const similarityMetrics = [
  'fuzzy_match',
  'bleu',
  'gleu',
  'rouge_1',
  'rouge_2',
  'rouge_3',
  'rouge_4',
  'rouge_5',
  'rouge_l',
] as const
export const TextSimilarityGrader = z.strictObject({
  type: z.literal('text_similarity'),
  name: ShortName,
  input: Template,
  reference: Template,
  evaluation_metric: z.enum(similarityMetrics, { error: `must be one of ${similarityMetrics.join(', ')}` }),
  pass_threshold: z.number().min(0).max(1).default(0.5),
})

export const LabelModelGrader = z.strictObject({
  type: z.literal('label_model'),
  name: ShortName,
  ...judge,
  labels: z.array(z.string().min(1).max(100)).min(2).max(20),
  passing_labels: z.array(z.string().min(1).max(100)).min(1).max(20),
})

export const ScoreModelGrader = z.strictObject({
  type: z.literal('score_model'),
  name: ShortName,
  ...judge,
  range: z.tuple([Bound, Bound]).default([0, 1]).describe('The lowest and the highest score.'),
  pass_threshold: z.number().nullish().describe('Default: the middle of the range.'),
  sampling_params: JudgeSampling.nullish().describe('How the judge answers.'),
})

export const JsonSchemaGrader = z.strictObject({
  type: z.literal('json_schema'),
  name: ShortName,
  input: output,
  schema: JsonObject.describe('The JSON Schema that the answer must satisfy.'),
})

export const JsonEqualGrader = z.strictObject({
  type: z.literal('json_equal'),
  name: ShortName,
  input: output,
  reference,
  fields: z
    .array(z.string().min(1).max(200))
    .min(1)
    .max(100)
    .optional()
    .describe('The fields that are compared, such as `address.city`. Default: all of the reference.'),
})

export const ContainsGrader = z.strictObject({
  type: z.literal('contains'),
  name: ShortName,
  input: output,
  reference,
  ignore_case: z.boolean().default(false),
})

export const RegexGrader = z.strictObject({
  type: z.literal('regex'),
  name: ShortName,
  input: output,
  pattern: z
    .string()
    .min(1)
    .max(1000)
    .describe('An RE2 pattern: no back-references and no look-around, so that every text is searched in linear time.'),
  ignore_case: z.boolean().default(false),
  negate: z.boolean().default(false).describe('Whether the answer must not match.'),
})

export const ToolCallGrader = z.strictObject({
  type: z.literal('tool_call'),
  name: ShortName,
  function: z.string().min(1).max(64).optional().describe('Default: the call of the row’s answer.'),
  arguments: JsonObject.optional().describe(
    'Arguments that the call must have; it may have more. Default: those of the row’s answer.',
  ),
})

export const PythonGrader = z.strictObject({
  type: z.literal('python'),
  name: ShortName,
  source: z
    .string()
    .min(1)
    .max(256_000)
    .describe(
      'Defines `grade(sample, item)`, which returns a number. Python 3.14 with its standard library, in a sandbox ' +
        'without files, network and processes, with 256 MiB and 10 seconds an answer.',
    ),
  image_tag: z.string().max(100).nullish().describe('Without effect: there is one image.'),
  pass_threshold: z.number().default(0.5),
})

export const EndpointGrader = z.strictObject({
  type: z.literal('endpoint'),
  name: ShortName,
  url: z
    .string()
    .min(1)
    .max(2000)
    .describe('An https address that is posted `{"grader", "sample", "item"}` and answers `{"score": 0.5}`.'),
  secret_name: z
    .string()
    .regex(/^[a-z0-9_-]{1,64}$/, 'must be letters, digits, _ and -, at most 64')
    .default('default')
    .describe('Which secret of the account signs the requests, as webhooks are signed.'),
  timeout_seconds: z.number().min(1).max(120).default(30).describe('How long an answer may take.'),
  pass_threshold: z.number().default(0.5),
})

const simple = [
  StringCheckGrader,
  TextSimilarityGrader,
  LabelModelGrader,
  ScoreModelGrader,
  JsonSchemaGrader,
  JsonEqualGrader,
  ContainsGrader,
  RegexGrader,
  ToolCallGrader,
  PythonGrader,
  EndpointGrader,
] as const
const types = { error: `must be one of ${[...simple.map(({ shape }) => shape.type.value), 'multi'].join(', ')}` }
export const SimpleGrader = z.discriminatedUnion('type', simple, types)
export type SimpleGrader = z.infer<typeof SimpleGrader>

/** Names that every object of JavaScript has. */
const isReserved = (name: string) => name in {}

export const MultiGrader = z.strictObject({
  type: z.literal('multi'),
  name: ShortName,
  graders: z
    .record(z.string().regex(/^[a-zA-Z_]\w{0,63}$/, 'must be a name of letters, digits and _'), SimpleGrader)
    .refine((graders) => !Object.keys(graders).some(isReserved), 'have a reserved name'),
  calculate_output: z
    .string()
    .min(1)
    .max(1000)
    .describe('Arithmetic over the scores by name: `0.5 * a + 0.5 * min(b, c)`.'),
  pass_threshold: z.number().default(0.5),
})

export const Grader = z.discriminatedUnion('type', [...simple, MultiGrader], types)
export type Grader = z.infer<typeof Grader>

export const Graders = z
  .array(Grader)
  .min(1)
  .max(20)
  .refine((graders) => !graders.some(({ name }) => isReserved(name)), 'have a reserved name')
  .refine((graders) => new Set(graders.map(({ name }) => name)).size === graders.length, 'have a name twice')

export const GradingLimits = z.strictObject({
  error_share_max: z
    .number()
    .min(0)
    .max(1)
    .default(0.2)
    .describe('Grading ends when a larger share of the answers has no score, because a grader failed.'),
  judge_tokens_max: z
    .int()
    .min(1)
    .optional()
    .describe('Grading ends when its judges have used so many tokens, of prompts and answers. Default: no limit.'),
  judge_cost_max: z
    .number()
    .gt(0)
    .optional()
    .describe('The same by the cost of its judges, in the currency of the prices. Default: no limit.'),
})
export type GradingLimits = z.infer<typeof GradingLimits>

export const gradingDefaults = GradingLimits.parse({})

/** What judges took. */
export const JudgeUsage = z.object({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  cost: z.number().describe('By the prices when they were asked, in the currency of the service.'),
})
export type JudgeUsage = z.infer<typeof JudgeUsage>

export const failureKinds = ['row', 'runtime', 'timeout', 'unavailable', 'form'] as const

/** What one grader gave to one answer. */
export const GraderResult = z.object({
  score: z.number().nullable().describe('Null if the grader failed: it is no score of 0.'),
  passed: z.boolean(),
  label: z.string().optional(),
  error: z.string().optional().describe('Why the grader failed, or why its score is 0.'),
  failure: z
    .enum(failureKinds)
    .optional()
    .describe(
      'What failed: `row` lacks a field, `runtime` the code, `timeout` its time, `unavailable` a service that it ' +
        'asks, `form` what that said.',
    ),
  latency_ms: z.number().optional(),
  parts: z.record(z.string(), z.number().nullable()).optional().describe('Scores of the parts of `multi`.'),
  judge: JudgeUsage.optional(),
})
export type GraderResult = z.infer<typeof GraderResult>

/** A grader over all answers that it was given. */
export const GraderFigures = z.object({
  answers: z.int(),
  errors: z.int().describe('Answers that it could not score. They count in no mean.'),
  score: z.number().nullable().describe('Mean of its scores.'),
  latency_ms: z.object({ mean: z.number(), p95: z.number() }).nullable(),
  last_error: z.string().nullable(),
})
export type GraderFigures = z.infer<typeof GraderFigures>
