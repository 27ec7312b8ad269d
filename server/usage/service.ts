// What requests and jobs used: requests are taken down in a journal as they end and folded into the database about once
// a second, jobs are added in the transaction that ends them.
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import type { Thresholds, UsageGroup, UsageQuery, UsageReport } from '../../contract/usage.ts'
import { createMutex } from '../../lib/mutex.ts'
import { day_ms } from '../../lib/utc-day.ts'
import type { Db, Trx } from '../db/open.ts'
import type { Row } from '../db/schema.ts'
import { recordAct } from '../events/audit.ts'
import type { Caller } from '../http/auth.ts'
import type { Limits } from '../limits/service.ts'
import { createFolding } from './folding.ts'
import { openJournal, type UsageRecord, type UsageRow } from './journal.ts'
import * as store from './store.ts'
import { addUsage } from './store.ts'
import { reached, tellThresholds, thresholdsOf } from './thresholds.ts'

const fold_ms = 1000
/** How long a report waits for what has just been used; a locked database does not hold it up. */
const fold_patience_ms = 2000
const usualDays = 30
const days_max = 366
const rows_max = 10_000

export interface Usage {
  /**
   * Takes down what a request used. Call it before the client has the end of the answer: what it saw complete is never
   * lost then.
   */
  record(record: UsageRecord): void
  /** Adds what a job used, in the transaction that ends it. */
  add(trx: Trx, row: UsageRow, at: number): Promise<void>
  /** Brings what was recorded until now into the database. */
  fold(): Promise<void>
  /** What an account used; all that has been answered is in it. */
  report(account_id: string, query: UsageQuery): Promise<UsageReport>
  find(account_id: string, request_id: string): Promise<Row<'usage'> | undefined>
  thresholds(account_id: string): Promise<Thresholds>
  setThresholds(caller: Caller, thresholds: Thresholds): Promise<Thresholds>
  /** Folds what an earlier process left, then about once a second. */
  start(): Promise<void>
  close(): Promise<void>
}

interface Options {
  db: Db
  limits: Pick<Limits, 'onCounted'>
  dataDir: string
  currency: string
  log: Logger
  now?: () => number
}

export function createUsage({ db, limits, dataDir, currency, log, now = Date.now }: Options): Usage {
  const journal = openJournal(path.join(dataDir, 'usage'), log)
  const folding = createFolding({ dataDir, log_level: log.level })
  const inTurn = createMutex()
  /** Complete files that are not in the database yet. */
  let files: string[] = []
  let timer: NodeJS.Timeout | undefined
  let running = false

  async function foldFiles(): Promise<void> {
    files.push(...journal.rotate())
    while (files.length > 0) {
      await folding.fold(files[0]!)
      files = files.slice(1)
    }
  }

  /** Folds what is there now; who asks while another waits for that waits with them. */
  let soon: Promise<void> | undefined
  const foldSoon = () => {
    soon ??= inTurn(() => {
      soon = undefined
      return foldFiles()
    }).catch((error) => log.error({ err: error }, 'usage could not be folded before it was told'))
    return soon
  }

  async function tick(): Promise<void> {
    try {
      await inTurn(foldFiles)
    } catch (error) {
      log.error(
        { err: error },
        'usage could not be folded into the database; it stays in the journal and is tried again',
      )
      await journal.sync(files)
    }
    if (running) timer = setTimeout(tick, fold_ms).unref()
  }

  /**
   * What was reached of the day when it was last looked at: nearly always the same, and then the database need not be
   * asked.
   */
  const told = new Map<string, string>()
  limits.onCounted(async (account_id, from, used, limit) => {
    const { requests_per_day, percents } = await thresholdsOf(db, account_id)
    const bound = requests_per_day ?? limit
    if (bound === null) return
    const reachedNow = `${from} ${bound} ${reached(used, bound, percents)}`
    if (told.get(account_id) === reachedNow) return
    await db
      .transaction()
      .execute((trx) =>
        tellThresholds(
          trx,
          account_id,
          { metric: 'requests_per_day', from, to: from + day_ms, used, bound, percents },
          now(),
        ),
      )
    told.set(account_id, reachedNow)
  })

  return {
    record: journal.append,
    add: (trx, row, at) => addUsage(trx, [row], at),
    fold: () => inTurn(foldFiles),
    find: (account_id, request_id) => store.byRequest(db, account_id, request_id),
    thresholds: (account_id) => thresholdsOf(db, account_id),

    async report(account_id, { from, to, group_by }) {
      const last = to ?? isoDay(now())
      const first = from ?? isoDay(Date.parse(last) - (usualDays - 1) * day_ms)
      const [start, end] = [Date.parse(first), Date.parse(last) + day_ms]
      if (start >= end) throw new ApiError('invalid_request', "'from' is after 'to'.", { param: 'from' })
      if (end - start > days_max * day_ms)
        throw new ApiError('invalid_request', `At most ${days_max} days can be asked for at once.`, { param: 'from' })
      await Promise.race([foldSoon(), sleep(fold_patience_ms)])
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
        ...toWire(sums),
      }))
      return { from: first, to: last, currency, items, total: toWire(await store.total(db, account_id, start, end)) }
    },

    async setThresholds(caller, thresholds) {
      const { percents, ...bounds } = thresholds
      const { account_id } = caller
      await db.transaction().execute(async (trx) => {
        await store.setThresholds(trx, { account_id, ...bounds, percents_json: JSON.stringify(percents) })
        await recordAct(trx, caller, 'thresholds.changed', account_id, { ...thresholds }, now())
      })
      return thresholds
    },

    async start() {
      running = true
      await tick()
    },
    async close() {
      running = false
      clearTimeout(timer)
      await inTurn(foldFiles).catch((error) =>
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

const isoDay = (time: number) => new Date(time).toISOString().slice(0, 10)

const toWire = ({
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
