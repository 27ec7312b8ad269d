import { type Batch, batchBytesMax, type CreateBatch } from '../../../contract/batches.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { CursorQuery } from '../../../contract/files.ts'
import { newId } from '../../../lib/ids.ts'
import { day_ms } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { openaiPageOf } from '../../platform/db/page.ts'
import { recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { assertBacklogLimit, type Queue } from '../../platform/queue/queue.ts'
import type { Orphans } from '../../platform/storage/orphans.ts'
import type { Files } from '../files/index.ts'
import * as store from './store.ts'

export const queueKind = 'batch'

export interface Batches {
  create(by: Caller, request: CreateBatch): Promise<Batch>
  list(account_id: string, query: CursorQuery): Promise<ReturnType<typeof openaiPageOf<Batch>>>
  get(account_id: string, id: string): Promise<Batch>
  /** Its worker then writes what was answered so far. */
  cancel(by: Caller, id: string): Promise<Batch>
  /** Removes the unfinished results of batches that have ended. */
  sweep(): Promise<void>
}

interface Options {
  db: Db
  queue: Queue
  files: Files
  orphans: Orphans
  max_waiting: number
  now(): number
}

export function createBatches({ db, queue, files, orphans, max_waiting, now }: Options): Batches {
  async function requireBatch(db: Parameters<typeof store.find>[0], account_id: string, id: string) {
    const row = await store.find(db, account_id, id)
    if (!row) throw new ApiError('batch_not_found', `There is no batch '${id}'.`, { param: 'batch_id' })
    return row
  }

  async function requireInput(account_id: string, id: string): Promise<void> {
    const { purpose, bytes } = await files.get(account_id, id).catch(namingInput)
    if (purpose !== 'batch')
      throw new ApiError(
        'invalid_request',
        `The file was uploaded for '${purpose}'. Upload the requests with the purpose 'batch'.`,
        { param: 'input_file_id' },
      )
    if (bytes > batchBytesMax)
      throw new ApiError('file_too_large', 'The file is larger than 200 MB. Divide it into several batches.', {
        details: { max_mb: batchBytesMax / 1e6 },
        param: 'input_file_id',
      })
  }

  return {
    async create(by, { input_file_id, endpoint, metadata, output_expires_after }) {
      await requireInput(by.account_id, input_file_id)
      const id = newId('batch')
      const created_at = now()
      const row: store.BatchRow = {
        id,
        account_id: by.account_id,
        key_id: by.key_id,
        endpoint,
        input_file_id,
        status: 'validating',
        model: null,
        metadata_json: metadata ? JSON.stringify(metadata) : null,
        errors_json: null,
        total: 0,
        completed: 0,
        failed: 0,
        prompt_tokens: 0,
        cached_tokens: 0,
        completion_tokens: 0,
        output_file_id: null,
        error_file_id: null,
        output_seconds: output_expires_after?.seconds ?? null,
        times_json: '{}',
        ending: null,
        expires_at: created_at + day_ms,
        created_at,
      }
      await db.transaction().execute(async (trx) => {
        assertBacklogLimit(await store.countActive(trx, by.account_id), 'batches', max_waiting)
        await files.requireIn(trx, by.account_id, input_file_id).catch(namingInput)
        await store.insert(trx, row)
        await queue.enqueue(trx, queueKind, id, by.account_id)
        await recordAuditEntry(trx, by, 'batch.created', id, { endpoint, input_file_id }, created_at)
      })
      queue.wake()
      return store.toResponse(row)
    },

    async list(account_id, query) {
      const after =
        query.after === undefined ? undefined : await requireBatch(db, account_id, query.after).catch(naming('after'))
      const rows = await store.list(db, account_id, query, after)
      return openaiPageOf(rows.map(store.toResponse), query.limit)
    },

    get: async (account_id, id) => store.toResponse(await requireBatch(db, account_id, id)),

    async cancel(by, id) {
      const row = await db.transaction().execute(async (trx) => {
        const batch = await requireBatch(trx, by.account_id, id)
        if (batch.status === 'cancelling') return batch
        if (batch.status !== 'validating' && batch.status !== 'in_progress')
          throw new ApiError('batch_not_cancellable', `The batch is ${batch.status}; it cannot be cancelled.`, {
            details: { status: batch.status },
            param: 'batch_id',
          })
        const time = now()
        await store.setStatus(trx, batch, 'cancelling', time)
        await recordAuditEntry(trx, by, 'batch.cancelled', id, {}, time)
        const cancelling = await requireBatch(trx, by.account_id, id)
        if (batch.status === 'in_progress') await queue.hasten(trx, queueKind, id)
        else {
          // Its file was not checked yet: there is nothing to publish.
          await queue.cancel(trx, queueKind, id)
          await store.end(trx, cancelling, 'cancelled', time)
        }
        return await requireBatch(trx, by.account_id, id)
      })
      queue.wake()
      return store.toResponse(row)
    },

    sweep: () =>
      orphans.removeEnded('batches', async (id) => {
        const row = await store.findUnscoped(db, id)
        return row !== undefined && !store.isActive(row)
      }),
  }
}

/** Names the parameter in an error. */
const naming =
  (param: string) =>
  (error: unknown): never => {
    throw error instanceof ApiError ? new ApiError(error.code, error.message, { param }) : error
  }
const namingInput = naming('input_file_id')
