// Datasets as they are read: their rows, and the wait until these are there.
import { ApiError } from '../../../contract/errors.ts'
import type { Db, Queryable } from '../../platform/db/open.ts'
import { pageBytes } from '../../platform/db/page.ts'
import type { ChangeNotifier } from '../../platform/events/event-streams.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import { type CanonicalRow, type ShownRow, shownRow } from './canonical.ts'
import type { Check } from './check-rows.ts'
import { queueKind } from './prepare.ts'
import { invalidDataset } from './refusals.ts'
import { createRowReader } from './row-reader.ts'
import * as store from './store.ts'
import { isEarlierForm, type ReadFile, readFileOf, rowsKey } from './store.ts'

/** Rows by number, with their lines in the uploaded file. `count`: how many of those asked for fit a page. */
export interface PageOfRows {
  rows: Map<number, { line: number } & ShownRow>
  count: number
}

/** How long a request that needs the rows waits for them. */
const rowsWait_ms = 60_000

interface Options {
  db: Db
  queue: Queue
  artifacts: Artifacts
  /** Tells when a dataset has been read. */
  notifier: ChangeNotifier
}

export class DatasetReads {
  private readonly options: Options
  private readonly rowReader = createRowReader()

  constructor(options: Options) {
    this.options = options
  }

  /** Throws dataset_not_found. */
  async require(account_id: string, id: string, from: Queryable = this.options.db): Promise<store.DatasetRow> {
    const dataset = await store.find(from, account_id, id)
    if (!dataset) throw new ApiError('dataset_not_found', `There is no dataset '${id}'.`)
    return dataset
  }

  /** Waits until the dataset has been read, or for `wait_ms`, and returns it. */
  async waitUntilRead(account_id: string, id: string, wait_ms = rowsWait_ms): Promise<store.DatasetRow> {
    const deadline = AbortSignal.timeout(wait_ms)
    for (;;) {
      const changed = Promise.withResolvers<void>()
      const removeListener = this.options.notifier.onChange(id, changed.resolve)
      deadline.addEventListener('abort', () => changed.resolve(), { once: true })
      try {
        const dataset = await this.require(account_id, id)
        const isEarlier = isEarlierForm(dataset)
        if ((dataset.status !== 'preparing' && !isEarlier) || deadline.aborted) return dataset
        if (isEarlier) await this.requestConversion(dataset)
        await changed.promise
      } finally {
        removeListener()
      }
    }
  }

  /** Lets a worker write the canonical rows of a dataset that an earlier version read. */
  private async requestConversion({ id, account_id }: store.DatasetRow): Promise<void> {
    const { db, queue } = this.options
    const isNew = await db.transaction().execute(async (trx) => {
      const now = await store.findUnscoped(trx, id)
      if (!now || !isEarlierForm(now) || (await queue.isLive(trx, queueKind, id))) return false
      await queue.enqueue(trx, queueKind, id, account_id)
      return true
    })
    if (isNew) queue.wake()
  }

  /** See `Datasets.rowsOf`. */
  async rowsOf(id: string, numbers: number[]): Promise<PageOfRows | undefined> {
    const { db, artifacts } = this.options
    const rows: PageOfRows['rows'] = new Map()
    const indexes = new Map(numbers.map((number, index) => [number, index]))
    const lengths = new Map<number, number>()
    let characters = 0
    let count = numbers.length
    const dataset = await store.findUnscoped(db, id)
    if (dataset && isEarlierForm(dataset)) await this.waitUntilRead(dataset.account_id, id)
    try {
      const first = numbers.reduce((least, number) => Math.min(least, number), numbers[0] ?? 1)
      for await (const { row: number, json } of this.rowReader.from(
        id,
        await artifacts.ensureLocal(rowsKey(id)),
        first,
      )) {
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

  /** Throws dataset_not_found instead of the error if the dataset was deleted during the work. */
  async orNotFound<T>(dataset: store.DatasetRow, work: Promise<T>): Promise<T> {
    try {
      return await work
    } catch (error) {
      await this.require(dataset.account_id, dataset.id)
      throw error
    }
  }
}

/** Throws dataset_not_ready while the file is being read. */
export function readFile(dataset: store.DatasetRow): ReadFile {
  if (dataset.status === 'preparing' || isEarlierForm(dataset))
    throw new ApiError(
      'dataset_not_ready',
      `The rows of '${dataset.id}' are still being read. Try again in a moment.`,
      { details: { status: dataset.status } },
    )
  return readFileOf(dataset)
}

/** The check of the rows. Throws dataset_not_ready, or dataset_invalid for a file that cannot be read. */
export function requireRows(dataset: store.DatasetRow): Check {
  const read = readFile(dataset)
  if ('unreadable' in read) throw new ApiError('dataset_invalid', read.unreadable.message)
  return read
}

/** The same if no row has an error. */
export function requireValidRows(dataset: store.DatasetRow): void {
  const check = requireRows(dataset)
  if (check.error_count > 0) throw invalidDataset(dataset, check)
}
