// Rows of Tinker's API: sessions, training runs, samplers and checkpoints.
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type SessionRow = Row<'tinker_sessions'>
export type RunRow = Row<'tinker_runs'>
export type SamplerRow = Row<'tinker_samplers'>
export type CheckpointRow = Row<'tinker_checkpoints'>

/** A page by offset, as Tinker's API has them. */
export interface OffsetQuery {
  limit: number
  offset: number
}

export interface OffsetPage<T> {
  rows: T[]
  total: number
}

export const insertSession = (db: Queryable, row: NewRow<'tinker_sessions'>) =>
  db.insertInto('tinker_sessions').values(row).execute()

export const findSession = (db: Queryable, account_id: string, id: string) =>
  db
    .selectFrom('tinker_sessions')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .executeTakeFirst()

export const updateSession = (db: Queryable, id: string, values: Partial<SessionRow>) =>
  db.updateTable('tinker_sessions').set(values).where('id', '=', id).execute()

export async function listSessions(
  db: Db,
  account_id: string,
  { limit, offset }: OffsetQuery,
): Promise<OffsetPage<SessionRow>> {
  const own = db.selectFrom('tinker_sessions').where('account_id', '=', account_id)
  const rows = await own.selectAll().orderBy('created_at', 'desc').orderBy('id').limit(limit).offset(offset).execute()
  return { rows, total: await countOf(own.select(({ fn }) => fn.countAll().as('count'))) }
}

/** Sessions that nothing was heard of since, which have not ended. */
export const silentSessions = (db: Db, before: number) =>
  db
    .selectFrom('tinker_sessions')
    .selectAll()
    .where('ended_at', 'is', null)
    .where('last_seen_at', '<', before)
    .execute()

/** Sessions that have ended, and whose files may still be there. */
export const sessionsToClear = (db: Db) =>
  db
    .selectFrom('tinker_sessions')
    .select(['id', 'account_id'])
    .where('ended_at', 'is not', null)
    .where('has_files', '=', 1)
    .execute()

export const insertRun = (db: Queryable, row: NewRow<'tinker_runs'>) =>
  db.insertInto('tinker_runs').values(row).execute()

export const findRun = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('tinker_runs').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findRunUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('tinker_runs').selectAll().where('id', '=', id).executeTakeFirst()

export const updateRun = (db: Queryable, id: string, values: Partial<RunRow>) =>
  db.updateTable('tinker_runs').set(values).where('id', '=', id).execute()

export const runsOfSession = (db: Queryable, session_id: string) =>
  db.selectFrom('tinker_runs').selectAll().where('session_id', '=', session_id).orderBy('created_at').execute()

export async function listRuns(
  db: Db,
  account_id: string,
  { limit, offset }: OffsetQuery,
): Promise<OffsetPage<RunRow>> {
  const own = db.selectFrom('tinker_runs').where('account_id', '=', account_id)
  const rows = await own
    .selectAll()
    .orderBy('last_request_at', 'desc')
    .orderBy('id')
    .limit(limit)
    .offset(offset)
    .execute()
  return { rows, total: await countOf(own.select(({ fn }) => fn.countAll().as('count'))) }
}

export async function countOpenRuns(db: Queryable, account_id: string): Promise<number> {
  const open = db.selectFrom('tinker_runs').where('account_id', '=', account_id).where('state', 'in', ['live', 'saved'])
  return await countOf(open.select(({ fn }) => fn.countAll().as('count')))
}

/** Runs that a server that has ended left as if they were in a trainer. */
export const liveRuns = (db: Db) => db.selectFrom('tinker_runs').selectAll().where('state', '=', 'live').execute()

export const insertSampler = (db: Queryable, row: NewRow<'tinker_samplers'>) =>
  db.insertInto('tinker_samplers').values(row).execute()

export const findSampler = (db: Queryable, account_id: string, id: string) =>
  db
    .selectFrom('tinker_samplers')
    .selectAll()
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .executeTakeFirst()

export const updateSampler = (db: Queryable, id: string, values: Partial<SamplerRow>) =>
  db.updateTable('tinker_samplers').set(values).where('id', '=', id).execute()

export const samplersOfSession = (db: Queryable, session_id: string) =>
  db.selectFrom('tinker_samplers').selectAll().where('session_id', '=', session_id).orderBy('created_at').execute()

/** Samplers of a run's weights that have no name, newest first. */
export const ephemeralSamplers = (db: Queryable, run_id: string) =>
  db
    .selectFrom('tinker_samplers')
    .selectAll()
    .where('run_id', '=', run_id)
    .where('folder', 'is not', null)
    .orderBy('created_at', 'desc')
    .orderBy('id', 'desc')
    .execute()

export const insertCheckpoint = (trx: Trx, row: NewRow<'tinker_checkpoints'>) =>
  trx.insertInto('tinker_checkpoints').values(row).execute()

export const findCheckpoint = (db: Queryable, run_id: string, kind: CheckpointRow['kind'], name: string) =>
  db
    .selectFrom('tinker_checkpoints')
    .selectAll()
    .where('run_id', '=', run_id)
    .where('kind', '=', kind)
    .where('name', '=', name)
    .executeTakeFirst()

export const findCheckpointUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('tinker_checkpoints').selectAll().where('id', '=', id).executeTakeFirst()

export const updateCheckpoint = (db: Queryable, id: string, values: Partial<CheckpointRow>) =>
  db.updateTable('tinker_checkpoints').set(values).where('id', '=', id).execute()

export const removeCheckpoint = (db: Queryable, id: string) =>
  db.deleteFrom('tinker_checkpoints').where('id', '=', id).execute()

export const removeCheckpointsOfModel = (trx: Trx, model_id: string) =>
  trx.deleteFrom('tinker_checkpoints').where('model_id', '=', model_id).execute()

export const checkpointsOfRun = (db: Queryable, run_id: string) =>
  db
    .selectFrom('tinker_checkpoints')
    .selectAll()
    .where('run_id', '=', run_id)
    .orderBy('created_at')
    .orderBy('id')
    .execute()

export async function listCheckpoints(
  db: Db,
  account_id: string,
  { limit, offset }: OffsetQuery,
): Promise<OffsetPage<CheckpointRow>> {
  const own = db.selectFrom('tinker_checkpoints').where('account_id', '=', account_id)
  const rows = await own.selectAll().orderBy('created_at', 'desc').orderBy('id').limit(limit).offset(offset).execute()
  return { rows, total: await countOf(own.select(({ fn }) => fn.countAll().as('count'))) }
}

export const expiredCheckpoints = (db: Db, now: number) =>
  db.selectFrom('tinker_checkpoints').selectAll().where('expires_at', '<=', now).execute()

async function countOf(query: { executeTakeFirstOrThrow(): Promise<{ count: number | string | bigint }> }) {
  return Number((await query.executeTakeFirstOrThrow()).count)
}
