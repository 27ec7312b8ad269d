// Reads of the timeline. They are lists, so that the reader thread runs them within its time limit.
import { sql } from 'kysely'
import type { Db } from '../db/open.ts'

/** Unix milliseconds; `from` to `to` is a whole number of steps. */
export interface Period {
  from: number
  to: number
  step: number
}

/** The number of a row's bucket, counted from 0. The numbers are literals: parameters would divide as floats. */
const bucketOf = (column: string, { from, step }: Period) =>
  sql<number>`(${sql.ref(column)} - ${sql.lit(from)}) / ${sql.lit(step)}`

const rows = (db: Db, account_id: string, model: string, { from, to }: Period) =>
  db
    .selectFrom('usage')
    .where('account_id', '=', account_id)
    .where('model', '=', model)
    .where('created_at', '>=', from)
    .where('created_at', '<', to)
    .where('kind', '!=', 'training')

const count = (finish: string) => sql<number>`sum(case when finish = ${finish} then 1 else 0 end)`

export const sums = (db: Db, account_id: string, model: string, period: Period) =>
  rows(db, account_id, model, period)
    .select([
      bucketOf('created_at', period).as('bucket'),
      sql<number>`count(*)`.as('requests'),
      sql<number>`sum(prompt_tokens)`.as('prompt_tokens'),
      sql<number>`sum(completion_tokens)`.as('completion_tokens'),
      count('client_left').as('client_left'),
      count('broken').as('broken'),
    ])
    .groupBy('bucket')
    .orderBy('bucket')
    .execute()

export const failures = (db: Db, account_id: string, model: string, period: Period) =>
  db
    .selectFrom('usage_failures')
    .where('account_id', '=', account_id)
    .where('model', '=', model)
    .where('minute', '>=', period.from)
    .where('minute', '<', period.to)
    .select([bucketOf('minute', period).as('bucket'), 'kind', sql<number>`sum(requests)`.as('requests')])
    .groupBy(['bucket', 'kind'])
    .orderBy('bucket')
    .execute()

/** Nearest-rank percentiles of complete answers, or of one in `every` of them. */
export const percentiles = (
  db: Db,
  account_id: string,
  model: string,
  period: Period,
  column: 'duration_ms' | 'first_token_ms',
  every: number,
) => {
  const bucket = bucketOf('created_at', period)
  const ranked = rows(db, account_id, model, period)
    .where('finish', '=', 'complete')
    .where(column, 'is not', null)
    .$if(every > 1, (query) => query.where(sql<boolean>`created_at % ${sql.lit(every)} = 0`))
    .select([
      bucket.as('bucket'),
      sql.ref<number>(column).as('value'),
      sql<number>`row_number() over (partition by ${bucket} order by ${sql.ref(column)})`.as('rank'),
      sql<number>`count(*) over (partition by ${bucket})`.as('of'),
    ])
    // A list as well: the time limit holds for each of its rows.
    .orderBy('bucket')
    .as('ranked')
  const at = (percent: number) => sql<number>`min(case when rank * 100 >= "of" * ${sql.lit(percent)} then value end)`
  return db
    .selectFrom(ranked)
    .select(['bucket', at(50).as('p50'), at(95).as('p95')])
    .groupBy('bucket')
    .orderBy('bucket')
    .execute()
}
