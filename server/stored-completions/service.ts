// Answers that accounts keep: a request that says so is stored with its answer, for as long as the operator set.
import { Readable } from 'node:stream'
import type { Logger } from 'pino'
import type { ChatRequest, ChatResponse } from '../../contract/chat.ts'
import type { Dataset } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import type {
  DatasetOfStored,
  StoredCompletion,
  StoredFilter,
  StoredMessage,
  StoredQuery,
} from '../../contract/stored-completions.ts'
import { day_ms, unixSeconds } from '../../lib/utc-day.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Db } from '../db/open.ts'
import { openaiPageOf } from '../db/page.ts'
import { type AccountActor, recordAuditEntry } from '../events/audit.ts'
import { metadataFilter } from '../http/metadata-filter.ts'
import { requireFreeDisk } from '../storage/durable-files.ts'
import * as store from './store.ts'

type List<T extends { id: string }> = ReturnType<typeof openaiPageOf<T>>

export interface StoredCompletions {
  /** Whether this request is to be kept. */
  keeps(request: Record<string, unknown>): boolean
  /** Keeps an answer. Never rejects: an answer that cannot be kept is an answer all the same. */
  save(account_id: string, request: ChatRequest, answer: ChatResponse): Promise<void>
  list(account_id: string, query: StoredQuery): Promise<List<StoredCompletion>>
  get(account_id: string, id: string): Promise<StoredCompletion>
  messages(
    account_id: string,
    id: string,
    query: { limit: number; after?: string | undefined; order: 'asc' | 'desc' },
  ): Promise<List<StoredMessage>>
  update(by: AccountActor, id: string, metadata: Record<string, string>): Promise<StoredCompletion>
  delete(by: AccountActor, id: string): Promise<{ id: string; object: 'chat.completion.deleted'; deleted: true }>
  deleteMany(by: AccountActor, filter: StoredFilter): Promise<{ deleted: number }>
  toDataset(by: AccountActor, request: DatasetOfStored): Promise<Dataset>
  /** What was asked and answered, newest first. */
  conversations(account_id: string, filter: StoredFilter, limit: number | undefined): AsyncGenerator<Conversation>
  removeExpired(now: number): Promise<void>
  /** Takes what was deleted since out of the database's log too. */
  forgetDeleted(): Promise<void>
}

export interface Conversation {
  id: string
  messages: ChatRequest['messages']
  tools: ChatRequest['tools']
  answer: ChatResponse['choices'][number]
}

/** What is kept of a request beside its messages: what made the answer. */
const parameters = [
  'temperature',
  'top_p',
  'seed',
  'max_tokens',
  'max_completion_tokens',
  'presence_penalty',
  'frequency_penalty',
  'stop',
  'tools',
  'tool_choice',
  'response_format',
] as const

/** Longest request and answer that are kept, in characters of JSON. */
const charsMax = 1_000_000
const pageSize = 200

interface Options {
  db: Db
  datasets: Pick<Datasets, 'receive' | 'register'>
  dataDir: string
  min_free_mb: number
  /** How long answers are kept; 0: never. */
  days: number
  log: Logger
  now(): number
}

