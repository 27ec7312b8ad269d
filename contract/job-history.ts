import { z } from 'zod'
import { digits, ListQuery, page, RowsQuery, Time } from './common.ts'
import { validationFigures } from './fine-tuning.ts'
import { GraderResult } from './graders.ts'
import { routesOf } from './route.ts'

const route = routesOf({ tag: 'Fine-tuning' })
const IdParams = z.object({ job_id: z.string() })

/** A page of records numbered by training step, latest first. */
const StepQuery = z.strictObject({
  limit: ListQuery.shape.limit,
  after: digits(0).optional().describe('The step before which the page begins.'),
})

export const JobEvaluation = z.object({
  step: z.int(),
  validation_loss: z
    .number()
    .optional()
    .describe('Mean loss on the held-out rows. Not there with `reinforcement`, which has `validation_reward`.'),
  ...validationFigures,
  train_loss: z.number().optional().describe('Mean loss of the training rows over the epoch, up to this step.'),
  created_at: Time,
})
export const listEvaluations = route('GET', '/fine-tuning/jobs/{job_id}/evaluations', {
  scope: 'tuning:read',
  summary: 'Evaluations of a job on its held-out rows, the latest step first, also while it runs',
  params: IdParams,
  query: StepQuery,
  responses: { 200: page(JobEvaluation) },
})
export type JobEvaluation = z.infer<typeof JobEvaluation>

export const JobCheckpoint = z.object({
  step: z.int(),
  model: z
    .string()
    .nullable()
    .describe(
      'The model id of a state that is kept; inference and deployments accept it. ' +
        'Other checkpoints are for resuming after an interruption.',
    ),
  validation_loss: z.number().nullable(),
  result: z.boolean().describe('Whether it is the result of the job.'),
  created_at: Time,
})
export const listCheckpoints = route('GET', '/fine-tuning/jobs/{job_id}/checkpoints', {
  scope: 'tuning:read',
  summary:
    'Checkpoints of a job, the latest step first, also while it runs; once completed, with the models that were kept',
  params: IdParams,
  query: StepQuery,
  responses: { 200: page(JobCheckpoint) },
})

export const JobRow = z.object({
  row: z.int().describe('Its number among the rows of the dataset, counted from 1.'),
  line: z
    .int()
    .nullable()
    .describe(
      'Its line in the uploaded file; of formats without lines the number of the row. Null where the dataset is gone.',
    ),
  loss: z
    .number()
    .describe(
      'Mean loss of its learned tokens, or loss of its preference, when it was last trained on, before that step.',
    ),
  first_loss: z.number().describe('The same when it was first trained on.'),
  tokens: z.int().describe('How many of its tokens are learned.'),
  messages: z
    .array(z.unknown())
    .nullable()
    .describe('The messages of a pair, with the chosen answer. Null where the dataset was deleted.'),
  rejected: z.unknown().optional().describe('The rejected answer of a pair.'),
})
export const HeldOutRow = z.object({
  row: z.int().describe('Its number among the rows of its dataset, counted from 1.'),
  line: JobRow.shape.line,
  messages: JobRow.shape.messages,
  rejected: JobRow.shape.rejected,
})
export const listHeldOutRows = route('GET', '/fine-tuning/jobs/{job_id}/held-out', {
  scope: 'tuning:read',
  also: ['datasets:read'],
  summary:
    'The rows that a job does not learn from but is evaluated on: those that it held out of its dataset, known once ' +
    'its training begins, or all of its validation dataset; none if it is not evaluated',
  params: IdParams,
  query: RowsQuery,
  responses: { 200: page(HeldOutRow) },
})
export const listJobRows = route('GET', '/fine-tuning/jobs/{job_id}/rows', {
  scope: 'tuning:read',
  also: ['datasets:read'],
  summary: 'The rows that a completed job found strangest, worst first: where to look for wrong examples',
  params: IdParams,
  query: RowsQuery,
  responses: { 200: page(JobRow) },
})

