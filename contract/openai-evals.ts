// OpenAI's evals: graders with a name, and their runs. A run is an evaluation of `/evaluations` in that API's shape.
import { z } from 'zod'
import { ReasoningEffort, ResponseFormat, Tool } from './chat.ts'
import { DisplayName, JsonObject, Metadata } from './common.ts'
import { ItemReference } from './evaluations.ts'
import { CursorQuery, openaiList } from './files.ts'
import { Graders, TemplateMessage } from './graders.ts'
import { list } from './lists.ts'
import { FunctionTool, TextFormat } from './responses.ts'
import { routesOf } from './route.ts'
import { Seed } from './sampling.ts'

/** Rows that one request may bring. Longer lists come as a file. */
export const inlineRowsMax = 1000

const route = routesOf({ tag: 'Evals', openai: true })

const SourceConfig = z.discriminatedUnion(
  'type',
  [
    z.looseObject({
      type: z.literal('custom'),
      item_schema: JsonObject.describe('JSON JsonObject of the rows. A run with another row fails.'),
      include_sample_schema: z.boolean().nullish().describe('Whether graders see an answer.'),
    }),
    z.looseObject({
      type: z.enum(['logs', 'stored_completions']),
      metadata: Metadata.nullish().describe('Which stored completions its runs take.'),
    }),
  ],
  { error: 'must be one of custom, logs, stored_completions' },
)
export type SourceConfig = z.infer<typeof SourceConfig>

export const CreateEval = z.looseObject({
  name: DisplayName.nullish(),
  metadata: Metadata.nullish(),
  data_source_config: SourceConfig,
  testing_criteria: Graders.describe('The graders.'),
})
export type CreateEval = z.infer<typeof CreateEval>

export const UpdateEval = z.looseObject({
  name: DisplayName.nullish(),
  metadata: Metadata.nullish().describe('All pairs: they replace those before.'),
})
export type UpdateEval = z.infer<typeof UpdateEval>

const Row = z.looseObject({
  item: JsonObject,
  sample: JsonObject.nullish().describe('The answer, if no model is asked.'),
})
export const FileContent = z.looseObject({
  type: z.literal('file_content'),
  content: list(Row, { min: 1, max: inlineRowsMax }).describe('Becomes a file of the account.'),
})
export const FileId = z.looseObject({ type: z.literal('file_id'), id: z.string().min(1).max(100) })
const seconds = z.int().min(0).max(253_402_300_799).nullish().describe('Unix seconds.')
const StoredCompletions = z.looseObject({
  type: z.literal('stored_completions'),
  created_after: seconds,
  created_before: seconds,
  limit: z.int().min(1).nullish(),
  metadata: Metadata.nullish(),
  model: z.string().max(256).nullish(),
})
const source = (type: string) => `must be one of ${type}`

const InputMessages = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('template'), template: list(TemplateMessage, { min: 1, max: 50 }) }),
  z.looseObject({ type: z.literal('item_reference'), item_reference: ItemReference }),
])

const temperature = z.number().min(0).max(2).nullish().describe('Default 0.')
const max_completion_tokens = z.int().min(1).max(4096).nullish().describe('Default 512.')
const common = {
  temperature,
  max_completion_tokens,
  top_p: z.number().gt(0).max(1).nullish(),
  seed: Seed.nullish(),
  reasoning_effort: ReasoningEffort.nullish(),
}
const target = { model: z.string().min(1).max(256).nullish(), input_messages: InputMessages.nullish() }

