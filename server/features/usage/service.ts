// Usage accounting. Requests are recorded in a journal as they end and folded into the database about once a second;
// jobs are added in the transaction that ends them.
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { getOperatorUsage } from '../../../contract/machine.ts'
import type { PeriodQuery, Timeline } from '../../../contract/timeline.ts'
import type { Thresholds, UsageGroup, UsageQuery, UsageReport } from '../../../contract/usage.ts'
import { createMutex } from '../../../lib/mutex.ts'
import { type PeriodicTask, runPeriodically } from '../../../lib/periodic.ts'
import { day_ms, isoDay } from '../../../lib/utc-day.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import type { Row } from '../../platform/db/schema.ts'
import { recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { addUsage } from './add-usage.ts'
import { createFailures } from './failures.ts'
import type { FailureKind } from './figures.ts'
import { createFolding } from './folding.ts'
import { openJournal, type UsageRecord, type UsageRow } from './journal.ts'
import * as store from './store.ts'
import { thresholdsOf } from './thresholds.ts'
import { timelineOf } from './timeline.ts'

const fold_ms = 1000
/** How long a report waits for the newest usage to be folded. */
const foldWait_ms = 2000
const defaultDays = 30
const days_max = 366
const rows_max = 10_000
const accounts_max = 1000

export interface Usage {
  /** Records the usage of a request. Call it before the client gets the end of the response, so that none is lost. */
  record(record: UsageRecord): void
  /** Counts a request that failed before its answer began. */
  recordFailure(account_id: string, model: string, kind: FailureKind): void
  /** Adds the usage of a job, in the transaction that ends it. */
  add(trx: Trx, row: UsageRow, at: number): Promise<void>
  /** Folds everything recorded so far into the database. */
  fold(): Promise<void>
  /** The usage of an account, including all completed responses. */
  report(account_id: string, query: UsageQuery): Promise<UsageReport>
  /** Figures of the requests for a model name, over time. */
  timeline(account_id: string, model: string, period: PeriodQuery): Promise<Timeline>
  /** What each account used on a UTC day, for the operator. */
  accounts(day: string | undefined): Promise<z.input<(typeof getOperatorUsage.responses)[200]>>
  find(account_id: string, request_id: string): Promise<Row<'usage'> | undefined>
  thresholds(account_id: string): Promise<Thresholds>
  setThresholds(caller: Caller, thresholds: Thresholds): Promise<Thresholds>
  /** Folds what an earlier process left, then folds about once a second. */
  start(): Promise<void>
  close(): Promise<void>
}

interface Options {
  db: Db
  dataDir: string
  database_url?: string | undefined
  currency: string
  log: Logger
  now?: () => number
}

export function createUsage({ db, dataDir, database_url, currency, log, now = Date.now }: Options): Usage {
  const journal = openJournal(path.join(dataDir, 'usage'), log)
  const folding = createFolding({ dataDir, database_url, log_level: log.level })
  const failures = createFailures()
  const serialize = createMutex()
  /** Closed journal files that are not in the database yet. */
  let files: string[] = []
  let task: PeriodicTask | undefined

  const storeFailures = () =>
    failures.flush((figures) => db.transaction().execute((trx) => store.addToFigures(trx, figures)))

  async function foldFiles(): Promise<void> {
    await storeFailures()
    files.push(...journal.rotate())
    while (files.length > 0) {
      await folding.fold(files[0]!)
      files = files.slice(1)
    }
  }

  /** Folds what is recorded now. Callers that arrive before the fold starts share it. */
  let pendingFold: Promise<void> | undefined
  const foldShared = () => {
    pendingFold ??= serialize(() => {
      pendingFold = undefined
      return foldFiles()
    }).catch((error) => log.error({ err: error }, 'usage could not be folded before a report'))
    return pendingFold
  }

  async function tick(): Promise<void> {
    try {
      await serialize(foldFiles)
    } catch (error) {
      log.error({ err: error }, 'usage could not be folded into the database; it stays in the journal and is retried')
      await journal.sync(files)
    }
  }

  return {
    record: journal.append,
    recordFailure: (account_id, model, kind) => failures.count(account_id, model, kind, now()),
    add: (trx, row, at) => addUsage(trx, [row], at),
    fold: () => serialize(foldFiles),
    find: (account_id, request_id) => store.byRequest(db, account_id, request_id),
    thresholds: (account_id) => thresholdsOf(db, account_id),

    async report(account_id, { from, to, group_by }) {
      const last = to ?? isoDay(now())
      const first = from ?? isoDay(Date.parse(last) - (defaultDays - 1) * day_ms)
      const [start, end] = [Date.parse(first), Date.parse(last) + day_ms]
      if (start >= end) throw new ApiError('invalid_request', "'from' is after 'to'.", { param: 'from' })
      if (end - start > days_max * day_ms)
        throw new ApiError('invalid_request', `A report can cover at most ${days_max} days.`, { param: 'from' })
      await Promise.race([foldShared(), sleep(foldWait_ms)])
      const columns = [...new Set(group_by)].flatMap((group) => columnsOf[group])
      const rows = await store.grouped(db, account_id, start, end, columns, rows_max + 1)
      if (rows.length > rows_max)
        throw new ApiError(
          'invalid_request',
          `That is more than ${rows_max} rows. Ask for fewer days, or group by less.`,
          { param: 'group_by' },
        )
      const items = rows.map(({ day, model, model_id, key_id, kind, ...sums }) => ({
        ...(day !== undefined && { day: isoDay(Number(day)) }),
        ...(model !== undefined && { model, model_id }),
        ...(key_id !== undefined && { key_id }),
        ...(kind !== undefined && { kind }),
        ...toResponse(sums),
      }))
      return {
        from: first,
        to: last,
        currency,
        items,
        total: toResponse(await store.total(db, account_id, start, end)),
      }
    },

    async timeline(account_id, model, period) {
      await Promise.race([foldShared(), sleep(foldWait_ms)])
      return await timelineOf(db, account_id, model, period, now())
    },

    async accounts(day = isoDay(now())) {
      await Promise.race([foldShared(), sleep(foldWait_ms)])
      return { day, currency, items: await store.accountsOn(db, Date.parse(day), accounts_max) }
    },

    async setThresholds(caller, thresholds) {
      const { percents, ...bounds } = thresholds
      const { account_id } = caller
      await db.transaction().execute(async (trx) => {
        await store.setThresholds(trx, { account_id, ...bounds, percents_json: JSON.stringify(percents) })
        await recordAuditEntry(trx, caller, 'thresholds.changed', account_id, { ...thresholds }, now())
      })
      return thresholds
    },

    async start() {
      await tick()
      task = runPeriodically(fold_ms, tick, { delayed: true })
    },
    async close() {
      await task?.close()
      await serialize(foldFiles).catch((error) =>
        log.error({ err: error }, 'usage could not be folded into the database; the next start folds it'),
      )
      await folding.close()
      journal.close()
    },
  }
}

const columnsOf: Record<UsageGroup, store.GroupColumn[]> = {
  day: ['day'],
  model: ['model', 'model_id'],
  key: ['key_id'],
  kind: ['kind'],
}

const toResponse = ({
  requests,
  prompt_tokens,
  completion_tokens,
  cached_tokens,
  trained_tokens,
  duration_ms,
  cost,
}: store.Sums) => ({
  requests,
  prompt_tokens,
  completion_tokens,
  cached_tokens,
  trained_tokens,
  seconds: duration_ms / 1000,
  cost,
})
