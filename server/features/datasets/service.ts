import { readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { SortedQuery } from '../../../contract/common.ts'
import type {
  Dataset,
  DatasetFormat,
  DatasetRow,
  Preview,
  UploadFields,
  Validation,
} from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Model } from '../../../contract/hub.ts'
import type { Objective } from '../../../contract/hyperparameters.ts'
import { newId } from '../../../lib/ids.ts'
import type { Notifications } from '../../platform/cluster/notifications.ts'
import { assertNotNeeded, type NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageBytes, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { createChangeNotifier } from '../../platform/events/event-streams.ts'
import type { FormFile } from '../../platform/http/multipart.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import { createAbortSignals } from '../../platform/queue/worker.ts'
import { type StoredFile, storeStream } from '../../platform/storage/durable-files.ts'
import { claimDisk } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { type Hub, requireRowTokens } from '../hub/index.ts'
import { createDatasetFiles, type DatasetFiles } from './as-files.ts'
import { type CanonicalRow, picturesOf, type ShownRow, shownRow } from './canonical.ts'
import type { Check } from './check-rows.ts'
import { createLineCounter } from './counter.ts'
import { formatOf, headBytes, isList } from './format.ts'
import { queueKind } from './prepare.ts'
import type { ReadResult } from './reader/main.ts'
import { formatOfUrl } from './row-pictures.ts'
import { createRowReader } from './row-reader.ts'
import * as store from './store.ts'
import {
  filesOf,
  isEarlierForm,
  keysOf,
  objectiveOf,
  objectivesOf,
  pictureCountOf,
  rowsKey,
  sourceKey,
  toResponse,
} from './store.ts'
import { requireLearnable, withTokens } from './token-report.ts'
import type { PictureTokens, Preview as RowPreview, Tokens } from './tokens.ts'

/** An uploaded file that nothing names yet: `register` makes a dataset of it, or its receiver moves it elsewhere. */
export interface Received extends StoredFile {
  /** The id that its dataset gets. */
  id: string
  path: string
  /** Its first bytes, which tell the format. */
  head: Buffer
  counted: { rows: number; not_utf8_line?: number }
}

/** Rows by number, with their lines in the uploaded file. `count`: how many of those asked for fit a page. */
interface PageOfRows {
  rows: Map<number, { line: number } & ShownRow>
  count: number
}

export interface Datasets {
  upload(by: AccountActor, upload: FormFile<UploadFields>): Promise<Dataset>
  /**
   * Stores the bytes of a file; `announced_bytes`: about as many come. `uploader`: the account that sends them, if they
   * count towards what it stores from now on. Throws file_too_large, storage_full, storage_quota_exceeded.
   */
  receive(file: NodeJS.ReadableStream, announced_bytes: number, uploader?: string): Promise<Received>
  /** Makes a dataset of a received file. A failure leaves nothing behind. `also` writes in the same transaction. */
  register(
    by: AccountActor,
    received: Received,
    filename: string,
    fields: UploadFields,
    also?: (trx: Trx, id: string) => Promise<void>,
  ): Promise<Dataset>
  /** Removes a received file that nothing became of. */
  discard(received: Received): Promise<void>
  list(account_id: string, query: SortedQuery): Promise<Page<Dataset>>
  get(account_id: string, id: string): Promise<Dataset>
  change(by: AccountActor, id: string, changes: { name?: string; description?: string }): Promise<Dataset>
  delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }>
  /** Rows in their order. Throws dataset_invalid if there are wrong ones. */
  listRows(account_id: string, id: string, query: { limit: number; after?: number }): Promise<Page<DatasetRow>>
  validate(
    account_id: string,
    id: string,
    query: { model_id?: string; max_length?: number },
    signal?: AbortSignal,
  ): Promise<Validation>
  preview(
    account_id: string,
    id: string,
    query: { model_id?: string; max_length?: number; row: number },
    signal?: AbortSignal,
  ): Promise<Preview>
  /**
   * Waits until the rows have been read. Throws dataset_not_found, dataset_invalid, or dataset_not_ready on timeout.
   */
  ready(account_id: string, id: string, wait_ms?: number): Promise<void>
  /**
   * Throws dataset_invalid if the check of the rows knows that a base cannot learn from them. A base whose weights are
   * not here is not asked. `max_length`: the length that the job asks for, if it does.
   */
  requireLearnable(
    account_id: string,
    id: string,
    base_model_id: string,
    max_length: number | undefined,
    signal?: AbortSignal,
  ): Promise<void>
  /** Throws dataset_invalid if the check knows that all rated answers are the same, from which `kto` learns nothing. */
  requireOtherAnswers(account_id: string, id: string): Promise<void>
  /**
   * The rows to train on, once they are `ready`; whoever opens the path makes it local first (`artifacts`). `known_as`:
   * the hash by which checkpoints know them, where an earlier version wrote them. Throws dataset_not_found,
   * dataset_not_ready, or dataset_invalid if rows have errors or are not of the kind that the objective learns from.
   */
  forTraining(db: Queryable, account_id: string, id: string, objective: Objective): Promise<TrainingRows>
  /**
   * The file with the rows of a dataset of any kind, how many these are, and its name. Throws what forTraining throws.
   */
  source(
    db: Queryable,
    account_id: string,
    id: string,
  ): Promise<{ path: string; total: number; name: string; pictures: number }>
  /**
   * Rows by number, from 1: the first that fit a page, whatever their order. Undefined if the dataset's files are gone.
   */
  rowsOf(id: string, rows: number[]): Promise<PageOfRows | undefined>
  /** The datasets as OpenAI's files, and the uploaded file of each. */
  asFiles: DatasetFiles
  /** Aborts when a dataset that is being read is deleted; valid until `notifyPrepared`. */
  deletionSignal(id: string): AbortSignal
  /** Wakes the requests that wait for a dataset. */
  notifyPrepared(id: string): void
  /** The Hugging Face token from an upload. Only in memory, until the dataset has been read. */
  hubToken(id: string): string | undefined
}