export const DataSource = z.discriminatedUnion(
  'type',
  [
    z.looseObject({
      type: z.literal('jsonl'),
      source: z.discriminatedUnion('type', [FileContent, FileId], { error: source('file_content, file_id') }),
    }),
    z.looseObject({
      type: z.literal('completions'),
      source: z.discriminatedUnion('type', [FileContent, FileId, StoredCompletions], {
        error: source('file_content, file_id, stored_completions'),
      }),
      ...target,
      sampling_params: z
        .looseObject({
          ...common,
          response_format: ResponseFormat.nullish(),
          tools: list(Tool, { max: 128 }).nullish(),
        })
        .nullish(),
    }),
    z.looseObject({
      type: z.literal('responses'),
      source: z.discriminatedUnion('type', [FileContent, FileId], {
        error: `${source('file_content, file_id')}: stored responses are not offered`,
      }),
      ...target,
      sampling_params: z
        .looseObject({
          ...common,
          text: z.looseObject({ format: TextFormat.nullish() }).nullish(),
          tools: list(FunctionTool, { max: 128 }).nullish(),
        })
        .nullish(),
    }),
  ],
  { error: 'must be one of jsonl, completions, responses' },
)
export type DataSource = z.infer<typeof DataSource>

export const CreateRun = z.looseObject({
  name: DisplayName.nullish(),
  metadata: Metadata.nullish(),
  data_source: DataSource,
})
export type CreateRun = z.infer<typeof CreateRun>

export const Eval = z.object({
  id: z.string(),
  object: z.literal('eval'),
  name: z.string(),
  created_at: z.int(),
  data_source_config: z.looseObject({ type: z.string(), schema: JsonObject }),
  testing_criteria: z.array(z.looseObject({})),
  metadata: Metadata,
})
export type Eval = z.infer<typeof Eval>

export const runStatuses = ['queued', 'in_progress', 'completed', 'canceled', 'failed'] as const

export const Run = z.object({
  id: z.string().describe('Also the id of the evaluation.'),
  object: z.literal('eval.run'),
  eval_id: z.string(),
  name: z.string(),
  model: z.string().nullable(),
  status: z.enum(runStatuses),
  created_at: z.int(),
  data_source: z.looseObject({ type: z.string() }),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  metadata: Metadata,
  report_url: z.string().describe('Where the evaluation is.'),
  result_counts: z.object({ total: z.int(), passed: z.int(), failed: z.int(), errored: z.int() }),
  per_model_usage: z.array(
    z.object({
      model_name: z.string(),
      invocation_count: z.int(),
      prompt_tokens: z.int(),
      cached_tokens: z.int(),
      completion_tokens: z.int(),
      total_tokens: z.int(),
    }),
  ),
  per_testing_criteria_results: z.array(z.object({ testing_criteria: z.string(), passed: z.int(), failed: z.int() })),
})
export type Run = z.infer<typeof Run>

const Message = z.looseObject({ role: z.string(), content: z.string().nullable() })
export const OutputItem = z.object({
  id: z.string(),
  object: z.literal('eval.run.output_item'),
  created_at: z.int(),
  eval_id: z.string(),
  run_id: z.string(),
  status: z.enum(['pass', 'fail', 'error']),
  datasource_item_id: z.int().describe('The number of the row, counted from 1.'),
  datasource_item: JsonObject,
  results: z.array(
    z.looseObject({
      name: z.string(),
      type: z.string(),
      passed: z.boolean(),
      score: z.number().nullable().describe('Null if the grader failed.'),
      sample: JsonObject.nullable(),
    }),
  ),
  sample: z.object({
    input: z.array(Message),
    output: z.array(Message),
    model: z.string(),
    finish_reason: z.string(),
    temperature: z.number(),
    top_p: z.number(),
    seed: Seed,
    max_completion_tokens: z.int(),
    usage: z.object({
      prompt_tokens: z.int(),
      cached_tokens: z.int(),
      completion_tokens: z.int(),
      total_tokens: z.int(),
    }),
    error: z.object({ code: z.string(), message: z.string() }).nullable(),
  }),
})
export type OutputItem = z.infer<typeof OutputItem>

const EvalParams = z.object({ eval_id: z.string() })
const RunParams = EvalParams.extend({ run_id: z.string() })
const order = z.enum(['asc', 'desc']).default('asc').describe('By time of creation. Default asc.')

