import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { InputItem, listInputItems, OutputItem, Response, ResponseRequest } from '../../../contract/responses.ts'
import type { Db } from '../../db/open.ts'
import { openaiPageOf } from '../../db/page.ts'
import * as store from './store.ts'

/** Turns of one conversation, at most: as many as a request may have items. */
const turnsMax = 2000

export interface Responses {
  /** The items of a stored conversation, and of its last response. Throws previous_response_not_found. */
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

export function createResponses({ db, now }: { db: Db; now(): number }): Responses {
  const notFound = (id: string) =>
    new ApiError('response_not_found', `There is no stored response '${id}'. Responses are kept for 30 days.`, {
      param: 'response_id',
    })

  async function conversation(
    account_id: string,
    previous: string | null | undefined,
  ): Promise<(InputItem | OutputItem)[]> {
    const turns: (InputItem | OutputItem)[][] = []
    for (let id = previous; id != null && turns.length < turnsMax; ) {
      const row = await store.find(db, account_id, id)
      if (!row)
        throw new ApiError(
          'previous_response_not_found',
          `There is no stored response '${id}'. Send the whole conversation as input.`,
          { param: 'previous_response_id' },
        )
      turns.unshift([...store.inputOf(row), ...store.responseOf(row).output])
      id = row.previous_response_id
    }
    return turns.flat()
  }

  return {
    conversation,

    async save(account_id, input, response) {
      await store.insert(db, {
        id: response.id,
        account_id,
        previous_response_id: response.previous_response_id,
        input_json: JSON.stringify(input),
        response_json: JSON.stringify(response),
        created_at: now(),
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
      const earlier = await conversation(account_id, row.previous_response_id)
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