/** What is kept of the answers of a job with `reinforcement`: enough to see what is rewarded, in bounded space. */
export const rolloutsKept = {
  /** Steps of a job, evenly spread, with the first and the last; and as many evaluations. */
  steps: 200,
  prompts: 4,
  answers: 16,
  /** The most characters of an answer's text, and of the calls of tools in it. */
  characters: 2000,
}

export const RolloutAnswer = z.object({
  text: z.string().describe(`Its first ${rolloutsKept.characters.toLocaleString('en')} characters.`),
  tool_calls: z
    .string()
    .optional()
    .describe(`Its calls of tools as JSON, the first ${rolloutsKept.characters.toLocaleString('en')} characters.`),
  episode: z
    .object({
      turns: z.int().describe('How often the model answered.'),
      messages: z
        .string()
        .describe(
          'All messages behind the prompt as JSON, the first ' +
            `${rolloutsKept.characters.toLocaleString('en')} characters.`,
        ),
    })
    .optional()
    .describe('What an environment made of it. `text` is the last answer.'),
  tokens: z.int().describe('Those that the model wrote.'),
  cut: z.boolean().describe('Whether it was cut at `max_tokens`.'),
  score: z.number().nullable().describe('The reward. Null if a grader failed: the answer is not learned from.'),
  graders: z.record(
    z.string(),
    GraderResult.pick({ score: true, label: true, error: true, failure: true, latency_ms: true }),
  ),
  watched_graders: z
    .record(z.string(), z.number().nullable())
    .optional()
    .describe('Scores of graders that are no part of the reward.'),
  error: z.string().nullable().describe('Why it has no score.'),
})
export const RolloutGroup = z.object({
  row: HeldOutRow.shape.row,
  line: JobRow.shape.line,
  messages: z
    .array(z.unknown())
    .nullable()
    .describe('The messages of its row, with the answer if it has one. Null where the dataset was deleted.'),
  answers: z.array(RolloutAnswer).describe(`The first ${rolloutsKept.answers} answers to the prompt.`),
  answer_count: z.int().describe('All answers to the prompt.'),
})
export const RolloutFigures = z.object({
  reward: z.number().nullable().describe('The mean score of all answers.'),
  prompts: z.int().describe('All prompts that were answered.'),
  answers: z.int().describe('All answers.'),
  failures: z.int().describe('Answers without a score, because a grader failed.'),
})
const Rollouts = RolloutFigures.extend({
  groups: z
    .array(RolloutGroup)
    .describe(`The first ${rolloutsKept.prompts} prompts; one with an answer that could not be scored among them.`),
})
const training = 'The answers that were learned from in this step. Null if they were not kept, or none were.'
const validation =
  'The answers to held-out prompts after this step. Null if it was not evaluated, or they were not kept.'

export const RolloutStep = z.object({
  step: z.int(),
  training: RolloutFigures.nullable().describe(training),
  validation: RolloutFigures.nullable().describe(validation),
})
export type RolloutStep = z.infer<typeof RolloutStep>
export const StepRollouts = z.object({
  step: z.int(),
  training: Rollouts.nullable().describe(training),
  validation: Rollouts.nullable().describe(validation),
})
export type StepRollouts = z.infer<typeof StepRollouts>

export const listRollouts = route('GET', '/fine-tuning/jobs/{job_id}/rollouts', {
  scope: 'tuning:read',
  summary:
    'The steps of a job with `reinforcement` whose answers can be read, the latest first, also while it runs: ' +
    `${rolloutsKept.steps} of its steps, and as many of its evaluations`,
  params: IdParams,
  query: StepQuery,
  responses: { 200: page(RolloutStep) },
})
export const getRollouts = route('GET', '/fine-tuning/jobs/{job_id}/rollouts/{step}', {
  scope: 'tuning:read',
  also: ['datasets:read'],
  summary: 'Answers of a step, with the score of each grader',
  params: IdParams.extend({ step: digits(0) }),
  responses: { 200: StepRollouts },
})
