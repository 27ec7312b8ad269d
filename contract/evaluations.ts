import { z } from 'zod'
import { ChatTemplateKwargs, ReasoningEffort, ResponseFormat, Tool } from './chat.ts'
import { Deleted, Description, DisplayName, ListQuery, Metadata, page, RowsQuery, Time } from './common.ts'
import { GraderFigures, GraderResult, Graders, GradingLimits, JudgeUsage, TemplateMessage } from './graders.ts'
import { list } from './lists.ts'
import { routesOf } from './route.ts'
import { Seed } from './sampling.ts'

/** Rows of one evaluation, at most. */
export const evaluationRowsMax = 10_000

export const evaluationStatuses = ['queued', 'running', 'completed', 'failed', 'cancelled'] as const

/** The name of a field of the row, with or without `item.` before it. */
export const ItemReference = z
  .string()
  .refine(
    (name) => name.length <= 500 && /^[^\s.{}]+(\.[^\s.{}]+)*$/.test(name),
    'must be a field of the row, such as item.input',
  )

export const EvaluationTemplate = z.union([
  z.array(TemplateMessage).min(1).max(50),
  z.strictObject({ item_reference: ItemReference }),
])

const Sampling = z.strictObject({
  temperature: z.number().min(0).max(2).default(0).describe('Temperature of the answers.'),
  max_tokens: z.int().min(1).max(4096).default(512).describe('Length of an answer, in tokens.'),
  seed: Seed.default(42).describe('Seed of the answers.'),
  top_p: z.number().gt(0).max(1).optional(),
  reasoning_effort: ReasoningEffort.optional().describe('How much to think, as in chat completions.'),
  chat_template_kwargs: ChatTemplateKwargs.optional(),
  response_format: ResponseFormat.optional().describe('The form of the answers, as in chat completions.'),
  tools: list(Tool, { max: 128 }).optional().describe('Tools of the requests whose row has none of its own.'),
})

export const samplingDefaults = Sampling.parse({})

export const CreateEvaluation = z.strictObject({
  model: z.string().min(1).max(256).describe('What is evaluated: a model, or the name of a deployment.'),
  baseline: z.string().min(1).max(256).optional().describe('A model that answers the same rows, to compare with.'),
  dataset: z
    .string()
    .min(1)
    .max(100)
    .describe('The rows: a dataset of the account, or a file with the purpose `evals`.'),
  graders: Graders.describe(
    'How an answer is scored. With several the score of a row is their mean. At most 50 with the parts of `multi`.',
  ),
  grading: GradingLimits.optional().describe('When grading ends early.'),
  template: EvaluationTemplate.optional().describe(
    'The messages of each request, with `{{item.…}}` for fields of the row, or the field that has them. ' +
      'Default: the messages of the row before its answer.',
  ),
  held_out_by: z
    .string()
    .min(1)
    .max(100)
    .optional()
    .describe(
      'A job that was trained on this dataset: only the rows that it held out are evaluated, which its model has not ' +
        'learned from.',
    ),
  rows: z
    .int()
    .min(1)
    .max(evaluationRowsMax)
    .optional()
    .describe(`How many rows, drawn at random but always the same ones. Default: all, up to ${evaluationRowsMax}.`),
  sampling: Sampling.default(samplingDefaults).describe('How the answers are made.'),
  name: DisplayName.optional().describe('Default: the names of the model and the dataset.'),
  description: Description.default('').describe('What you want to remember of it.'),
  metadata: Metadata.default({}).describe('Up to 16 pairs of your own.'),
})
export type CreateEvaluation = z.infer<typeof CreateEvaluation>

const Interval = z.object({
  mean: z.number(),
  low: z.number().nullable().describe('Lower end of the 95 % confidence interval. Null for fewer than two rows.'),
  high: z.number().nullable(),
})

export const EvaluationSide = z.object({
  model: z.string().nullable().describe('Null if the rows bring their answers.'),
  score: Interval.nullable().describe('Null until a row is scored.'),
  pass_rate: z.number().nullable().describe('Share of the rows that pass every grader.'),
  rows: z.int().describe('Rows that are answered and scored.'),
  passed: z.int().describe('Rows that pass every grader.'),
  graders: z.record(z.string(), z.number()).describe('Mean score of each grader.'),
  passed_by_grader: z.record(z.string(), z.int()).describe('Rows that pass each grader.'),
  errors: z.int().describe('Rows without an answer, which count as 0, and rows without a score.'),
  ungraded: z.int().optional().describe('Rows without a score, because a grader failed. They count in no mean.'),
  grader_figures: z.record(z.string(), GraderFigures).optional().describe('Errors and latency of each grader.'),
  judges: JudgeUsage.extend({ requests: z.int() }).optional().describe('What the models that judge took.'),
  latency_ms: z.object({ p50: z.number(), p95: z.number() }).nullable(),
  prompt_tokens: z.int(),
  cached_tokens: z.int().describe('The cached part of the prompt tokens.'),
  completion_tokens: z.int(),
})
export type EvaluationSide = z.infer<typeof EvaluationSide>