export const EvalQuery = CursorQuery.extend({
  order,
  order_by: z.enum(['created_at', 'updated_at']).default('created_at').describe('Default created_at.'),
})
export type EvalQuery = z.infer<typeof EvalQuery>
export const RunQuery = CursorQuery.extend({ order, status: z.enum(runStatuses).optional() })
export type RunQuery = z.infer<typeof RunQuery>
export const OutputItemQuery = CursorQuery.extend({
  order: z.enum(['asc', 'desc']).default('asc').describe('By row. Default asc.'),
  status: z.enum(['pass', 'fail']).optional().describe('`fail`: also those with an error.'),
})
export type OutputItemQuery = z.infer<typeof OutputItemQuery>

export const createEval = route('POST', '/evals', {
  scope: 'tuning:write',
  summary: 'Create an eval: graders, and what rows they are for',
  body: CreateEval,
  responses: { 201: Eval },
})
export const listEvals = route('GET', '/evals', {
  scope: 'tuning:read',
  summary: 'The evals of the account',
  query: EvalQuery,
  responses: { 200: openaiList(Eval) },
})
export const getEval = route('GET', '/evals/{eval_id}', {
  scope: 'tuning:read',
  summary: 'One eval',
  params: EvalParams,
  responses: { 200: Eval },
})
export const updateEval = route('POST', '/evals/{eval_id}', {
  scope: 'tuning:write',
  summary: 'Change the name or the metadata of an eval',
  params: EvalParams,
  body: UpdateEval,
  responses: { 200: Eval },
})
export const deleteEval = route('DELETE', '/evals/{eval_id}', {
  scope: 'tuning:write',
  summary: 'Delete an eval with its runs, none of which may be running',
  params: EvalParams,
  responses: { 200: z.object({ object: z.literal('eval.deleted'), deleted: z.literal(true), eval_id: z.string() }) },
})
export const createRun = route('POST', '/evals/{eval_id}/runs', {
  scope: 'tuning:write',
  also: ['datasets:read', 'inference'],
  summary: 'Let a model answer rows, or take the answers that they bring, and grade them',
  params: EvalParams,
  body: CreateRun,
  responses: { 201: Run },
})
export const listRuns = route('GET', '/evals/{eval_id}/runs', {
  scope: 'tuning:read',
  summary: 'The runs of an eval',
  params: EvalParams,
  query: RunQuery,
  responses: { 200: openaiList(Run) },
})
export const getRun = route('GET', '/evals/{eval_id}/runs/{run_id}', {
  scope: 'tuning:read',
  summary: 'One run, with the result so far',
  params: RunParams,
  responses: { 200: Run },
})
export const cancelRun = route('POST', '/evals/{eval_id}/runs/{run_id}/cancel', {
  scope: 'tuning:write',
  frees: true,
  summary: 'Cancel a run; what is graded is kept',
  params: RunParams,
  responses: { 200: Run },
})
export const deleteRun = route('DELETE', '/evals/{eval_id}/runs/{run_id}', {
  scope: 'tuning:write',
  summary: 'Delete a run that has ended',
  params: RunParams,
  responses: { 200: z.object({ object: z.literal('eval.run.deleted'), deleted: z.literal(true), run_id: z.string() }) },
})
export const listOutputItems = route('GET', '/evals/{eval_id}/runs/{run_id}/output_items', {
  scope: 'tuning:read',
  also: ['datasets:read'],
  summary: 'The answers of a run and their grades, by row',
  params: RunParams,
  query: OutputItemQuery,
  responses: { 200: openaiList(OutputItem) },
})
export const getOutputItem = route('GET', '/evals/{eval_id}/runs/{run_id}/output_items/{output_item_id}', {
  scope: 'tuning:read',
  also: ['datasets:read'],
  summary: 'One answer and its grades',
  params: RunParams.extend({ output_item_id: z.string() }),
  responses: { 200: OutputItem },
})
