// Answers that accounts keep: a request that says so is stored with its answer, for as long as the operator set.

import { Readable } from 'node:stream'
import type { Logger } from 'pino'
import { type ChatRequest, ChatResponse } from '../../../contract/chat.ts'
import { Metadata } from '../../../contract/common.ts'
import type { Dataset } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type {
  DatasetOfStored,
  StoredCompletion,
  StoredFilter,
  StoredMessage,
  StoredQuery,
} from '../../../contract/stored-completions.ts'
import { day_ms, unixSeconds } from '../../../lib/utc-day.ts'
import { fromJson, fromJsonWithSeeds } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import { openaiPage, openaiPageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { metadataFilter } from '../../platform/http/metadata-filter.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import { rowBytes, type StorageQuota } from '../../platform/storage/quota.ts'
import type { Datasets } from '../datasets/index.ts'
import * as store from './store.ts'

type List<T extends { id: string }> = ReturnType<typeof openaiPageOf<T>>

interface Conversation {
  id: string
  messages: ChatRequest['messages']
  tools: ChatRequest['tools']
  answer: ChatResponse['choices'][number]
}

/** What is kept of a request beside its messages: what made the answer. */
const parameters = [
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'n',
  'seed',
  'max_tokens',
  'max_completion_tokens',
  'presence_penalty',
  'frequency_penalty',
  'repetition_penalty',
  'logit_bias',
  'stop',
  'tools',
  'tool_choice',
  'parallel_tool_calls',
  'response_format',
  'reasoning_effort',
  'chat_template_kwargs',
] as const

/** Longest request and answer that are kept, in characters of JSON. */
const charsMax = 1_000_000
const pageSize = 100

interface Options {
  db: Db
  datasets: Pick<Datasets, 'uploads'>
  dataDir: string
  min_free_mb: number
  quota: StorageQuota
  /** How long answers are kept; 0: never. */
  days: number
  log: Logger
  now(): number
}

export class StoredCompletions {
  private readonly options: Options
  // After a kill, nobody knows.
  private isDeleted = true

  constructor(options: Options) {
    this.options = options
  }

  /** Whether this request is to be kept. Throws invalid_request for metadata that cannot be. */
  keeps(request: Record<string, unknown>): boolean {
    if (this.options.days === 0 || request.store !== true) return false
    const metadata = Metadata.nullish().safeParse(request.metadata)
    if (metadata.success) return true
    throw new ApiError('invalid_request', `'metadata': ${metadata.error.issues[0]!.message}.`, { param: 'metadata' })
  }

  /** Keeps the answer that `read` returns. Never rejects: one that cannot be kept is an answer all the same. */
  async save(account_id: string, request: ChatRequest, read: () => unknown): Promise<void> {
    const { db, dataDir, min_free_mb, quota, days, log, now } = this.options
    const { messages, model } = request
    const asked = Object.fromEntries(
      parameters.flatMap((name) => (request[name] == null ? [] : [[name, request[name]]])),
    )
    const request_json = JSON.stringify({ messages, ...asked })
    const created_at = now()
    try {
      const answer = answerOf(read())
      const response_json = JSON.stringify({ ...answer, model })
      if (request_json.length + response_json.length > charsMax) return
      await requireFreeDisk(dataDir, min_free_mb)
      const row = {
        id: answer.id,
        account_id,
        model,
        metadata_json: JSON.stringify(request.metadata ?? {}),
        request_json,
        response_json,
        expires_at: created_at + days * day_ms,
        created_at,
      }
      const size_bytes = rowBytes(row)
      await quota.admit(db, account_id, size_bytes)
      await store.insert(db, { ...row, size_bytes })
    } catch (error) {
      // The account's own affair, once for each answer.
      if (error instanceof ApiError && error.code === 'storage_quota_exceeded') return
      log.warn({ err: error }, 'an answer could not be stored')
    }
  }

  async list(account_id: string, query: StoredQuery): Promise<List<StoredCompletion>> {
    const { db, now } = this.options
    const after = query.after === undefined ? undefined : await this.require(account_id, query.after, 'after')
    const { limit, order, model } = query
    const filter = { ...(model !== undefined && { model }), metadata: metadataFilter(query) }
    const { items, has_more } = await store.list(db, account_id, filter, { limit, order }, after, now())
    return openaiPage({ items: items.map(toResponse), has_more })
  }

  async get(account_id: string, id: string): Promise<StoredCompletion> {
    return toResponse(await this.require(account_id, id))
  }

  async messages(
    account_id: string,
    id: string,
    { limit, after, order }: { limit: number; after?: string | undefined; order: 'asc' | 'desc' },
  ): Promise<List<StoredMessage>> {
    const messages = requestOf(await this.require(account_id, id)).messages.map((message, index) =>
      toMessage(`${id}-${index}`, message),
    )
    if (order === 'desc') messages.reverse()
    const from = after === undefined ? 0 : messages.findIndex((message) => message.id === after) + 1
    if (after !== undefined && from === 0)
      throw new ApiError('invalid_request', `There is no message '${after}' to continue after.`, { param: 'after' })
    return openaiPageOf(messages.slice(from, from + limit + 1), limit)
  }

  async update(by: AccountActor, id: string, metadata: Record<string, string>): Promise<StoredCompletion> {
    const { db, now } = this.options
    await this.require(by.account_id, id)
    await db.transaction().execute(async (trx) => {
      await store.setMetadata(trx, by.account_id, id, JSON.stringify(metadata))
      await recordAuditEntry(trx, by, 'completion.updated', id, {}, now())
    })
    return toResponse(await this.require(by.account_id, id))
  }

  async delete(
    by: AccountActor,
    id: string,
  ): Promise<{ id: string; object: 'chat.completion.deleted'; deleted: true }> {
    const { db, now } = this.options
    await this.require(by.account_id, id)
    await db.transaction().execute(async (trx) => {
      await store.remove(trx, by.account_id, [id])
      await recordAuditEntry(trx, by, 'completion.deleted', id, {}, now())
    })
    this.isDeleted = true
    return { id, object: 'chat.completion.deleted', deleted: true }
  }

  async deleteMany(by: AccountActor, filter: StoredFilter): Promise<{ deleted: number }> {
    const { db, now } = this.options
    const time = now()
    let deleted = 0
    for (let last = pageSize; last === pageSize; deleted += last) {
      last = await db.transaction().execute(async (trx) => {
        const ids = await store.removeMatching(trx, by.account_id, filter, pageSize, time)
        if (ids.length > 0)
          await recordAuditEntry(trx, by, 'completion.deleted', ids[0]!, { completions: ids.length }, now())
        return ids.length
      })
      if (last > 0) this.isDeleted = true
    }
    return { deleted }
  }

  async toDataset(by: AccountActor, { filter, limit, name, description }: DatasetOfStored): Promise<Dataset> {
    const { datasets } = this.options
    const conversations = this.conversations(by.account_id, filter, limit)
    async function* lines() {
      let count = 0
      for await (const { messages, tools, answer } of conversations) {
        count++
        const { content, tool_calls, reasoning_content } = answer.message
        const reply = {
          role: 'assistant',
          content,
          ...(reasoning_content && { reasoning_content }),
          ...(tool_calls && { tool_calls }),
        }
        yield `${JSON.stringify({ messages: [...messages, reply], ...(tools && { tools }) })}\n`
      }
      if (count === 0)
        throw new ApiError('completion_not_found', 'No stored answer that can be learned from matches the filter.', {
          param: 'filter',
        })
    }
    const received = await datasets.uploads.receive(Readable.from(lines()), 0)
    const filename = `${name ?? 'stored completions'}.jsonl`
    return datasets.uploads.register(by, received, filename, {
      name: name ?? 'Stored completions',
      description,
      format: 'jsonl',
    })
  }

  /** What was asked and answered, newest first. */
  async *conversations(account_id: string, filter: StoredFilter, limit: number | undefined) {
    let left = limit ?? Number.MAX_SAFE_INTEGER
    for await (const row of this.rows(account_id, filter)) {
      const { messages, tools } = requestOf(row)
      const answer = responseOf(row).choices[0]
      if (!answer || !teaches(answer) || !messages.every(isRowMessage)) continue
      yield { id: row.id, messages, tools, answer }
      if (--left === 0) return
    }
  }

  async removeExpired(time: number): Promise<void> {
    for (let last = pageSize; last === pageSize; ) {
      last = await store.removeExpired(this.options.db, time, pageSize)
      if (last > 0) this.isDeleted = true
    }
  }

  /** Takes what was deleted since out of the database's write-ahead log too; later if a reader needs the log. */
  async emptyWal(): Promise<void> {
    const { db, log } = this.options
    if (!this.isDeleted) return
    this.isDeleted = false
    const isEmpty = await store.emptyWal(db).catch((error) => {
      log.warn({ err: error }, 'the write-ahead log could not be emptied; the next try is in a moment')
      return false
    })
    if (!isEmpty) this.isDeleted = true
  }

  private async require(account_id: string, id: string, param = 'completion_id'): Promise<store.StoredRow> {
    const { db, days, now } = this.options
    const row = await store.find(db, account_id, id, now())
    if (row) return row
    const why = days === 0 ? ' This service keeps none: its operator sets TUNERY_STORE_COMPLETIONS.' : ''
    throw new ApiError('completion_not_found', `There is no stored completion '${id}'.${why}`, { param })
  }

  private async *rows(account_id: string, filter: StoredFilter) {
    const { db, now } = this.options
    const time = now()
    for (let after: store.StoredRow | undefined; ; ) {
      const page = { limit: pageSize, order: 'desc' } as const
      const { items, has_more } = await store.list(db, account_id, filter, page, after, time)
      yield* items
      if (!has_more) return
      after = items.at(-1)
    }
  }
}

/** An answer that was cut would teach to end in the middle. */
const teaches = ({ finish_reason, message }: Conversation['answer']) =>
  finish_reason !== 'length' && (!!message.content || (message.tool_calls?.length ?? 0) > 0)

/** Whether rows may have the message: texts, and pictures of the user that are not addresses. */
const isRowMessage = ({ role, content }: ChatRequest['messages'][number]) =>
  !Array.isArray(content) ||
  content.every(
    (part) =>
      part.type === 'text' ||
      (part.type === 'image_url' && role === 'user' && part.image_url.url.startsWith('data:image/')),
  )

/** An answer in the shape of this service: upstreams leave fields out, or write null. Throws for one that is none. */
function answerOf(sent: unknown): ChatResponse {
  const { choices, usage, ...answer } = sent as ChatResponse
  const { prompt_tokens = 0, completion_tokens = 0, total_tokens = 0, prompt_tokens_details } = usage ?? {}
  return ChatResponse.parse({
    ...answer,
    choices: choices.map(({ index, message, logprobs, finish_reason }) => ({
      index,
      message: {
        role: 'assistant',
        content: message.content ?? null,
        refusal: null,
        ...(message.reasoning_content && { reasoning_content: message.reasoning_content }),
        ...(message.tool_calls?.length && { tool_calls: message.tool_calls }),
      },
      logprobs: logprobs?.content ? { content: logprobs.content, refusal: null } : null,
      finish_reason,
    })),
    usage: { prompt_tokens, completion_tokens, total_tokens, ...(prompt_tokens_details && { prompt_tokens_details }) },
  })
}

const requestOf = (row: store.StoredRow) => fromJsonWithSeeds(row.request_json)
const responseOf = (row: store.StoredRow) => fromJson(row.response_json)

function toResponse(row: store.StoredRow): StoredCompletion {
  const { messages: _, ...asked } = requestOf(row)
  return {
    ...asked,
    ...responseOf(row),
    metadata: fromJson(row.metadata_json),
    expires_at: unixSeconds(row.expires_at),
  }
}

function toMessage(id: string, { content, ...message }: ChatRequest['messages'][number]): StoredMessage {
  const isParts = Array.isArray(content)
  return { ...message, id, content: isParts ? null : (content ?? null), content_parts: isParts ? content : null }
}