export function createStoredCompletions(options: Options): StoredCompletions {
  const { db, datasets, dataDir, min_free_mb, days, log, now } = options

  async function require(account_id: string, id: string, param = 'completion_id'): Promise<store.StoredRow> {
    const row = await store.find(db, account_id, id, now())
    if (row) return row
    const why = days === 0 ? ' This service keeps none: its operator sets TUNERY_STORE_COMPLETIONS.' : ''
    throw new ApiError('completion_not_found', `There is no stored completion '${id}'.${why}`, { param })
  }

  async function* rows(account_id: string, filter: StoredFilter, limit = Number.MAX_SAFE_INTEGER) {
    const time = now()
    let after: store.StoredRow | undefined
    for (let left = limit; left > 0; ) {
      const size = Math.min(pageSize, left)
      const found = (await store.matching(db, account_id, filter, size, after, time)).slice(0, size)
      yield* found
      left -= found.length
      after = found.at(-1)
      if (found.length < size) return
    }
  }

  let isDeleted = false

  async function* conversations(account_id: string, filter: StoredFilter, limit: number | undefined) {
    for await (const row of rows(account_id, filter, limit)) {
      const { messages, tools } = requestOf(row)
      const answer = responseOf(row).choices[0]
      // An answer that was cut would teach to end in the middle.
      if (answer && answer.finish_reason !== 'length') yield { id: row.id, messages, tools, answer }
    }
  }

  return {
    keeps: (request) => days > 0 && request.store === true,

    async save(account_id, request, answer) {
      const { messages, model } = request
      const asked = Object.fromEntries(
        parameters.flatMap((name) => (request[name] == null ? [] : [[name, request[name]]])),
      )
      const request_json = JSON.stringify({ messages, ...asked })
      const response_json = JSON.stringify({ ...answer, model })
      const created_at = now()
      try {
        if (request_json.length + response_json.length > charsMax) return
        await requireFreeDisk(dataDir, min_free_mb)
        await store.insert(db, {
          id: answer.id,
          account_id,
          model,
          metadata_json: JSON.stringify(request.metadata ?? {}),
          request_json,
          response_json,
          expires_at: created_at + days * day_ms,
          created_at,
        })
      } catch (error) {
        log.warn({ err: error }, 'an answer could not be stored')
      }
    },

    async list(account_id, query) {
      const after = query.after === undefined ? undefined : await require(account_id, query.after, 'after')
      const found = await store.list(db, account_id, query, metadataFilter(query), after, now())
      return openaiPageOf(found.map(toResponse), query.limit)
    },

    get: async (account_id, id) => toResponse(await require(account_id, id)),

    async messages(account_id, id, { limit, after, order }) {
      const messages = requestOf(await require(account_id, id)).messages.map((message, index) =>
        toMessage(`${id}-${index}`, message),
      )
      if (order === 'desc') messages.reverse()
      const from = after === undefined ? 0 : messages.findIndex((each) => each.id === after) + 1
      if (after !== undefined && from === 0)
        throw new ApiError('invalid_request', `There is no message '${after}' to continue after.`, { param: 'after' })
      return openaiPageOf(messages.slice(from, from + limit + 1), limit)
    },

    async update(by, id, metadata) {
      await require(by.account_id, id)
      await db.transaction().execute(async (trx) => {
        await store.setMetadata(trx, by.account_id, id, JSON.stringify(metadata))
        await recordAuditEntry(trx, by, 'completion.updated', id, {}, now())
      })
      return toResponse(await require(by.account_id, id))
    },

    async delete(by, id) {
      await require(by.account_id, id)
      await db.transaction().execute(async (trx) => {
        await store.remove(trx, by.account_id, [id])
        await recordAuditEntry(trx, by, 'completion.deleted', id, {}, now())
      })
      isDeleted = true
      return { id, object: 'chat.completion.deleted', deleted: true }
    },

    async deleteMany(by, filter) {
      const time = now()
      let deleted = 0
      for (;;) {
        const found = (await store.matching(db, by.account_id, filter, pageSize, undefined, time)).slice(0, pageSize)
        if (found.length === 0) break
        const ids = found.map(({ id }) => id)
        await db.transaction().execute(async (trx) => {
          await store.remove(trx, by.account_id, ids)
          await recordAuditEntry(trx, by, 'completion.deleted', ids[0]!, { completions: ids.length }, now())
        })
        deleted += ids.length
      }
      isDeleted = true
      return { deleted }
    },

    conversations,

    async toDataset(by, { filter, limit, name, description }) {
      async function* lines() {
        for await (const { messages, tools, answer } of conversations(by.account_id, filter, limit)) {
          const { content, tool_calls } = answer.message
          const reply = { role: 'assistant', content, ...(tool_calls && { tool_calls }) }
          yield `${JSON.stringify({ messages: [...messages, reply], ...(tools && { tools }) })}\n`
        }
      }
      const received = await datasets.receive(Readable.from(lines()))
      const filename = `${name ?? 'stored completions'}.jsonl`
      return datasets.register(by, received, filename, {
        name: name ?? 'Stored completions',
        description,
        format: 'jsonl',
      })
    },

    async removeExpired(time) {
      let removed = 0
      for (let last = pageSize; last === pageSize; removed += last) last = await store.removeExpired(db, time, pageSize)
      if (removed > 0) isDeleted = true
    },

    async forgetDeleted() {
      if (!isDeleted) return
      isDeleted = false
      await store.emptyLog(db).catch((error) => {
        isDeleted = true
        log.warn({ err: error }, 'the log of the database could not be emptied; the next try is in a moment')
      })
    },
  }
}

const requestOf = (row: store.StoredRow) => JSON.parse(row.request_json) as ChatRequest
const responseOf = (row: store.StoredRow) => JSON.parse(row.response_json) as ChatResponse

function toResponse(row: store.StoredRow): StoredCompletion {
  const { messages: _, ...asked } = requestOf(row)
  return {
    ...asked,
    ...responseOf(row),
    metadata: JSON.parse(row.metadata_json),
    expires_at: unixSeconds(row.expires_at),
  }
}

function toMessage(id: string, { content, ...message }: ChatRequest['messages'][number]): StoredMessage {
  const isParts = Array.isArray(content)
  return { ...message, id, content: isParts ? null : (content ?? null), content_parts: isParts ? content : null }
}
