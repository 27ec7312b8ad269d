import { rm } from 'node:fs/promises'
import type { SortedQuery } from '../../../contract/common.ts'
import type { Dataset, DatasetRow, Preview, Validation } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Objective } from '../../../contract/hyperparameters.ts'
import type { Notifications } from '../../platform/cluster/notifications.ts'
import { assertNotNeeded, type NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { type ChangeNotifier, createChangeNotifier } from '../../platform/events/event-streams.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import { type AbortSignals, createAbortSignals } from '../../platform/queue/worker.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { type Hub, requireRowTokens } from '../hub/index.ts'
import { createDatasetFiles, type DatasetFiles } from './as-files.ts'
import { type CanonicalRow, picturesOf } from './canonical.ts'
import { queueKind } from './prepare.ts'
import { DatasetReads, type PageOfRows, readFile, requireRows, requireValidRows } from './reads.ts'
import { promptsAlone, readsTextOnly, requirePictureReader, sameAnswers, wrongKind } from './refusals.ts'
import { formatOfUrl } from './row-pictures.ts'
import * as store from './store.ts'
import { filesOf, keysOf, objectiveOf, objectivesOf, pictureCountOf, rowsKey, toResponse } from './store.ts'
import { requireLearnable, withTokens } from './token-report.ts'
import type { PictureTokens, Preview as RowPreview, Tokens } from './tokens.ts'
import { DatasetUploads } from './uploads.ts'

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
  now(): number
}

interface Lengths {
  model_id?: string | undefined
  max_length?: number | undefined
}

export class Datasets {
  readonly uploads: DatasetUploads
  /** The datasets as OpenAI's files, and the uploaded file of each. */
  readonly asFiles: DatasetFiles
  private readonly options: DatasetsOptions
  private readonly reads: DatasetReads
  private readonly reading: AbortSignals
  private readonly notifier: ChangeNotifier

  constructor(options: DatasetsOptions) {
    const { db, queue, notifications, artifacts, dataDir } = options
    this.options = options
    this.reading = createAbortSignals(notifications)
    this.notifier = createChangeNotifier(notifications)
    this.reads = new DatasetReads({ db, queue, artifacts, notifier: this.notifier })
    const { max_mb, max_rows, min_free_mb, quota, onUploaded, now } = options
    this.uploads = new DatasetUploads({
      db,
      queue,
      artifacts,
      dataDir,
      max_mb,
      max_rows,
      min_free_mb,
      quota,
      reads: this.reads,
      onUploaded,
      now,
    })
    this.asFiles = createDatasetFiles(db, dataDir)
  }

  /** Aborts when a dataset that is being read is deleted; valid until `notifyPrepared`. */
  deletionSignal(id: string): AbortSignal {
    return this.reading.get(id)
  }

  /** Wakes the requests that wait for a dataset. */
  notifyPrepared(id: string): void {
    this.reading.clear(id)
    this.uploads.forgetHubToken(id)
    this.notifier.notify(id)
  }

  async list(account_id: string, query: SortedQuery): Promise<Page<Dataset>> {
    const last = query.after ? await this.reads.require(account_id, query.after) : undefined
    return pageOf((await store.list(this.options.db, account_id, query, last)).map(toResponse), query.limit)
  }

  async get(account_id: string, id: string): Promise<Dataset> {
    return toResponse(await this.reads.require(account_id, id))
  }

  async change(
    by: AccountActor,
    id: string,
    { name, description }: { name?: string | undefined; description?: string | undefined },
  ): Promise<Dataset> {
    return this.options.db.transaction().execute(async (trx) => {
      const before = await this.reads.require(by.account_id, id, trx)
      const to = { name: name ?? before.name, description: description ?? before.description }
      await store.update(trx, id, to)
      const from = { name: before.name, description: before.description }
      await recordAuditEntry(trx, by, 'dataset.changed', id, { from, to }, this.options.now())
      return toResponse({ ...before, ...to })
    })
  }

