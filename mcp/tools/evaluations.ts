// Evaluations: answers of a model, scored beside those of a baseline.
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import type { CreateEvaluationInput, GradersInput, Evaluation as ServiceEvaluation } from '../../sdk/index.ts'
import { TuneryError } from '../../sdk/index.ts'
import { asking, type CostEstimate, confirmation } from '../confirm.ts'
import { baseOf, priceOf } from '../prices.ts'
import { creates, defineTool, destroys, reads, type ToolContext } from './tool.ts'

const poll_ms = 2000

const Interval = z.object({ mean: z.number(), low: z.number().nullable(), high: z.number().nullable() })
const Side = z.object({
  score: Interval.nullable(),
  pass_rate: z.number().nullable(),
  rows: z.number(),
  graders: z.record(z.string(), z.number()).describe('Mean score of each grader.'),
  errors: z.number().describe('Rows without an answer or a score.'),
  grader_figures: z
    .record(z.string(), z.object({ errors: z.number(), last_error: z.string().nullable() }))
    .optional()
    .describe('Answers that a grader failed to score: they count in no mean.'),
})
const Evaluation = z.object({
  id: z.string(),
  name: z.string(),
  status: z.enum(['queued', 'running', 'completed', 'failed', 'cancelled']),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  model: z.string().nullable(),
  baseline: z.string().nullable(),
  dataset: z.string(),
  rows: z.number(),
  trained_rows: z
    .number()
    .nullable()
    .describe(
      'How many of these rows the model was trained on: a score on rows that it has seen says little. Tell the user.',
    ),
  done: z.number().describe('Answers that are scored, of both models.'),
  result: z
    .object({
      model: Side,
      baseline: Side.nullable(),
      difference: Interval.extend({ better: z.number(), worse: z.number(), equal: z.number() })
        .nullable()
        .describe('Score of the model less that of the baseline, with the 95 % interval.'),
    })
    .nullable()
    .describe('Figures of the rows that have been scored so far.'),
  created_at: z.string(),
  finished_at: z.string().nullable(),
})

/** Whether the answer is the known one, word for word. */
const exact: GradersInput = [
  {
    type: 'string_check',
    name: 'exact',
    input: '{{sample.output_text}}',
    reference: '{{item.reference}}',
    operation: 'eq',
  },
]

const Grader = z.looseObject({
  type: z.enum([
    'string_check',
    'text_similarity',
    'contains',
    'regex',
    'json_schema',
    'json_equal',
    'tool_call',
    'label_model',
    'score_model',
    'python',
    'endpoint',
    'multi',
  ]),
  name: z.string().min(1).max(64),
})

