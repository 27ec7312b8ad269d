import path from 'node:path'
import type { SortedQuery } from '../../../contract/common.ts'
import type { Columns, Dataset } from '../../../contract/datasets.ts'
import type { Objective } from '../../../contract/hyperparameters.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { sortedPage } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'
import type { Check } from './check-rows.ts'
import type { ReadResult } from './reader/main.ts'

export type DatasetRow = Row<'datasets'>

export const insert = (db: Queryable, dataset: NewRow<'datasets'>) =>
  db.insertInto('datasets').values(dataset).execute()

export const find = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('datasets').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const list = (
  db: Db,
  account_id: string,
  query: SortedQuery,
  after: DatasetRow | undefined,
): Promise<DatasetRow[]> => sortedPage(db, 'datasets', { account_id }, query, after)

export const every = (db: Db) => db.selectFrom('datasets').selectAll().execute()

export const findUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('datasets').selectAll().where('id', '=', id).executeTakeFirst()

export const update = (trx: Trx, id: string, values: Partial<DatasetRow>) =>
  trx.updateTable('datasets').set(values).where('id', '=', id).execute()

export async function remove(trx: Queryable, id: string): Promise<void> {
  await trx.deleteFrom('dataset_tokens').where('dataset_id', '=', id).execute()
  await trx.deleteFrom('datasets').where('id', '=', id).execute()
}

export const tokensOf = async (db: Db, dataset_id: string, base_model_id: string): Promise<string | undefined> =>
  (
    await db
      .selectFrom('dataset_tokens')
      .select('found_json')
      .where('dataset_id', '=', dataset_id)
      .where('base_model_id', '=', base_model_id)
      .executeTakeFirst()
  )?.found_json

export const forgetTokens = (trx: Trx, dataset_id: string) =>
  trx.deleteFrom('dataset_tokens').where('dataset_id', '=', dataset_id).execute()

export const saveTokens = (db: Db, dataset_id: string, base_model_id: string, found_json: string) =>
  db
    .insertInto('dataset_tokens')
    .values({ dataset_id, base_model_id, found_json })
    .onConflict((conflict) => conflict.columns(['dataset_id', 'base_model_id']).doUpdateSet({ found_json }))
    .execute()

/** What reading a file found: the check of its rows, or why there are none. */
export type ReadFile = Check | Extract<ReadResult, { unreadable: unknown }>

/** Call it for a file that was read. */
export const readFileOf = ({ check_json }: Pick<DatasetRow, 'check_json'>) => JSON.parse(check_json) as ReadFile

/** The check of the rows; undefined until they are read. */
function checkOf(dataset: Pick<DatasetRow, 'status' | 'check_json'>): Check | undefined {
  const read = dataset.status === 'ready' ? readFileOf(dataset) : undefined
  return read && 'unreadable' in read ? undefined : read
}

/** What the rows of a dataset can teach; none until they are read. Checks of earlier versions are of conversations. */
export function objectivesOf(dataset: Pick<DatasetRow, 'status' | 'check_json'>): Objective[] {
  const check = checkOf(dataset)
  return check ? (check.objectives ?? ['sft']) : []
}

/** How many pictures the rows have; 0 until they are read. */
export const pictureCountOf = (dataset: Pick<DatasetRow, 'status' | 'check_json'>): number =>
  checkOf(dataset)?.pictures ?? 0

/** The objective by which a dataset is counted and shown. */
export const objectiveOf = (dataset: DatasetRow): Objective => objectivesOf(dataset)[0] ?? 'sft'

export const toResponse = (dataset: DatasetRow): Dataset => ({
  id: dataset.id,
  name: dataset.name,
  description: dataset.description,
  format: dataset.format,
  status: dataset.status,
  objectives: objectivesOf(dataset),
  rows: dataset.rows,
  // 0 until they are read.
  error_count: checkOf(dataset)?.error_count ?? 0,
  pictures: pictureCountOf(dataset),
  size_mb: Number((dataset.size_bytes / 1e6).toPrecision(4)),
  sha256: dataset.sha256,
  columns: columnsOf(dataset) ?? null,
  created_at: isoTime(dataset.created_at),
})

/** The uploader's names of the columns. */
export const columnsOf = ({ columns_json }: Pick<DatasetRow, 'columns_json'>): Columns | undefined =>
  columns_json === null ? undefined : fromJson(columns_json)

/** The rows are as an earlier version wrote them, and become canonical when they are first used. */
export const isEarlierForm = ({ status, rows_form }: Pick<DatasetRow, 'status' | 'rows_form'>) =>
  status === 'ready' && rows_form === 0

type Stored = Pick<DatasetRow, 'id' | 'format' | 'source_name'>

/** The artifact with the canonical rows of a dataset. */
export const rowsKey = (id: string) => path.join('datasets', `${id}.rows.jsonl`)

/**
 * The paths of a dataset: `source` is the upload, `rows` the canonical rows, `part` these while they are written,
 * `earlier` the rows that an earlier version wrote (of JSON lines often the upload itself), `fetched` the folder for
 * downloads from the hub, `pictures` that for pictures from addresses.
 */
export function filesOf(dataDir: string, { id, format, source_name }: Stored) {
  const folder = path.join(dataDir, 'datasets')
  const rows = path.join(dataDir, rowsKey(id))
  return {
    folder,
    source: path.join(folder, source_name ?? `${id}.${format}`),
    rows,
    part: `${rows}.part`,
    earlier: path.join(folder, `${id}.jsonl`),
    fetched: path.join(folder, `${id}.fetched`),
    pictures: path.join(folder, `${id}.pictures`),
  }
}

/** The artifact with the upload of a dataset. */
export const sourceKey = (dataset: Stored) => filesOf('', dataset).source

/** The artifacts of a dataset: its upload, and its rows where they exist. */
export function keysOf(dataset: Stored & Pick<DatasetRow, 'status' | 'rows_form' | 'rows_sha256'>): {
  source: string
  rows: string | undefined
} {
  const { source, rows, earlier } = filesOf('', dataset)
  const parts = isEarlierForm(dataset) ? earlier : rows
  return { source, rows: dataset.rows_sha256 && parts !== source ? parts : undefined }
}