export const Evaluation = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  metadata: Metadata,
  status: z.enum(evaluationStatuses),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  model: z.string().nullable().describe('Null if the rows bring their answers.'),
  baseline: z.string().nullable(),
  dataset: z.string(),
  eval: z.string().nullable().describe('The eval of OpenAI’s API that it is a run of.'),
  graders: z.array(z.looseObject({})),
  grading: GradingLimits,
  template: EvaluationTemplate.nullable(),
  // A list of a request is read by a transform, which an answer cannot be written by.
  sampling: Sampling.extend({ tools: z.array(Tool).optional() }),
  held_out_by: z.string().nullable().describe('The job whose held-out rows these are.'),
  rows: z.int().describe('How many rows are evaluated.'),
  trained_rows: z
    .int()
    .nullable()
    .describe(
      'How many of these rows the model was trained on, by its lineage: it has seen their answers, so its score on ' +
        'them says little about new rows. Null if that is not known.',
    ),
  done: z.int().describe('Answers that are scored, of both models.'),
  result: z
    .object({
      model: EvaluationSide,
      baseline: EvaluationSide.nullable(),
      difference: Interval.extend({
        test: z.string().describe('The test behind the interval.'),
        better: z.int().describe('Rows on which the model scores higher than the baseline.'),
        worse: z.int(),
        equal: z.int(),
      })
        .nullable()
        .describe('Score of the model less that of the baseline, row by row.'),
    })
    .nullable()
    .describe('Figures of the rows that have been scored so far.'),
  created_at: Time,
  started_at: Time.nullable(),
  finished_at: Time.nullable(),
})
export type Evaluation = z.infer<typeof Evaluation>

export const EvaluationAnswer = z.object({
  output: z.string().nullable(),
  tool_calls: z.array(z.unknown()).optional(),
  score: z.number().nullable().describe('Null if a grader failed.'),
  passed: z.boolean(),
  graders: z.record(z.string(), GraderResult),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  finish_reason: z.string().nullable().describe('`length`: the answer was cut at `max_tokens`.'),
  latency_ms: z.number().nullable(),
})
export type EvaluationAnswer = z.infer<typeof EvaluationAnswer>

export const EvaluationRow = z.object({
  row: z.int().describe('Its number in the dataset, counted from 1.'),
  item: z.record(z.string(), z.unknown()),
  model: EvaluationAnswer.nullable(),
  baseline: EvaluationAnswer.nullable(),
  difference: z.number().nullable().describe('Score of the model less that of the baseline.'),
})
export type EvaluationRow = z.infer<typeof EvaluationRow>

const route = routesOf({ tag: 'Evaluations' })
const IdParams = z.object({ evaluation_id: z.string() })

export const createEvaluation = route('POST', '/evaluations', {
  scope: 'tuning:write',
  also: ['datasets:read', 'inference'],
  summary: 'Let a model answer the rows of a dataset, and score its answers, beside those of a baseline',
  body: CreateEvaluation,
  responses: { 201: Evaluation },
})
export const listEvaluationRuns = route('GET', '/evaluations', {
  scope: 'tuning:read',
  summary: 'The evaluations of the account, newest first',
  query: ListQuery,
  responses: { 200: page(Evaluation) },
})
export const getEvaluation = route('GET', '/evaluations/{evaluation_id}', {
  scope: 'tuning:read',
  summary: 'One evaluation, with the result so far',
  params: IdParams,
  responses: { 200: Evaluation },
})
export const listEvaluationRows = route('GET', '/evaluations/{evaluation_id}/rows', {
  scope: 'tuning:read',
  also: ['datasets:read'],
  summary: 'The answers and their scores: what got worse first',
  params: IdParams,
  query: RowsQuery,
  responses: { 200: page(EvaluationRow) },
})
export const cancelEvaluation = route('POST', '/evaluations/{evaluation_id}/cancel', {
  scope: 'tuning:write',
  frees: true,
  summary: 'Cancel an evaluation; what is scored is kept',
  params: IdParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Evaluation },
})
export const deleteEvaluation = route('DELETE', '/evaluations/{evaluation_id}', {
  scope: 'tuning:write',
  summary: 'Delete an evaluation that has ended, with its answers',
  params: IdParams,
  responses: { 200: Deleted },
})
