import type { z } from 'zod'
import { ApiError } from '../../../../contract/errors.ts'
import type {
  InputItem,
  listInputItems,
  OutputItem,
  Response,
  ResponseRequest,
} from '../../../../contract/responses.ts'
import type { Db } from '../../../platform/db/open.ts'
import { openaiPageOf } from '../../../platform/db/page.ts'
import { requireFreeDisk } from '../../../platform/storage/free-disk.ts'
import { rowBytes, type StorageQuota } from '../../../platform/storage/quota.ts'
import * as store from './store.ts'

/** Turns of one conversation, at most: as many as a request may have items. */
const turnsMax = 2000
/** Characters of a stored conversation, at most: about as much as one request may have. */
const charsMax = 8 * 1024 * 1024

export interface Responses {
  /**
   * Throws invalid_request for input that is too long to be kept, as pictures make it, and storage_quota_exceeded.
   */
  requireStorable(account_id: string, input: readonly store.StoredItem[]): Promise<void>
  /**
   * The items of a stored conversation, and of its last response. Throws previous_response_not_found, or
   * context_length_exceeded.
   */
  conversation(
    account_id: string,
    previous: ResponseRequest['previous_response_id'],
  ): Promise<(InputItem | OutputItem)[]>
  save(account_id: string, input: store.StoredItem[], response: Response): Promise<void>
  get(account_id: string, id: string): Promise<Response>
  inputItems(
    account_id: string,
    id: string,
    query: z.output<typeof listInputItems.query>,
  ): Promise<ReturnType<typeof openaiPageOf<{ id: string }>>>
  delete(account_id: string, id: string): Promise<{ id: string; object: 'response'; deleted: true }>
}

interface Options {
  db: Db
  dataDir: string
  min_free_mb: number
  quota: StorageQuota
  now(): number
}

export function createResponses({ db, dataDir, min_free_mb, quota, now }: Options): Responses {
  const notFound = (id: string) =>
    new ApiError(
      'response_not_found',
      `There is no stored response '${id}'. Responses are kept for 30 days after their conversation's last answer.`,
      { param: 'response_id' },
    )

  async function conversation(
    account_id: string,
    previous: string | null | undefined,
  ): Promise<(InputItem | OutputItem)[]> {
    const turns: (InputItem | OutputItem)[][] = []
    let chars = 0
    for (let id = previous; id != null; ) {
      const row = await store.find(db, account_id, id)
      if (!row)
        throw new ApiError(
          'previous_response_not_found',
          id === previous
            ? `There is no stored response '${id}'. Send the whole conversation as input.`
            : `An earlier turn of '${previous}' was deleted: '${id}'. Send the whole conversation as input.`,
          { param: 'previous_response_id' },
        )
      chars += row.input_json.length + row.response_json.length
      if (chars > charsMax || turns.length === turnsMax)
        throw new ApiError(
          'context_length_exceeded',
          'The stored conversation is longer than a request may be. Begin a new one with what still matters as input.',
          { param: 'previous_response_id' },
        )
      turns.push([...store.inputOf(row), ...store.responseOf(row).output])
      id = row.previous_response_id
    }
    return turns.reverse().flat()
  }

  return {
    conversation,

    async requireStorable(account_id, input) {
      if (JSON.stringify(input).length <= charsMax) return await quota.admit(db, account_id, 0)
      throw new ApiError(
        'invalid_request',
        "The input is too long to be kept: a stored conversation has at most 8 MiB, pictures included. Send 'store': " +
          'false, or smaller pictures.',
        { param: 'store' },
      )
    },

    async save(account_id, input, response) {
      await requireFreeDisk(dataDir, min_free_mb)
      const time = now()
      const { id, previous_response_id } = response
      await db.transaction().execute(async (trx) => {
        const row = {
          id,
          account_id,
          previous_response_id,
          input_json: JSON.stringify(input),
          response_json: JSON.stringify(response),
          used_at: time,
          created_at: time,
        }
        const size_bytes = rowBytes(row)
        await quota.admit(trx, account_id, size_bytes)
        await store.insert(trx, { ...row, size_bytes })
        if (previous_response_id !== null) await store.keep(trx, account_id, previous_response_id, time)
      })
    },

    async get(account_id, id) {
      const row = await store.find(db, account_id, id)
      if (!row) throw notFound(id)
      return store.responseOf(row)
    },

    async inputItems(account_id, id, { limit, order, after }) {
      const row = await store.find(db, account_id, id)
      if (!row) throw notFound(id)
      // Those of earlier turns are missing if one of these was deleted.
      const earlier = await conversation(account_id, row.previous_response_id).catch((error) => {
        if (error instanceof ApiError) return []
        throw error
      })
      const items = [...earlier, ...store.inputOf(row)] as { id: string }[]
      if (order === 'desc') items.reverse()
      const from = after === undefined ? 0 : items.findIndex((item) => item.id === after) + 1
      if (after !== undefined && from === 0)
        throw new ApiError('invalid_request', `There is no item '${after}' to continue after.`, { param: 'after' })
      return openaiPageOf(items.slice(from, from + limit + 1), limit)
    },

    async delete(account_id, id) {
      if (!(await store.remove(db, account_id, id))) throw notFound(id)
      return { id, object: 'response', deleted: true }
    },
  }
}
