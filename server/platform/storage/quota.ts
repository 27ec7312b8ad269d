// How much an account stores, by the rows that name its files, and what its tier allows. Rows are the same for all
// servers of an installation, so the bound is too.

import { sql } from 'kysely'
import { ApiError } from '../../../contract/errors.ts'
import type { StorageReport } from '../../../contract/usage.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'
import { fromJson } from '../db/json.ts'
import type { Db, Queryable } from '../db/open.ts'
import type { Uploader } from './incoming-files.ts'

type StoredKind = StorageReport['items'][number]['kind']
interface Stored {
  kind: StoredKind
  count: number
  bytes: number
}

export interface StorageQuota {
  /**
   * What an account stores; datasets as they were uploaded, or their rows if these are larger; uploads in parts with
   * the size that they announce, or that of their parts if that is more.
   */
  stored(db: Queryable, account_id: string): Promise<Stored[]>
  /** The most bytes of a tier; null: any number. */
  maxBytes(tier: string): number | null
  /**
   * Throws storage_quota_exceeded where an account stores, with `more` bytes, more than its tier allows. In a
   * transaction that has inserted what is new, nobody else can be let in at once.
   */
  require(db: Queryable, account_id: string, more: number): Promise<void>
  /**
   * The same for the many small rows that answers become: what the account stores is summed now and then, and `more` is
   * added to that. Of other servers' additions it learns at the next sum.
   */
  admit(db: Queryable, account_id: string, more: number): Promise<void>
  /** Bytes that an account may still store; Infinity without a limit. */
  left(db: Queryable, account_id: string): Promise<number>
  /** The account as one that uploads: what is in progress counts with what it stores. */
  uploader(db: Db, account_id: string): Uploader
}

interface Options {
  maxMbOf(tier: string): number | null
  now(): number
}

/** How long a sum is good for `admit`. */
const summed_ms = 10_000

/** Bytes of the texts of a row. */
export const rowBytes = (row: object): number =>
  Object.values(row).reduce((sum: number, value) => sum + (typeof value === 'string' ? Buffer.byteLength(value) : 0), 0)

export function createStorageQuota({ maxMbOf, now }: Options): StorageQuota {
  /** What accounts may still store. */
  const sums = createTtlCache<{ left: number }>(summed_ms)
  const maxBytes = (tier: string) => {
    const max_mb = maxMbOf(tier)
    return max_mb === null ? null : max_mb * 1e6
  }

  async function stored(db: Queryable, account_id: string): Promise<Stored[]> {
    const sumOf = async (kind: StoredKind, table: string = kind, bytes = sql`size_bytes`): Promise<Stored> => {
      const { rows } = await sql<{ count: number; bytes: number | null }>`
        select count(*) as count, sum(${bytes}) as bytes from ${sql.table(table)}
        where account_id = ${account_id}`.execute(db)
      return { kind, count: Number(rows[0]!.count), bytes: Number(rows[0]!.bytes ?? 0) }
    }
    const evaluations = await sumOf('evaluations')
    const evals = await sumOf('evaluations', 'evals')
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
    const { count, bytes } = await db
      .selectFrom('tuning_jobs')
      .select(({ fn }) => [fn.countAll().as('count'), fn.sum('checkpoint_bytes').as('bytes')])
      .where('account_id', '=', account_id)
      .where('status', 'in', ['queued', 'running'])
      .where('checkpoint_bytes', '>', 0)
      .executeTakeFirstOrThrow()
    const tinker = await Promise.all(
      ['tinker_checkpoints', 'tinker_runs', 'tinker_samplers'].map((table) => sumOf('checkpoints', table)),
    )
    const tinkerBytes = tinker.reduce((sum, { bytes }) => sum + bytes, 0)
    return [
      await sumOf('datasets', 'datasets', sql`case when rows_bytes > size_bytes then rows_bytes else size_bytes end`),
      await sumOf('files'),
      { kind: 'uploads', count: uploads.length, bytes: uploaded },
      await sumOf('models'),
      { kind: 'checkpoints', count: Number(count) + tinker[0]!.count, bytes: Number(bytes ?? 0) + tinkerBytes },
      { kind: 'exports', count: exported.length, bytes: sizes.reduce((sum, { size_bytes }) => sum + size_bytes, 0) },
      { kind: 'evaluations', count: evaluations.count + evals.count, bytes: evaluations.bytes + evals.bytes },
      await sumOf('responses'),
      await sumOf('completions', 'stored_completions'),
    ]
  }

  /** What an account stores, and the most that it may. Nothing is summed where there is no limit. */
  async function state(db: Queryable, account_id: string): Promise<{ used_bytes: number; max_bytes: number }> {
    const account = await db.selectFrom('accounts').select('tier').where('id', '=', account_id).executeTakeFirst()
    const max_bytes = account ? maxBytes(account.tier) : null
    if (max_bytes === null) return { used_bytes: 0, max_bytes: Number.POSITIVE_INFINITY }
    return { used_bytes: (await stored(db, account_id)).reduce((sum, { bytes }) => sum + bytes, 0), max_bytes }
  }

  const quota: StorageQuota = {
    stored,
    maxBytes,
    uploader: (db, id) => ({ id, admit: (bytes) => quota.require(db, id, bytes) }),
    async require(db, account_id, more) {
      const { used_bytes, max_bytes } = await state(db, account_id)
      if (used_bytes + more > max_bytes) throw exceeded(used_bytes, max_bytes)
    },

    async admit(db, account_id, more) {
      const sum = await sums.getOrLoad(account_id, async () => ({ left: await quota.left(db, account_id) }))
      // Something may have been deleted since.
      if (sum === undefined || sum.left < more) await quota.require(db, account_id, more)
      else sum.left -= more
    },

    async left(db, account_id) {
      const { used_bytes, max_bytes } = await state(db, account_id)
      return Math.max(0, max_bytes - used_bytes)
    },
  }
  return quota
}

const exceeded = (used_bytes: number, max_bytes: number) =>
  new ApiError(
    'storage_quota_exceeded',
    `This account may store ${max_bytes / 1e6} MB; with this it would be more. Delete datasets, files, models, ` +
      'exports, evaluations or stored answers that you no longer need, or cancel paused jobs: GET /v1/usage/storage ' +
      'says what takes the space.',
    { details: { max_bytes, used_bytes } },
  )