const evaluate = defineTool({
  name: 'evaluate_model',
  title: 'Evaluate a model',
  description:
    'Lets a model answer rows of a dataset and scores the answers, beside those of a baseline (give the base that it ' +
    'was trained from). Use rows that it was not trained on, such as those that its job held out (`held_out_by`). It ' +
    'costs: the user is asked first, with the estimate; where the client cannot the first call returns it with a ' +
    '`confirmation`. Then get_evaluation.',
  scopes: ['tuning:write', 'datasets:read', 'inference'],
  input: z.strictObject({
    model: z.string().min(1).max(256).describe('A model (mdl_…), a deployment or a base.'),
    baseline: z.string().min(1).max(256).optional().describe('What to compare with.'),
    dataset: z.string().min(1).max(100).describe('The rows, ds_…'),
    graders: z
      .array(Grader)
      .min(1)
      .max(10)
      .optional()
      .describe(
        'How answers are scored. Default: equal to the answer of the row, ' +
          '{"type":"string_check","name":"exact","input":"{{sample.output_text}}",' +
          '"reference":"{{item.reference}}","operation":"eq"} (or ne, like, ilike). Others: ' +
          '{"type":"text_similarity","name":"close","input":…,"reference":…,"evaluation_metric":"fuzzy_match",' +
          '"pass_threshold":0.8}; {"type":"json_equal","name":"json"}; ' +
          '{"type":"score_model","name":"judge","model":…,"input":[{"role":"user","content":…}],"range":[0,1]}; ' +
          '{"type":"python","name":"code","source":"def grade(sample, item): return 1.0"} (in a sandbox, standard ' +
          'library; sample["output_text"]); {"type":"endpoint","name":"mine","url":"https://…"}; ' +
          '{"type":"multi","name":"all","graders":{"a":{…},"b":{…}},"calculate_output":"0.7 * a + 0.3 * b"}.',
      ),
    held_out_by: z
      .string()
      .min(1)
      .max(100)
      .optional()
      .describe('A job (job_…) that was trained on this dataset: only the rows that it held out.'),
    rows: z.int().min(1).max(10_000).default(100).describe('How many rows, drawn at random but always the same ones.'),
    max_tokens: z.int().min(1).max(4096).default(256).describe('Length of an answer.'),
    temperature: z.number().min(0).max(2).default(0),
    name: z.string().min(1).max(200).optional(),
    confirmation,
  }),
  output: z.object({
    status: z.enum(['started', 'declined', 'needs_confirmation']),
    evaluation: Evaluation.optional(),
    ...asking,
  }),
  annotations: creates,
  async run(args, context) {
    const { tunery, signal, confirm } = context
    const { max_tokens, temperature, confirmation: _, graders, ...rest } = args
    // The service checks the fields of each grader.
    const body: CreateEvaluationInput = {
      ...rest,
      graders: (graders as GradersInput | undefined) ?? exact,
      sampling: { max_tokens, temperature },
    }
    const against = args.baseline ? ` beside ${args.baseline}` : ''
    const confirmed = await confirm({
      tool: 'evaluate_model',
      args,
      action: `evaluate ${args.model}${against} on up to ${args.rows} rows of ${args.dataset}`,
      estimate: () => estimateEvaluation(context, body, { rows: args.rows, max_tokens }),
    })
    if (confirmed.status !== 'agreed') return confirmed
    const evaluation = await tunery.evaluations.create(body, { signal })
    return {
      summary: `Started ${evaluation.id}. Next: get_evaluation with wait_seconds.`,
      data: { status: 'started' as const, evaluation },
    }
  },
})

async function estimateEvaluation(
  { tunery, signal }: ToolContext,
  { model, baseline, dataset, graders }: CreateEvaluationInput,
  limits: { rows: number; max_tokens: number },
): Promise<CostEstimate> {
  const models = baseline === undefined ? [model] : [model, baseline]
  const base = await baseOf(tunery, model, signal)
  const notes = ['Tokens and price are the most that it can be: answers are usually shorter.']
  // A file of OpenAI's API is no dataset, and its tokens are not counted.
  const validation = await tunery.datasets
    .validate(dataset, base ? { model_id: base.id } : {}, { signal })
    .catch((error: unknown) => {
      if (error instanceof TuneryError && error.status < 500 && error.code !== 'invalid_api_key') return undefined
      throw error
    })
  const rows = Math.min(limits.rows, validation?.total_samples ?? limits.rows)
  const counted = validation?.tokens
  const prompt_tokens = counted && Math.ceil((rows * counted.total) / Math.max(1, counted.counted_rows))
  if (prompt_tokens === undefined) notes.push('The tokens of the rows could not be counted before.')
  const judges = graders
    .flatMap((grader) => (grader.type === 'multi' ? Object.values(grader.graders) : [grader]))
    .filter(({ type }) => type === 'label_model' || type === 'score_model').length
  if (judges > 0) notes.push(`${judges * rows * models.length} answers of judging models are not in it.`)
  const completion_tokens = rows * limits.max_tokens
  return {
    seconds: await secondsOf({ tunery, signal }, models, rows),
    tokens: prompt_tokens === undefined ? null : models.length * (prompt_tokens + completion_tokens),
    price:
      prompt_tokens === undefined || judges > 0
        ? null
        : await priceOf(
            tunery,
            models.map((model) => ({ model: model, prompt_tokens, completion_tokens })),
            signal,
          ),
    memory_mb: null,
    notes,
  }
}