interface TrainingRows {
  path: string
  sha256: string
  rows: number
  known_as: string | null
}

export interface DatasetsOptions {
  db: Db
  queue: Queue
  notifications: Notifications
  hub: Hub
  tokens: Tokens
  artifacts: Artifacts
  dataDir: string
  max_mb: number
  max_rows: number
  min_free_mb: number
  quota: StorageQuota
  /** What may still need a dataset that is to be deleted. */
  neededBy: readonly NeededBy[]
  /**
   * Runs in the transaction that deletes a dataset, and resolves with the keys of the files that other features made of
   * it.
   */
  forgetDerived(trx: Trx, account_id: string, dataset_id: string): Promise<string[]>
  /** Called when a dataset was uploaded. */
  onUploaded(): void
  defaultBase: string
  now?: () => number
}

/** A form is at most this much larger than its file. */
const formBytes = 1e6
/** How long an upload waits for its file to be read, and how long a request that needs the rows waits. */
const uploadWait_ms = 12_000
const rowsWait_ms = 60_000

export function createDatasets(options: DatasetsOptions): Datasets {
  const { db, queue, notifications, hub, tokens, artifacts, dataDir, max_mb, max_rows, min_free_mb, defaultBase } =
    options
  const { quota, neededBy, now = Date.now } = options
  const hubTokens = new Map<string, string>()
  const reading = createAbortSignals(notifications)
  const notifier = createChangeNotifier(notifications)
  const rowReader = createRowReader()

  async function requireDataset(account_id: string, id: string, from: Queryable = db) {
    const found = await store.find(from, account_id, id)
    if (!found) throw new ApiError('dataset_not_found', `There is no dataset '${id}'.`)
    return found
  }

  /** Waits until the dataset has been read, or for `wait_ms`, and returns it. */
  async function waitUntilRead(account_id: string, id: string, wait_ms: number): Promise<store.DatasetRow> {
    const deadline = AbortSignal.timeout(wait_ms)
    for (;;) {
      const changed = Promise.withResolvers<void>()
      const removeListener = notifier.onChange(id, changed.resolve)
      deadline.addEventListener('abort', () => changed.resolve(), { once: true })
      try {
        const dataset = await requireDataset(account_id, id)
        const isEarlier = isEarlierForm(dataset)
        if ((dataset.status !== 'preparing' && !isEarlier) || deadline.aborted) return dataset
        if (isEarlier) await requestConversion(dataset)
        await changed.promise
      } finally {
        removeListener()
      }
    }
  }

  /** Lets a worker write the canonical rows of a dataset that an earlier version read. */
  async function requestConversion({ id, account_id }: store.DatasetRow): Promise<void> {
    const isNew = await db.transaction().execute(async (trx) => {
      const now = await store.findUnscoped(trx, id)
      if (!now || !isEarlierForm(now) || (await queue.isLive(trx, queueKind, id))) return false
      await queue.enqueue(trx, queueKind, id, account_id)
      return true
    })
    if (isNew) queue.wake()
  }

  function readResult(dataset: store.DatasetRow): Check | Extract<ReadResult, { unreadable: unknown }> {
    if (dataset.status === 'preparing' || isEarlierForm(dataset))
      throw new ApiError(
        'dataset_not_ready',
        `The rows of '${dataset.id}' are still being read. Try again in a moment.`,
        {
          details: { status: dataset.status },
        },
      )
    return JSON.parse(dataset.check_json)
  }

  function requireRows(dataset: store.DatasetRow): Check {
    const found = readResult(dataset)
    if ('unreadable' in found) throw new ApiError('dataset_invalid', found.unreadable.message)
    return found
  }

  function requireValidRows(dataset: store.DatasetRow): void {
    const check = requireRows(dataset)
    if (check.error_count > 0) throw invalidDataset(dataset, check)
  }

  /** Throws dataset_not_found instead of the error if the dataset was deleted during the work. */
  const orNotFound = <T>(dataset: store.DatasetRow, work: Promise<T>): Promise<T> =>
    work.catch(async (error) => {
      await requireDataset(dataset.account_id, dataset.id)
      throw error
    })

  async function receive(file: NodeJS.ReadableStream, announced_bytes: number, uploader?: string): Promise<Received> {
    const id = newId('ds')
    const target = path.join(dataDir, 'datasets', `${id}.upload`)
    const counter = createLineCounter()
    const max_bytes = max_mb * 1e6
    let bytes = 0
    let head: Buffer = Buffer.alloc(0)
    const tooLarge = () =>
      new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, {
        details: { max_mb },
      })
    if (announced_bytes > max_bytes + formBytes) throw tooLarge()
    const account = uploader === undefined ? undefined : quota.uploader(db, uploader)
    const claim = await claimDisk(dataDir, min_free_mb, Math.min(announced_bytes, max_bytes), account)
    try {
      const stored = await storeStream(
        file,
        target,
        (chunk) => {
          bytes += chunk.length
          if (bytes > max_bytes) throw tooLarge()
          if (head.length < headBytes) head = Buffer.concat([head, chunk.subarray(0, headBytes - head.length)])
          counter.add(chunk)
        },
        claim,
      )
      return { id, path: target, ...stored, head, counted: counter.end() }
    } finally {
      claim.release()
    }
  }

  async function register(
    by: AccountActor,
    received: Received,
    filename: string,
    { name, description, format: given, columns, hf_token }: UploadFields,
    also?: (trx: Trx, id: string) => Promise<void>,
  ): Promise<Dataset> {
    const { id, size_bytes, sha256, counted } = received
    let published: string | undefined
    try {
      const format = formatOf(given, filename, received.head, columns)
      // How many rows a list has is known when it is read.
      const hasLines = format === 'jsonl' && !isList(received.head)
      refuseUnreadable(format, size_bytes, hasLines ? counted : { ...counted, rows: 1 }, max_rows)
      const stored = { id, format, source_name: null }
      await rename(received.path, filesOf(dataDir, stored).source)
      const source = sourceKey(stored)
      published = source
      await artifacts.publish(source)
      const dataset = {
        id,
        account_id: by.account_id,
        name: name ?? filename,
        description,
        format,
        rows: hasLines ? counted.rows : 0,
        size_bytes,
        sha256,
        rows_sha256: null,
        rows_form: 1,
        columns_json: columns ? JSON.stringify(columns) : null,
        earlier_rows_sha256: null,
        source_name: null,
        status: 'preparing' as const,
        check_json: '{}',
        hub_token_server: hf_token ? queue.server : null,
        created_at: now(),
      }
      if (hf_token) hubTokens.set(id, hf_token)
      await db.transaction().execute(async (trx) => {
        await store.insert(trx, dataset)
        await recordAuditEntry(
          trx,
          by,
          'dataset.created',
          id,
          { name: dataset.name, sha256: dataset.sha256 },
          dataset.created_at,
        )
        await queue.enqueue(trx, queueKind, id, dataset.account_id)
        await also?.(trx, id)
        await quota.require(trx, by.account_id, 0)
      })
      queue.wake()
      options.onUploaded()
      if (hasLines) return toResponse(dataset)
      const read = await waitUntilRead(by.account_id, id, uploadWait_ms)
      if (read.status !== 'unreadable') return toResponse(read)
      const { unreadable } = JSON.parse(read.check_json) as Extract<ReadResult, { unreadable: unknown }>
      await store.remove(db, id)
      await artifacts.remove(source)
      const { code, message, columns: names } = unreadable
      throw new ApiError(code, message, names && { details: { columns: names.slice(0, 200) } })
    } catch (error) {
      if (!(await store.findUnscoped(db, id))) {
        await discard(received)
        if (published) await artifacts.remove(published)
      }
      throw error
    }
  }

  async function rowsOf(id: string, numbers: number[]): Promise<PageOfRows | undefined> {
    const rows: PageOfRows['rows'] = new Map()
    const indexes = new Map(numbers.map((number, index) => [number, index]))
    const lengths = new Map<number, number>()
    let characters = 0
    let count = numbers.length
    const dataset = await store.findUnscoped(db, id)
    if (dataset && isEarlierForm(dataset)) await waitUntilRead(dataset.account_id, id, rowsWait_ms)
    try {
      const first = numbers.reduce((least, number) => Math.min(least, number), numbers[0] ?? 1)
      for await (const { row: number, json } of rowReader.from(id, await artifacts.ensureLocal(rowsKey(id)), first)) {
        if ((indexes.get(number) ?? count) < count) {
          const row: CanonicalRow = JSON.parse(json)
          rows.set(number, { line: row.line ?? number, ...shownRow(row) })
          lengths.set(number, json.length)
          characters += json.length
          // The last go first: they begin the next page.
          while (characters > pageBytes && count > 1) {
            const last = numbers[--count]!
            characters -= lengths.get(last) ?? 0
            rows.delete(last)
          }
        }
        if (rows.size === count) break
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      throw error
    }
    return { rows, count }
  }

  /** The preview with the pictures themselves, which the trainer leaves out. */
  async function withPictures(
    id: string,
    row: number,
    preview: RowPreview,
  ): Promise<Omit<Preview, 'model_id' | 'row'>> {
    const known = preview.messages.flatMap(({ content }) =>
      typeof content === 'string' ? [] : content.filter((part): part is PictureTokens => part.type === 'image'),
    )
    if (known.length === 0) return { ...preview, pictures: [] }
    const messages = (await rowsOf(id, [row]))?.rows.get(row)?.messages ?? []
    const formats = picturesOf({ messages: messages as CanonicalRow['messages'] & object }).map(({ url }) =>
      formatOfUrl(url),
    )
    const pictures = known.map(({ width, height, tokens }, index) => ({
      width,
      height,
      tokens,
      format: formats[index] ?? '',
    }))
    return { ...preview, messages, pictures }
  }

  async function discard({ id, path: file }: Received): Promise<void> {
    const folder = path.dirname(file)
    for (const name of await readdir(folder))
      if (name.startsWith(`${id}.`)) await rm(path.join(folder, name), { recursive: true, force: true })
  }

  return {
    deletionSignal: reading.get,
    notifyPrepared(id) {
      reading.clear(id)
      hubTokens.delete(id)
      notifier.notify(id)
    },
    hubToken: (id) => hubTokens.get(id),

    asFiles: createDatasetFiles(db, dataDir),
    receive,
    register,
    discard,

    async upload(by, { file, filename, announced_bytes, fields }) {
      const received = await receive(file, announced_bytes, by.account_id)
      const given = await fields().catch(async (error) => {
        await discard(received)
        throw error
      })
      return register(by, received, filename, given)
    },

    async list(account_id, query) {
      const last = query.after ? await requireDataset(account_id, query.after) : undefined
      return pageOf((await store.list(db, account_id, query, last)).map(toResponse), query.limit)
    },

    get: async (account_id, id) => toResponse(await requireDataset(account_id, id)),

    async change(by, id, { name, description }) {
      return db.transaction().execute(async (trx) => {
        const before = await requireDataset(by.account_id, id, trx)
        const to = { name: name ?? before.name, description: description ?? before.description }
        await store.update(trx, id, to)
        const from = { name: before.name, description: before.description }
        await recordAuditEntry(trx, by, 'dataset.changed', id, { from, to }, now())
        return toResponse({ ...before, ...to })
      })
    },

    async listRows(account_id, id, { limit, after = 0 }) {
      const dataset = await waitUntilRead(account_id, id, rowsWait_ms)
      requireValidRows(dataset)
      const numbers = Array.from(
        { length: Math.min(limit, Math.max(0, dataset.rows - after)) },
        (_, i) => after + i + 1,
      )
      const found = numbers.length > 0 ? await rowsOf(id, numbers) : undefined
      // The files of a dataset that was deleted meanwhile are gone.
      if (!found) await requireDataset(account_id, id)
      const items = [...(found?.rows ?? [])].map(([row, shown]) => ({ row, ...shown }))
      return { items, has_more: after + (items.length || numbers.length) < dataset.rows }
    },

    async delete(by, id) {
      const { account_id } = by
      const dataset = await requireDataset(account_id, id)
      const derivedKeys = await db.transaction().execute(async (trx) => {
        await requireDataset(account_id, id, trx)
        await assertNotNeeded(
          neededBy,
          trx,
          account_id,
          id,
          (user) => `The dataset is needed by ${user}. Cancel it or wait for its end, then delete.`,
        )
        await queue.cancel(trx, queueKind, id)
        await store.remove(trx, id)
        await recordAuditEntry(trx, by, 'dataset.deleted', id, { name: dataset.name }, now())
        return await options.forgetDerived(trx, account_id, id)
      })
      hubTokens.delete(id)
      reading.abort(id)
      reading.clear(id)
      notifier.notify(id)
      const { source, rows = rowsKey(id) } = keysOf(dataset)
      await artifacts.remove(...new Set([source, rows, rowsKey(id), ...derivedKeys]))
      await rm(filesOf(dataDir, dataset).part, { force: true })
      return { id, deleted: true }
    },

    async validate(account_id, id, { model_id, max_length }, signal) {
      const dataset = await waitUntilRead(account_id, id, rowsWait_ms)
      const base = model_id === undefined ? hub.localOrUndefined(defaultBase) : hub.trainable(model_id)
      const found = readResult(dataset)
      if ('unreadable' in found)
        return { valid: false, total_samples: 0, errors: [found.unreadable.message], error_count: 1 }
      const summary = {
        total_samples: dataset.rows,
        ...(found.issues && {
          issues: found.issues,
          warnings: found.warnings,
          warning_count: found.warning_count,
          duplicates: found.duplicates,
          conflicts: found.conflicts,
        }),
      }
      const valid = found.error_count === 0
      const structure = { valid, ...summary, ...(!valid && { errors: found.errors, error_count: found.error_count }) }
      if (!base) return structure
      const pictured = toResponse(dataset)
      if (model_id !== undefined) requirePictureReader(hub.get(base.id), pictured)
      else if (pictured.pictures > 0 && hub.get(base.id).category !== 'multimodal')
        return { ...structure, tokens_unknown: readsTextOnly(base, pictured).message }
      return orNotFound(
        dataset,
        withTokens({ db, artifacts, tokens }, structure, dataset, base, max_length, { account_id, signal }),
      )
    },

    async requireLearnable(account_id, id, base_model_id, max_length, signal) {
      const base = hub.localOrUndefined(base_model_id)
      if (!base?.hf) return
      const dataset = await requireDataset(account_id, id)
      const trainable = { ...base, hf: base.hf }
      await orNotFound(
        dataset,
        requireLearnable({ db, artifacts, tokens }, dataset, trainable, max_length, { account_id, signal }),
      )
    },

    async requireOtherAnswers(account_id, id) {
      const dataset = await requireDataset(account_id, id)
      if (requireRows(dataset).answers_equal) throw sameAnswers(dataset)
    },

    async preview(account_id, id, { model_id, max_length, row: number }, signal) {
      const dataset = await waitUntilRead(account_id, id, rowsWait_ms)
      const base = hub.trainable(model_id ?? defaultBase)
      requireValidRows(dataset)
      requirePictureReader(hub.get(base.id), toResponse(dataset))
      const rows = await artifacts.ensureLocal(rowsKey(id))
      const request = {
        hf: base.hf,
        rows,
        max_length: requireRowTokens(base, max_length, 'max_length'),
        objective: objectiveOf(dataset),
        row: number,
      }
      const found = await orNotFound(dataset, tokens.preview({ account_id, signal }, request))
      if (!found)
        throw new ApiError('invalid_request', `'row' must be from 1 to ${dataset.rows}, the rows of the dataset.`, {
          details: { field: 'row', rows: dataset.rows },
        })
      return { model_id: base.id, row: number, ...(await withPictures(id, number, found)) }
    },

    async ready(account_id, id, wait_ms = rowsWait_ms) {
      requireRows(await waitUntilRead(account_id, id, wait_ms))
    },

    rowsOf,

    async source(from, account_id, id) {
      const dataset = await requireDataset(account_id, id, from)
      requireValidRows(dataset)
      const { rows: total, name } = dataset
      return { path: await artifacts.ensureLocal(rowsKey(id)), total, name, pictures: pictureCountOf(dataset) }
    },

    async forTraining(from, account_id, id, objective) {
      const dataset = await requireDataset(account_id, id, from)
      requireValidRows(dataset)
      const objectives = objectivesOf(dataset)
      if (!objectives.includes(objective)) throw wrongKind(id, objective, objectives)
      return {
        path: filesOf(dataDir, dataset).rows,
        sha256: dataset.rows_sha256!,
        rows: dataset.rows,
        known_as: dataset.earlier_rows_sha256,
      }
    },
  }
}

