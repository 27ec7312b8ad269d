// Evals, runs and output items in the shapes of OpenAI's API.

import type { Evaluation } from '../../../../contract/evaluations.ts'
import type { Eval, OutputItem, Run, runStatuses, SourceConfig } from '../../../../contract/openai-evals.ts'
import { unixSeconds } from '../../../../lib/utc-day.ts'
import { fromJson, fromJsonWithSeeds } from '../../../platform/db/json.ts'
import { GraderError } from '../graders/template.ts'
import { givenOf, requestOf, type Template } from '../items.ts'
import type { Result } from '../result.ts'
import type { AnswerRow, EvalRow, EvaluationRow } from '../store.ts'
import { samplingOf, templateOf } from '../store.ts'

type RunStatus = (typeof runStatuses)[number]
const statuses: Record<Evaluation['status'], RunStatus> = {
  queued: 'queued',
  running: 'in_progress',
  completed: 'completed',
  failed: 'failed',
  cancelled: 'canceled',
}
/** The status of an evaluation that that API calls so. */
export const statusOf = (status: RunStatus) =>
  (Object.keys(statuses) as Evaluation['status'][]).find((candidate) => statuses[candidate] === status)!

const sampleSchema = {
  type: 'object',
  properties: { output_text: { type: 'string' }, output_json: { type: 'object' }, output_tools: { type: 'array' } },
  required: ['output_text'],
}
const storedItemSchema = { type: 'object', properties: { input: { type: 'array' } }, required: ['input'] }

/** What graders can refer to. */
function schemaOf(config: SourceConfig): Record<string, unknown> {
  const hasSample = config.type !== 'custom' || config.include_sample_schema === true
  return {
    type: 'object',
    properties: {
      item: config.type === 'custom' ? config.item_schema : storedItemSchema,
      ...(hasSample && { sample: sampleSchema }),
    },
    required: hasSample ? ['item', 'sample'] : ['item'],
  }
}

export function toEval(row: EvalRow): Eval {
  const config = fromJson(row.source_config_json)
  const { item_schema: _, include_sample_schema: __, ...shown } = config as Record<string, unknown> & { type: string }
  return {
    id: row.id,
    object: 'eval',
    name: row.name,
    created_at: unixSeconds(row.created_at),
    data_source_config: { ...shown, schema: schemaOf(config) },
    testing_criteria: fromJsonWithSeeds(row.graders_json),
    metadata: fromJson(row.metadata_json),
  }
}

/** `row` must be the run of an eval. */
export function toRun(row: EvaluationRow, result: Result | null): Run {
  const side = result?.model
  const [rows, passed, errored] = [side?.rows ?? 0, side?.passed ?? 0, side?.errors ?? 0]
  const source = fromJson(row.data_source_json!) as { type: string; model?: string }
  const names = fromJson(row.graders_json).map(({ name }) => name)
  return {
    id: row.id,
    object: 'eval.run',
    eval_id: row.eval_id!,
    name: row.name,
    model: row.model || null,
    status: statuses[row.status],
    created_at: unixSeconds(row.created_at),
    // A gate asks another model than the run that it repeats.
    data_source: row.model === '' ? source : { ...source, model: row.model },
    error: fromJson(row.error_json),
    metadata: fromJson(row.metadata_json),
    report_url: `/v1/evaluations/${row.id}`,
    result_counts: { total: row.rows, passed, failed: rows - passed - errored, errored },
    per_model_usage:
      side && row.model !== ''
        ? [
            {
              model_name: row.model,
              invocation_count: rows,
              prompt_tokens: side.prompt_tokens,
              cached_tokens: side.cached_tokens,
              completion_tokens: side.completion_tokens,
              total_tokens: side.prompt_tokens + side.completion_tokens,
            },
          ]
        : [],
    per_testing_criteria_results: names.map((testing_criteria) => {
      const passes = (side && new Map(Object.entries(side.passed_by_grader)).get(testing_criteria)) ?? 0
      return { testing_criteria, passed: passes, failed: rows - passes }
    }),
  }
}

const itemPrefix = 'outputitem-'

/** The row of the output item with this id; undefined if it is not one of the run. */
export function rowOf(run_id: string, id: string): number | undefined {
  const head = `${itemPrefix}${run_id}-`
  const row = id.startsWith(head) ? id.slice(head.length) : ''
  return /^\d{1,15}$/.test(row) ? Number(row) : undefined
}

/** Makes the output items of a run of its answers. */
export function outputItems(run: EvaluationRow): (answer: AnswerRow) => OutputItem {
  const sampling = samplingOf(run)
  const template = templateOf(run)
  const types = new Map(fromJson(run.graders_json).map((grader) => [grader.name, grader.type]))
  return (answer) => {
    const item = fromJson(answer.item_json)
    const error = fromJson(answer.error_json)
    const grades = fromJson(answer.graders_json)
    const tool_calls = answer.tool_calls_json ? fromJson(answer.tool_calls_json) : undefined
    const { prompt_tokens, cached_tokens, completion_tokens } = answer
    return {
      id: `${itemPrefix}${run.id}-${answer.row}`,
      object: 'eval.run.output_item',
      created_at: unixSeconds(run.started_at ?? run.created_at),
      eval_id: run.eval_id!,
      run_id: run.id,
      status: error ? 'error' : answer.passed === 1 ? 'pass' : 'fail',
      datasource_item_id: answer.row,
      datasource_item: givenOf(item),
      results: Object.entries(grades).map(([name, { score, passed, ...more }]) => ({
        name,
        type: types.get(name) ?? 'unknown',
        passed,
        score,
        sample: Object.keys(more).length > 0 ? more : null,
      })),
      sample: {
        input: run.model === '' ? [] : inputOf(answer.row, item, template),
        output:
          answer.output === null && tool_calls === undefined
            ? []
            : [{ role: 'assistant', content: answer.output, ...(tool_calls && { tool_calls }) }],
        model: run.model,
        finish_reason: answer.finish_reason ?? '',
        temperature: sampling.temperature,
        top_p: sampling.top_p ?? 1,
        seed: sampling.seed,
        max_completion_tokens: sampling.max_tokens,
        usage: { prompt_tokens, cached_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens },
        error,
      },
    }
  }
}

/** Characters of the messages that the model was asked. */
export const inputLength = ({ sample }: OutputItem): number =>
  sample.input.reduce((sum, { content }) => sum + (content?.length ?? 0), 0)

/** The messages that the model was asked. */
function inputOf(
  row: number,
  item: Record<string, unknown>,
  template: Template | undefined,
): OutputItem['sample']['input'] {
  try {
    return requestOf({ row, item }, template).messages.flatMap((message) => {
      const { content, ...rest } = (message ?? {}) as { role: string; content: unknown }
      // What a row has there was the model's to refuse.
      if (typeof rest.role !== 'string') return []
      return {
        ...rest,
        content: content == null || typeof content === 'string' ? (content ?? null) : JSON.stringify(content),
      }
    })
  } catch (error) {
    if (error instanceof GraderError) return []
    throw error
  }
}