/** As long as the latest evaluation of these models took for an answer; null if there is none. */
async function secondsOf(
  { tunery, signal }: Pick<ToolContext, 'tunery' | 'signal'>,
  models: string[],
  rows: number,
): Promise<number | null> {
  const { items } = await tunery.evaluations.list({ limit: 50 }, { signal })
  const like = items.find(
    ({ status, model, done }) => status === 'completed' && model !== null && models.includes(model) && done > 0,
  )
  if (!like?.started_at || !like.finished_at) return null
  const took_ms = Date.parse(like.finished_at) - Date.parse(like.started_at)
  return Math.ceil((took_ms / 1000 / like.done) * rows * models.length)
}

const trainedOn = ({ trained_rows, rows }: ServiceEvaluation) =>
  trained_rows ? ` The model was trained on ${trained_rows} of the ${rows} rows: its score on them says little.` : ''

const isOver = ({ status }: ServiceEvaluation) => status !== 'queued' && status !== 'running'

const Answer = z.object({
  output: z.string().nullable(),
  score: z.number().nullable().describe('Null if a grader failed.'),
  passed: z.boolean(),
})

const getEvaluation = defineTool({
  name: 'get_evaluation',
  title: 'Get an evaluation',
  description:
    'State and result of an evaluation, and some of its rows: what got worse against the baseline comes first. With ' +
    '`wait_seconds` it waits for the end.',
  scopes: ['tuning:read', 'datasets:read'],
  input: z.strictObject({
    evaluation_id: z.string().min(1).max(100),
    wait_seconds: z.int().min(0).max(300).default(0).describe('Many clients end calls after 60 s.'),
    rows: z.int().min(0).max(20).default(5).describe('How many rows with their answers.'),
  }),
  output: z.object({
    ended: z.boolean(),
    evaluation: Evaluation,
    rows: z.array(
      z.object({
        row: z.number(),
        item: z.record(z.string(), z.unknown()),
        model: Answer.nullable(),
        baseline: Answer.nullable(),
        difference: z.number().nullable(),
      }),
    ),
  }),
  annotations: { ...reads, idempotentHint: true },
  async run({ evaluation_id, wait_seconds, rows }, { tunery, signal, progress }) {
    const until = Date.now() + wait_seconds * 1000
    let evaluation = await tunery.evaluations.get(evaluation_id, { signal })
    while (!isOver(evaluation) && Date.now() < until) {
      const all = evaluation.rows * (evaluation.baseline === null ? 1 : 2)
      progress(`${evaluation.done} of ${all} answers`, all > 0 ? evaluation.done / all : undefined)
      await sleep(Math.min(poll_ms, until - Date.now()), undefined, { signal })
      evaluation = await tunery.evaluations.get(evaluation_id, { signal })
    }
    const page = rows > 0 ? await tunery.evaluations.rows(evaluation_id, { limit: rows }, { signal }) : { items: [] }
    const { result } = evaluation
    const score = result?.model.score ? ` Score ${result.model.score.mean.toFixed(3)}` : ''
    const against = result?.baseline?.score ? `, baseline ${result.baseline.score.mean.toFixed(3)}` : ''
    return {
      summary: `${evaluation.id} is ${evaluation.status}.${score}${against}${score && '.'}${trainedOn(evaluation)}`,
      data: { ended: isOver(evaluation), evaluation, rows: page.items },
    }
  },
})

const cancelEvaluation = defineTool({
  name: 'cancel_evaluation',
  title: 'Cancel an evaluation',
  description: 'Ends a queued or running evaluation. What is scored is kept.',
  scopes: ['tuning:write'],
  input: z.strictObject({ evaluation_id: z.string().min(1).max(100) }),
  output: z.object({ evaluation: Evaluation }),
  annotations: destroys,
  async run({ evaluation_id }, { tunery, signal }) {
    const evaluation = await tunery.evaluations.cancel(evaluation_id, { signal })
    return { summary: `${evaluation.id} is ${evaluation.status}.`, data: { evaluation } }
  },
})

export const evaluationTools = [evaluate, getEvaluation, cancelEvaluation]