const learnedFrom: Record<Objective, string> = {
  sft: 'conversations (messages)',
  dpo: 'pairs of answers (prompt, chosen, rejected)',
  kto: 'rated answers (prompt, completion, label)',
}
const wrongKind = (id: string, objective: Objective, objectives: Objective[]) =>
  new ApiError(
    'dataset_invalid',
    `The rows of '${id}' are ${learnedFrom[objectives[0]!]}; the objective '${objective}' learns from ` +
      `${learnedFrom[objective]}. Choose another dataset or the objective '${objectives[0]}' ` +
      "(config.method_options.objective; in OpenAI's API method.type).",
    { details: { objective, objectives } },
  )

const sameAnswers = ({ id, rows }: Pick<Dataset, 'id' | 'rows'>) =>
  new ApiError(
    'dataset_invalid',
    `${rows === 1 ? `'${id}' has one answer` : `All ${rows} answers of '${id}' are the same`}. The objective 'kto' ` +
      'compares each answer with answers to other prompts, so it would learn nothing. Add rows with other answers.',
    { details: { objective: 'kto', rows } },
  )

/** Throws invalid_request for rows with pictures and a base that reads text alone. */
export function requirePictureReader(
  base: Pick<Model, 'id' | 'category'>,
  dataset: Pick<Dataset, 'id' | 'pictures'>,
): void {
  if (dataset.pictures > 0 && base.category !== 'multimodal') throw readsTextOnly(base, dataset)
}
const readsTextOnly = (base: Pick<Model, 'id'>, { id, pictures }: Pick<Dataset, 'id' | 'pictures'>) =>
  new ApiError(
    'invalid_request',
    `The rows of '${id}' have pictures, and ${base.id} reads text only. Choose a base of the category 'multimodal' ` +
      '(GET /v1/hub/ lists them), or a dataset without pictures.',
    { details: { field: 'model_id', pictures }, param: 'model_id' },
  )

