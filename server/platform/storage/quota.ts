// How much an account stores, by the rows that name its files, and what its tier allows. Rows are the same for all
// servers of an installation, so the bound is too.

import { sql } from 'kysely'
import { ApiError } from '../../../contract/errors.ts'
import { fromJson } from '../db/json.ts'
import type { Db, Queryable } from '../db/open.ts'
import type { Uploader } from './free-disk.ts'

type StoredKind = 'datasets' | 'files' | 'uploads' | 'models' | 'exports'
interface Stored {
  kind: StoredKind
  count: number
  bytes: number
}

export interface StorageQuota {
  /**
   * What an account stores; uploads in parts with the size that they announce, or that of their parts if that is more.
   */
  stored(db: Queryable, account_id: string): Promise<Stored[]>
  /** The most bytes of a tier; null: any number. */
  maxBytes(tier: string): number | null
  /**
   * Throws storage_quota_exceeded where an account stores, with `more` bytes, more than its tier allows. In a
   * transaction that has inserted what is new, nobody else can be let in at once.
   */
  require(db: Queryable, account_id: string, more: number): Promise<void>
  /** The account as one that uploads: what is in progress counts with what it stores. */
  uploader(db: Db, account_id: string): Uploader
}

interface Options {
  maxMbOf(tier: string): number | null
  now(): number
}

export function createStorageQuota({ maxMbOf, now }: Options): StorageQuota {
  const maxBytes = (tier: string) => {
    const max_mb = maxMbOf(tier)
    return max_mb === null ? null : max_mb * 1e6
  }

  async function stored(db: Queryable, account_id: string): Promise<Stored[]> {
    const sumOf = async (kind: StoredKind): Promise<Stored> => {
      const { rows } = await sql<{ count: number; bytes: number | null }>`
        select count(*) as count, sum(size_bytes) as bytes from ${sql.table(kind)}
        where account_id = ${account_id}`.execute(db)
      return { kind, count: Number(rows[0]!.count), bytes: Number(rows[0]!.bytes ?? 0) }
    }
    const { rows: uploads } = await sql<{ announced: number; sent: number | null }>`
      select size_bytes as announced,
        (select sum(size_bytes) from upload_parts where upload_id = uploads.id) as sent
      from uploads where account_id = ${account_id} and status = 'pending' and expires_at > ${now()}`.execute(db)
    const uploaded = uploads.reduce((sum, { announced, sent }) => sum + Math.max(announced, Number(sent ?? 0)), 0)
    const exported = await db
      .selectFrom('exports')
      .select('files_json')
      .where('account_id', '=', account_id)
      .where('status', '=', 'ready')
      .execute()
    const sizes = exported.flatMap(({ files_json }) => fromJson(files_json) as { size_bytes: number }[])
    return [
      await sumOf('datasets'),
      await sumOf('files'),
      { kind: 'uploads', count: uploads.length, bytes: uploaded },
      await sumOf('models'),
      { kind: 'exports', count: exported.length, bytes: sizes.reduce((sum, { size_bytes }) => sum + size_bytes, 0) },
    ]
  }

  const quota: StorageQuota = {
    stored,
    maxBytes,
    uploader: (db, id) => ({ id, admit: (bytes) => quota.require(db, id, bytes) }),
    async require(db, account_id, more) {
      const account = await db.selectFrom('accounts').select('tier').where('id', '=', account_id).executeTakeFirst()
      const max_bytes = account ? maxBytes(account.tier) : null
      if (max_bytes === null) return
      const used_bytes = (await stored(db, account_id)).reduce((sum, { bytes }) => sum + bytes, 0)
      if (used_bytes + more <= max_bytes) return
      throw new ApiError(
        'storage_quota_exceeded',
        `This account may store ${max_bytes / 1e6} MB; with this it would be more. Delete datasets, files, models or exports ` +
          'that you no longer need: GET /v1/usage/storage says what takes the space.',
        { details: { max_bytes, used_bytes } },
      )
    },
  }
  return quota
}
