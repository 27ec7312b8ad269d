import path from 'node:path'
import type { File } from '../../../contract/files.ts'
import { unixSeconds } from '../../../lib/utc-day.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'
import type { FileEntry } from '../datasets/index.ts'

export type FileRow = Row<'files'>
export type UploadRow = Row<'uploads'>

export const insert = (db: Queryable, file: NewRow<'files'>) => db.insertInto('files').values(file).execute()

/** The files of an account whose time is not over. */
export const readable = (db: Queryable, account_id: string, now: number) =>
  db
    .selectFrom('files')
    .selectAll()
    .where('account_id', '=', account_id)
    .where((or) => or.or([or('expires_at', 'is', null), or('expires_at', '>', now)]))

/** A file of an account; with `now`, only if its time is not over. */
export const find = (db: Queryable, account_id: string, id: string, now = 0) =>
  readable(db, account_id, now).where('id', '=', id).executeTakeFirst()

export const findUnscoped = (db: Db, id: string) =>
  db.selectFrom('files').selectAll().where('id', '=', id).executeTakeFirst()

export const every = (db: Db) => db.selectFrom('files').selectAll().execute()

export const expired = (db: Db, now: number) =>
  db.selectFrom('files').selectAll().where('expires_at', '<=', now).execute()

export const remove = (db: Queryable, id: string) => db.deleteFrom('files').where('id', '=', id).execute()

export const insertUpload = (trx: Trx, upload: NewRow<'uploads'>) => trx.insertInto('uploads').values(upload).execute()

export const findUpload = (db: Queryable, account_id: string, id: string) =>
  db.selectFrom('uploads').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()

export const findUploadUnscoped = (db: Db, id: string) =>
  db.selectFrom('uploads').selectAll().where('id', '=', id).executeTakeFirst()

/** Ends a pending upload. Resolves with false if it was not pending any more. */
export async function endUpload(db: Queryable, id: string, values: Partial<UploadRow>): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable('uploads')
    .set(values)
    .where('id', '=', id)
    .where('status', '=', 'pending')
    .executeTakeFirst()
  return numUpdatedRows > 0n
}

/** Makes an upload pending again whose file could not be kept. */
export const reopenUpload = (db: Db, id: string) =>
  db
    .updateTable('uploads')
    .set({ status: 'pending', file_id: null })
    .where('id', '=', id)
    .where('status', '=', 'completed')
    .execute()

export const overdueUploads = (db: Db, now: number) =>
  db.selectFrom('uploads').selectAll().where('status', '=', 'pending').where('expires_at', '<=', now).execute()

export const insertPart = (trx: Trx, part: NewRow<'upload_parts'>) =>
  trx.insertInto('upload_parts').values(part).execute()

export async function partsSent(trx: Trx, upload_id: string): Promise<{ sent: number; count: number }> {
  const row = await trx
    .selectFrom('upload_parts')
    .select((eb) => [
      eb.fn.sum<number | string | null>('size_bytes').as('sent'),
      eb.fn.countAll<number | string>().as('count'),
    ])
    .where('upload_id', '=', upload_id)
    .executeTakeFirstOrThrow()
  return { sent: Number(row.sent ?? 0), count: Number(row.count) }
}

export const parts = (db: Queryable, upload_id: string) =>
  db.selectFrom('upload_parts').selectAll().where('upload_id', '=', upload_id).execute()

export const filesDir = (dataDir: string) => path.join(dataDir, 'files')
export const filePath = (dataDir: string, id: string) => path.join(filesDir(dataDir), id)
/** The artifact of a file. */
export const fileKey = (id: string) => filePath('', id)
const uploadsDir = (dataDir: string) => path.join(dataDir, 'uploads')
export const partPath = (dataDir: string, upload_id: string, part_id: string) =>
  path.join(uploadsDir(dataDir), upload_id, part_id)
/** The artifact of a part of an unfinished upload. */
export const partKey = (upload_id: string, part_id: string) => partPath('', upload_id, part_id)

export const toEntry = ({ id, created_at, ...row }: FileRow): FileEntry => ({
  id,
  created_at,
  file: {
    id,
    object: 'file',
    bytes: row.size_bytes,
    created_at: unixSeconds(created_at),
    expires_at: row.expires_at === null ? null : unixSeconds(row.expires_at),
    filename: row.filename,
    purpose: row.purpose,
    status: 'processed',
    status_details: null,
  } satisfies File,
})

/** How many uploads of an account have not ended. */
export const countPendingUploads = (trx: Trx, account_id: string): Promise<number> =>
  countRows(trx.selectFrom('uploads').where('account_id', '=', account_id).where('status', '=', 'pending'))
