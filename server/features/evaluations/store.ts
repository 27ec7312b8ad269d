import { sql } from 'kysely'
import type { ListQuery } from '../../../contract/common.ts'
import type { CreateEvaluation } from '../../../contract/evaluations.ts'
import { type GradingLimits, gradingDefaults } from '../../../contract/graders.ts'
import type { EvalQuery } from '../../../contract/openai-evals.ts'
import { fromJson, fromJsonWithSeeds } from '../../platform/db/json.ts'
import type { NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { bytesOf, countFitting, countRows, type Page, sizedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type EvaluationRow = Row<'evaluations'>
export type AnswerRow = Row<'evaluation_answers'>
export type EvalRow = Row<'evals'>
export type SideName = AnswerRow['side']

export const insert = (trx: Trx, evaluation: NewRow<'evaluations'>) =>
  trx.insertInto('evaluations').values(evaluation).execute()

export const find = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('evaluations').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('evaluations').selectAll().where('id', '=', id).executeTakeFirst()

const largeColumns = [
  'description',
  'metadata_json',
  'graders_json',
  'template_json',
  'sampling_json',
  'data_source_json',
  'result_json',
] as const

export const list = (db: Db, account_id: string, { limit }: ListQuery, after: EvaluationRow | undefined) =>
  sizedPage(
    db.selectFrom('evaluations').selectAll().where('account_id', '=', account_id),
    largeColumns,
    { limit },
    after,
  )

export const update = (trx: Trx, id: string, values: Partial<EvaluationRow>) =>
  trx.updateTable('evaluations').set(values).where('id', '=', id).execute()

export async function remove(trx: Trx, id: string): Promise<void> {
  await trx.deleteFrom('evaluation_answers').where('evaluation_id', '=', id).execute()
  await trx.deleteFrom('evaluations').where('id', '=', id).execute()
}

export const templateOf = ({ template_json }: Pick<EvaluationRow, 'template_json'>): CreateEvaluation['template'] =>
  template_json ? fromJson(template_json) : undefined

export const samplingOf = ({ sampling_json }: Pick<EvaluationRow, 'sampling_json'>): CreateEvaluation['sampling'] =>
  fromJsonWithSeeds(sampling_json)

/** When grading ends early. */
export const gradingOf = ({ grading_json }: Pick<EvaluationRow, 'grading_json'>): GradingLimits =>
  grading_json ? fromJson(grading_json) : gradingDefaults

export const insertEval = (trx: Trx, row: NewRow<'evals'>) => trx.insertInto('evals').values(row).execute()

export const findEvalUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('evals').selectAll().where('id', '=', id).executeTakeFirst()

const active = ['queued', 'running'] as const

export const isActive = ({ status }: Pick<EvaluationRow, 'status'>) => (active as readonly string[]).includes(status)

const needing = (trx: Trx) => trx.selectFrom('evaluations').select('id').where('status', 'in', active).limit(1)
const named = (evaluation: { id: string } | undefined) => evaluation && `the evaluation ${evaluation.id}`

/** For the rows of an evaluation: a dataset or a file. */
export const evaluationNeedsSource: NeededBy = async (trx, _account_id, id) =>
  named(await needing(trx).where('dataset_id', '=', id).executeTakeFirst())

export const evaluationNeedsModel: NeededBy = async (trx, _account_id, id) => {
  const evaluation = needing(trx).where((eb) => eb.or([eb('model_id', '=', id), eb('baseline_id', '=', id)]))
  return named(await evaluation.executeTakeFirst())
}

export const addAnswers = (trx: Trx, answers: NewRow<'evaluation_answers'>[]) =>
  trx
    .insertInto('evaluation_answers')
    .values(answers)
    .onConflict((conflict) => conflict.columns(['evaluation_id', 'row', 'side']).doNothing())
    .execute()

/** Row and side of each answer that is scored. */
export const answered = (db: Db, id: string) =>
  db.selectFrom('evaluation_answers').select(['row', 'side']).where('evaluation_id', '=', id).execute()

/** The figures of all answers but those of each grader. */
export const figures = (db: Queryable, id: string) =>
  db
    .selectFrom('evaluation_answers')
    .select([
      'row',
      'side',
      'score',
      'passed',
      'ungraded',
      'latency_ms',
      'prompt_tokens',
      'cached_tokens',
      'completion_tokens',
      sql<number>`case when error_json is null then 0 else 1 end`.as('errors'),
    ])
    .where('evaluation_id', '=', id)
    .execute()
export type Figures = Awaited<ReturnType<typeof figures>>[number]

/** Answers whose graders are read at once: at most some megabytes. */
const gradersAtOnce = 250

/** What each grader says of each answer. */
export async function* graders(db: Queryable, id: string): AsyncGenerator<Pick<AnswerRow, 'side' | 'graders_json'>> {
  for (let last = { row: -1, side: 'model' as SideName }; ; ) {
    const answers = await db
      .selectFrom('evaluation_answers')
      .select(['row', 'side', 'graders_json'])
      .where('evaluation_id', '=', id)
      .where(sql<boolean>`(row, side) > (${last.row}, ${last.side})`)
      .orderBy('row')
      .orderBy('side')
      .limit(gradersAtOnce)
      .execute()
    yield* answers
    if (answers.length < gradersAtOnce) return
    last = answers.at(-1)!
  }
}

/** The score of each answer. */
export const scores = (db: Db, id: string) =>
  db
    .selectFrom('evaluation_answers')
    .select(['row', 'side', 'score', 'ungraded'])
    .where('evaluation_id', '=', id)
    .execute()

const largeAnswerColumns = ['item_json', 'output', 'tool_calls_json', 'graders_json', 'error_json'] as const

/** The answers of a page of rows: of at most `limit` of them, in their order. */
export async function answersOf(db: Db, id: string, rows: number[], limit: number): Promise<Page<AnswerRow[]>> {
  if (rows.length === 0) return { items: [], has_more: false }
  const shown = rows.slice(0, limit)
  const answers = db.selectFrom('evaluation_answers').where('evaluation_id', '=', id)
  const sizes = await answers
    .where('row', 'in', shown)
    .groupBy('row')
    .select(['row', sql<number>`sum(${bytesOf(largeAnswerColumns)})`.as('bytes')])
    .execute()
  const bytes = new Map(sizes.map((size) => [size.row, size.bytes]))
  const fitting = shown.slice(0, countFitting(shown.map((row) => ({ bytes: bytes.get(row) ?? 0 }))))
  const answerRows = await answers.selectAll().where('row', 'in', fitting).execute()
  return {
    items: fitting.map((row) => answerRows.filter((answer) => answer.row === row)),
    has_more: rows.length > fitting.length,
  }
}

export const updateEval = (trx: Trx, id: string, values: Partial<EvalRow>) =>
  trx.updateTable('evals').set(values).where('id', '=', id).execute()

export const removeEval = (trx: Trx, id: string) => trx.deleteFrom('evals').where('id', '=', id).execute()

export function listEvals(
  db: Db,
  account_id: string,
  { limit, order, order_by }: EvalQuery,
  after: EvalRow | undefined,
) {
  const query = db.selectFrom('evals').selectAll().where('account_id', '=', account_id)
  return sizedPage(
    query,
    ['metadata_json', 'source_config_json', 'graders_json'],
    { limit, order, by: order_by },
    after,
  )
}

/** Runs of an eval, with their status. */
export const runsOf = (trx: Trx, eval_id: string) =>
  trx.selectFrom('evaluations').select(['id', 'status']).where('eval_id', '=', eval_id).execute()

export function listRuns(
  db: Db,
  eval_id: string,
  status: EvaluationRow['status'] | undefined,
  page: { limit: number; order: 'asc' | 'desc' },
  after: EvaluationRow | undefined,
) {
  const query = db.selectFrom('evaluations').selectAll().where('eval_id', '=', eval_id)
  return sizedPage(status === undefined ? query : query.where('status', '=', status), largeColumns, page, after)
}

/** Answers of the model in the order of their rows. */
export async function listAnswers(
  db: Db,
  id: string,
  page: { limit: number; order: 'asc' | 'desc'; passed: boolean | undefined; after: number | undefined },
): Promise<Page<AnswerRow>> {
  const answers = db.selectFrom('evaluation_answers').where('evaluation_id', '=', id).where('side', '=', 'model')
  let query = answers
  if (page.passed !== undefined) query = query.where('passed', '=', page.passed ? 1 : 0)
  if (page.after !== undefined) query = query.where('row', page.order === 'asc' ? '>' : '<', page.after)
  const sizes = await query
    .select(['row', bytesOf(largeAnswerColumns).as('bytes')])
    .orderBy('row', page.order)
    .limit(page.limit + 1)
    .execute()
  const count = Math.min(page.limit, countFitting(sizes))
  const rows = sizes.slice(0, count).map(({ row }) => row)
  const items = count > 0 ? await answers.selectAll().where('row', 'in', rows).orderBy('row', page.order).execute() : []
  return { items, has_more: sizes.length > count }
}

/** How many evaluations of an account wait or run. */
export const countActive = (trx: Trx, account_id: string): Promise<number> =>
  countRows(trx.selectFrom('evaluations').where('account_id', '=', account_id).where('status', 'in', active))
