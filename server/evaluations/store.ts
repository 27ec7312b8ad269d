import type { ListQuery } from '../../contract/common.ts'
import type { CreateEvaluation } from '../../contract/evaluations.ts'
import type { EvalQuery } from '../../contract/openai-evals.ts'
import type { Db, Trx } from '../db/open.ts'
import { timedPage } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'

export type EvaluationRow = Row<'evaluations'>
export type AnswerRow = Row<'evaluation_answers'>
export type EvalRow = Row<'evals'>
export type SideName = AnswerRow['side']

export const insert = (trx: Trx, evaluation: NewRow<'evaluations'>) =>
  trx.insertInto('evaluations').values(evaluation).execute()

export const find = (db: Db | Trx, account_id: string, id: string) =>
  db.selectFrom('evaluations').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const byId = (db: Db | Trx, id: string) =>
  db.selectFrom('evaluations').selectAll().where('id', '=', id).executeTakeFirst()

export const list = (db: Db, account_id: string, { limit }: ListQuery, after: EvaluationRow | undefined) =>
  timedPage(db.selectFrom('evaluations').selectAll().where('account_id', '=', account_id), { limit }, after)

export const update = (trx: Trx, id: string, values: Partial<EvaluationRow>) =>
  trx.updateTable('evaluations').set(values).where('id', '=', id).execute()

export async function remove(trx: Trx, id: string): Promise<void> {
  await trx.deleteFrom('evaluation_answers').where('evaluation_id', '=', id).execute()
  await trx.deleteFrom('evaluations').where('id', '=', id).execute()
}

export const templateOf = ({ template_json }: Pick<EvaluationRow, 'template_json'>): CreateEvaluation['template'] =>
  template_json ? JSON.parse(template_json) : undefined

export const samplingOf = ({ sampling_json }: Pick<EvaluationRow, 'sampling_json'>): CreateEvaluation['sampling'] =>
  JSON.parse(sampling_json)

export const insertEval = (trx: Trx, row: EvalRow) => trx.insertInto('evals').values(row).execute()

export const evalById = (db: Db | Trx, id: string) =>
  db.selectFrom('evals').selectAll().where('id', '=', id).executeTakeFirst()

const active = ['queued', 'running'] as const

export const isActive = ({ status }: Pick<EvaluationRow, 'status'>) => (active as readonly string[]).includes(status)

/** An evaluation that has not ended and reads its rows from this dataset or file. */
export const activeOfSource = (trx: Trx, id: string) =>
  trx
    .selectFrom('evaluations')
    .select('id')
    .where('dataset_id', '=', id)
    .where('status', 'in', active)
    .limit(1)
    .executeTakeFirst()

/** An evaluation that has not ended and asks this model. */
export const activeOfModel = (trx: Trx, model_id: string) =>
  trx
    .selectFrom('evaluations')
    .select('id')
    .where((or) => or.or([or('model_id', '=', model_id), or('baseline_id', '=', model_id)]))
    .where('status', 'in', active)
    .limit(1)
    .executeTakeFirst()

export const addAnswers = (trx: Trx, answers: NewRow<'evaluation_answers'>[]) =>
  trx
    .insertInto('evaluation_answers')
    .values(answers)
    .onConflict((conflict) => conflict.columns(['evaluation_id', 'row', 'side']).doNothing())
    .execute()

/** Row and side of each answer that is scored. */
export const answered = (db: Db, id: string) =>
  db.selectFrom('evaluation_answers').select(['row', 'side']).where('evaluation_id', '=', id).execute()

/** The figures of all answers. */
export const figures = (db: Db | Trx, id: string) =>
  db
    .selectFrom('evaluation_answers')
    .select([
      'row',
      'side',
      'score',
      'passed',
      'graders_json',
      'latency_ms',
      'prompt_tokens',
      'cached_tokens',
      'completion_tokens',
      'error_json',
    ])
    .where('evaluation_id', '=', id)
    .execute()
export type Figures = Awaited<ReturnType<typeof figures>>[number]

export const answersOf = (db: Db, id: string, rows: number[]) =>
  db
    .selectFrom('evaluation_answers')
    .selectAll()
    .where('evaluation_id', '=', id)
    .where('row', 'in', rows.length > 0 ? rows : [-1])
    .execute()

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
  return timedPage(query, { limit, order, by: order_by }, after)
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
  return timedPage(status === undefined ? query : query.where('status', '=', status), page, after)
}

/** Answers of the model in the order of their rows: up to `limit`, and one more if there are more. */
export function listAnswers(
  db: Db,
  id: string,
  page: { limit: number; order: 'asc' | 'desc'; passed: boolean | undefined; after: number | undefined },
) {
  let query = db
    .selectFrom('evaluation_answers')
    .selectAll()
    .where('evaluation_id', '=', id)
    .where('side', '=', 'model')
  if (page.passed !== undefined) query = query.where('passed', '=', page.passed ? 1 : 0)
  if (page.after !== undefined) query = query.where('row', page.order === 'asc' ? '>' : '<', page.after)
  return query
    .orderBy('row', page.order)
    .limit(page.limit + 1)
    .execute()
}