  /** Rows in their order. Throws dataset_invalid if there are wrong ones. */
  async listRows(
    account_id: string,
    id: string,
    { limit, after = 0 }: { limit: number; after?: number | undefined },
  ): Promise<Page<DatasetRow>> {
    const dataset = await this.reads.waitUntilRead(account_id, id)
    requireValidRows(dataset)
    const numbers = Array.from({ length: Math.min(limit, Math.max(0, dataset.rows - after)) }, (_, i) => after + i + 1)
    const page = numbers.length > 0 ? await this.rowsOf(id, numbers) : undefined
    // The files of a dataset that was deleted meanwhile are gone.
    if (!page) await this.reads.require(account_id, id)
    const items = [...(page?.rows ?? [])].map(([row, shown]) => ({ row, ...shown }))
    return { items, has_more: after + (items.length || numbers.length) < dataset.rows }
  }

  async delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }> {
    const { db, queue, artifacts, dataDir, neededBy, forgetDerived, now } = this.options
    const { account_id } = by
    const dataset = await this.reads.require(account_id, id)
    const derivedKeys = await db.transaction().execute(async (trx) => {
      await this.reads.require(account_id, id, trx)
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
      return await forgetDerived(trx, account_id, id)
    })
    this.uploads.forgetHubToken(id)
    this.reading.abort(id)
    this.reading.clear(id)
    this.notifier.notify(id)
    const { source, rows = rowsKey(id) } = keysOf(dataset)
    await artifacts.remove(...new Set([source, rows, rowsKey(id), ...derivedKeys]))
    await rm(filesOf(dataDir, dataset).part, { force: true })
    return { id, deleted: true }
  }

  async validate(
    account_id: string,
    id: string,
    { model_id, max_length }: Lengths,
    signal?: AbortSignal,
  ): Promise<Validation> {
    const { db, hub, artifacts, tokens, defaultBase } = this.options
    const dataset = await this.reads.waitUntilRead(account_id, id)
    const base = model_id === undefined ? hub.localOrUndefined(defaultBase) : hub.trainable(model_id)
    const check = readFile(dataset)
    if ('unreadable' in check)
      return { valid: false, total_samples: 0, errors: [check.unreadable.message], error_count: 1 }
    const summary = {
      total_samples: dataset.rows,
      ...(check.issues && {
        issues: check.issues,
        warnings: check.warnings,
        warning_count: check.warning_count,
        duplicates: check.duplicates,
        conflicts: check.conflicts,
      }),
    }
    const valid = check.error_count === 0
    const structure = { valid, ...summary, ...(!valid && { errors: check.errors, error_count: check.error_count }) }
    if (!base) return structure
    const pictured = toResponse(dataset)
    const reader = hub.get(base.id)
    if (model_id !== undefined) requirePictureReader(reader, pictured)
    else if (pictured.pictures > 0 && !reader.pictures?.trained)
      return { ...structure, tokens_unknown: readsTextOnly(reader, pictured).message }
    return this.reads.orNotFound(
      dataset,
      withTokens({ db, artifacts, tokens }, structure, dataset, base, max_length, { account_id, signal }),
    )
  }

  /**
   * Throws dataset_invalid if the check of the rows knows that a base cannot learn from them. A base whose weights are
   * not here is not asked. `max_length`: the length that the job asks for, if it does.
   */
  async requireLearnable(
    account_id: string,
    id: string,
    base_model_id: string,
    max_length: number | undefined,
    signal?: AbortSignal,
  ): Promise<void> {
    const { db, hub, artifacts, tokens } = this.options
    const base = hub.localOrUndefined(base_model_id)
    if (!base?.hf) return
    const dataset = await this.reads.require(account_id, id)
    const trainable = { ...base, hf: base.hf }
    await this.reads.orNotFound(
      dataset,
      requireLearnable({ db, artifacts, tokens }, dataset, trainable, max_length, { account_id, signal }),
    )
  }

  /** Throws dataset_invalid if the check knows that all rated answers are the same, from which `kto` learns nothing. */
  async requireOtherAnswers(account_id: string, id: string): Promise<void> {
    const dataset = await this.reads.require(account_id, id)
    if (requireRows(dataset).answers_equal) throw sameAnswers(dataset)
  }

  async preview(
    account_id: string,
    id: string,
    { model_id, max_length, row: number }: Lengths & { row: number },
    signal?: AbortSignal,
  ): Promise<Preview> {
    const { hub, artifacts, tokens, defaultBase } = this.options
    const dataset = await this.reads.waitUntilRead(account_id, id)
    const base = hub.trainable(model_id ?? defaultBase)
    requireValidRows(dataset)
    if (objectiveOf(dataset) === 'reinforcement') throw promptsAlone(id)
    requirePictureReader(hub.get(base.id), toResponse(dataset))
    const request = {
      hf: base.hf,
      rows: await artifacts.ensureLocal(rowsKey(id)),
      max_length: requireRowTokens(base, max_length, 'max_length'),
      objective: objectiveOf(dataset),
      row: number,
    }
    const preview = await this.reads.orNotFound(dataset, tokens.preview({ account_id, signal }, request))
    if (!preview)
      throw new ApiError('invalid_request', `'row' must be from 1 to ${dataset.rows}, the rows of the dataset.`, {
        details: { field: 'row', rows: dataset.rows },
      })
    return { model_id: base.id, row: number, ...(await this.withPictures(id, number, preview)) }
  }

  /** The preview with the pictures themselves, which the trainer leaves out. */
  private async withPictures(id: string, row: number, preview: RowPreview): Promise<Omit<Preview, 'model_id' | 'row'>> {
    const pictured = preview.messages.flatMap(({ content }) =>
      typeof content === 'string' ? [] : content.filter((part): part is PictureTokens => part.type === 'image'),
    )
    if (pictured.length === 0) return { ...preview, pictures: [] }
    const messages = (await this.rowsOf(id, [row]))?.rows.get(row)?.messages ?? []
    const formats = picturesOf({ messages: messages as CanonicalRow['messages'] & object }).map(({ url }) =>
      formatOfUrl(url),
    )
    const pictures = pictured.map(({ width, height, tokens }, index) => ({
      width,
      height,
      tokens,
      format: formats[index] ?? '',
    }))
    return { ...preview, messages, pictures }
  }

  /**
   * Waits until the rows have been read. Throws dataset_not_found, dataset_invalid, or dataset_not_ready on timeout.
   */
  async ready(account_id: string, id: string, wait_ms?: number): Promise<void> {
    requireRows(await this.reads.waitUntilRead(account_id, id, wait_ms))
  }

  /**
   * Rows by number, from 1: the first that fit a page, whatever their order. Undefined if the dataset's files are gone.
   */
  rowsOf(id: string, rows: number[]): Promise<PageOfRows | undefined> {
    return this.reads.rowsOf(id, rows)
  }

  /**
   * The file with the rows of a dataset of any kind, how many these are, and its name. Throws what forTraining throws.
   */
  async source(
    from: Queryable,
    account_id: string,
    id: string,
  ): Promise<{ path: string; total: number; name: string; pictures: number }> {
    const dataset = await this.reads.require(account_id, id, from)
    requireValidRows(dataset)
    const { rows: total, name } = dataset
    const path = await this.options.artifacts.ensureLocal(rowsKey(id))
    return { path, total, name, pictures: pictureCountOf(dataset) }
  }

  /**
   * The rows to train on, once they are `ready`; make the path local before you open it (`artifacts`). `known_as`: the
   * hash by which checkpoints know them, where an earlier version wrote them. Throws dataset_not_found,
   * dataset_not_ready, or dataset_invalid if rows have errors or are not of the kind that the objective learns from.
   */
  async forTraining(from: Queryable, account_id: string, id: string, objective: Objective): Promise<TrainingRows> {
    const dataset = await this.reads.require(account_id, id, from)
    requireValidRows(dataset)
    const objectives = objectivesOf(dataset)
    // Their prompts are answered anew.
    const isPrompted = objective === 'reinforcement' && objectives.some((kind) => kind !== 'dpo')
    if (!isPrompted && !objectives.includes(objective)) throw wrongKind(id, objective, objectives)
    return {
      path: filesOf(this.options.dataDir, dataset).rows,
      sha256: dataset.rows_sha256!,
      rows: dataset.rows,
      known_as: dataset.earlier_rows_sha256,
    }
  }
}
