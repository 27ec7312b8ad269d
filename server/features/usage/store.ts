import { type SelectQueryBuilder, sql } from 'kysely'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import type { NewRow, Row, Schema } from '../../platform/db/schema.ts'
import { addFigures, figuresOf, noFigures, type Span, type SpanFigures, toRow } from './figures.ts'
import type { UsageRow } from './journal.ts'

/** Inserts rows and skips request ids that are already there. Resolves with the inserted request ids. */
export const insert = async (trx: Trx, rows: UsageRow[]): Promise<Set<string>> => {
  const added = await trx
    .insertInto('usage')
    .values(rows)
    .onConflict((conflict) => conflict.column('request_id').doNothing())
    .returning('request_id')
    .execute()
  return new Set(added.map(({ request_id }) => request_id))
}

export const sums = [
  'requests',
  'prompt_tokens',
  'completion_tokens',
  'cached_tokens',
  'trained_tokens',
  'duration_ms',
  'cost',
] as const
export type Sums = Record<(typeof sums)[number], number>
const dayKey = ['account_id', 'day', 'model', 'model_id', 'key_id', 'kind'] as const

/** Adds to the daily sums. Each key (`dayKey`) may occur in one row only. */
export const addToDays = (trx: Trx, rows: NewRow<'usage_days'>[]) =>
  trx
    .insertInto('usage_days')
    .values(rows)
    .onConflict((conflict) =>
      conflict
        .columns([...dayKey])
        .doUpdateSet((eb) =>
          Object.fromEntries(sums.map((sum) => [sum, eb(`usage_days.${sum}`, '+', eb.ref(`excluded.${sum}`))])),
        ),
    )
    .execute()

const daysBetween = (db: Queryable, account_id: string, from: number, to: number) =>
  db.selectFrom('usage_days').where('account_id', '=', account_id).where('day', '>=', from).where('day', '<', to)

const summed = <O>(query: SelectQueryBuilder<Schema, 'usage_days', O>) =>
  query.select(sums.map((sum) => sql<number>`coalesce(sum(${sql.ref(sum)}), 0)`.as(sum)))

const toNumbers = <R extends Sums>(row: R): R => ({
  ...row,
  ...Object.fromEntries(sums.map((sum) => [sum, Number(row[sum])])),
})

/** The usage of an account from day `from` up to, but not including, day `to`. */
export const total = async (db: Queryable, account_id: string, from: number, to: number): Promise<Sums> =>
  toNumbers((await summed(daysBetween(db, account_id, from, to)).executeTakeFirstOrThrow()) as Sums)

export type GroupColumn = 'day' | 'model' | 'model_id' | 'key_id' | 'kind'

/** Like `total`, grouped and ordered by some columns; at most `limit` rows. */
export async function grouped(db: Db, account_id: string, from: number, to: number, by: GroupColumn[], limit: number) {
  let query = summed(daysBetween(db, account_id, from, to).select(by).groupBy(by))
  for (const column of by) query = query.orderBy(column)
  return ((await query.limit(limit).execute()) as (Sums & Partial<Pick<Row<'usage_days'>, GroupColumn>>)[]).map(
    toNumbers,
  )
}

/** What each account used on a day, most requests first; at most `limit` accounts. */
export const accountsOn = (db: Db, day: number, limit: number) =>
  db
    .selectFrom('usage_days')
    .innerJoin('accounts', 'accounts.id', 'usage_days.account_id')
    .where('day', '=', day)
    .select([
      'accounts.id as account_id',
      'accounts.name',
      ...(['requests', 'prompt_tokens', 'completion_tokens', 'trained_tokens', 'cost'] as const).map((sum) =>
        sql<number>`sum(${sql.ref(sum)})`.as(sum),
      ),
    ])
    .groupBy('accounts.id')
    .orderBy('requests', 'desc')
    .limit(limit)
    .execute()

/** Adds to the figures by minute and hour. */
export async function addToFigures(trx: Trx, sums: SpanFigures[]): Promise<void> {
  for (const sum of sums) {
    const { account_id, model, span, at } = sum
    const before = await trx
      .selectFrom('usage_figures')
      .selectAll()
      .where('account_id', '=', account_id)
      .where('model', '=', model)
      .where('span', '=', span)
      .where('at', '=', at)
      .executeTakeFirst()
    const all = { ...sum, ...(before ? figuresOf(before) : noFigures()) }
    addFigures(all, sum)
    const row = toRow(all)
    await trx
      .insertInto('usage_figures')
      .values(row)
      .onConflict((conflict) => conflict.columns(['account_id', 'model', 'span', 'at']).doUpdateSet(row))
      .execute()
  }
}

/** The figures of a name from `from` up to, but not including, `to`. */
export const figures = (db: Db, account_id: string, model: string, span: Span, from: number, to: number) =>
  db
    .selectFrom('usage_figures')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('model', '=', model)
    .where('span', '=', span)
    .where('at', '>=', from)
    .where('at', '<', to)
    .orderBy('at')
    .execute()

export const byRequest = (db: Db, account_id: string, request_id: string): Promise<Row<'usage'> | undefined> =>
  db
    .selectFrom('usage')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('request_id', '=', request_id)
    .executeTakeFirst()

export const thresholds = (db: Queryable, account_id: string) =>
  db.selectFrom('usage_thresholds').selectAll().where('account_id', '=', account_id).executeTakeFirst()

export const setThresholds = (trx: Trx, row: NewRow<'usage_thresholds'>) =>
  trx
    .insertInto('usage_thresholds')
    .values(row)
    .onConflict((conflict) => conflict.column('account_id').doUpdateSet(row))
    .execute()

/** Resolves with true if the notice is new. */
export const addNotice = async (trx: Trx, notice: NewRow<'usage_notices'>): Promise<boolean> =>
  (await trx
    .insertInto('usage_notices')
    .values(notice)
    .onConflict((conflict) => conflict.doNothing())
    .returning('percent')
    .executeTakeFirst()) !== undefined