/** The error for a dataset with rows that cannot be trained on. */
const invalidDataset = (dataset: { id: string; rows: number }, check: Check) =>
  new ApiError(
    'dataset_invalid',
    `${check.error_count} of the dataset's ${dataset.rows} rows cannot be trained on. POST ` +
      `/v1/datasets/${dataset.id}/validate lists them.`,
    { details: { error_count: check.error_count, errors: check.errors.slice(0, 10) } },
  )

/** Throws for files that are not lines of text. Files with invalid rows are accepted: `validate` reports the rows. */
function refuseUnreadable(
  format: DatasetFormat,
  size_bytes: number,
  counted: { rows: number; not_utf8_line?: number },
  max_rows: number,
): void {
  if (size_bytes === 0) throw new ApiError('file_empty', 'The file is empty.')
  if (format !== 'jsonl') return
  if (counted.not_utf8_line)
    throw new ApiError(
      'file_not_utf8',
      `The file is not UTF-8 text (first seen in line ${counted.not_utf8_line}). Save it as UTF-8 and upload it again.`,
      {
        details: { line: counted.not_utf8_line },
      },
    )
  if (counted.rows === 0) throw new ApiError('file_empty', 'The file has no rows, only blank lines.')
  if (counted.rows > max_rows)
    throw new ApiError('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`, {
      details: { max_rows },
    })
}
