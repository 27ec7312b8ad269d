import type { ListQuery } from '../../contract/common.ts'
import type { Db, Trx } from '../db/open.ts'
import { timedPage } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'

export type EvaluationRow = Row<'evaluations'>
export type AnswerRow = Row<'evaluation_answers'>
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
