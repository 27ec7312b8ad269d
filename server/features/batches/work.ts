// Background work of batches: checks the file, answers its requests after all live ones, and publishes the results.
import { createReadStream, existsSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { BatchEndpoint, BatchError } from '../../../contract/batches.ts'
import { errorBody } from '../../../contract/errors.ts'
import { endOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Limits } from '../../platform/limits/index.ts'
import { withLease } from '../../platform/queue/lease-writes.ts'
import { type Claim, LeaseLost, type Queue, type TurnEnd } from '../../platform/queue/queue.ts'
import type { Turn } from '../../platform/queue/worker.ts'
import { writeWhileFree } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Files, NewFile } from '../files/index.ts'
import { askInBackground, backgroundOperations, type Inference, TurnOver, yieldToOthers } from '../inference/index.ts'
import { type BatchLine, checkLines, readLines } from './lines.ts'
import { openResults, type Result, type Results, type Tokens } from './results.ts'
import * as store from './store.ts'

interface BatchWork {
  db: Db
  queue: Queue
  files: Files
  inference: Pick<Inference, 'answer' | 'isElsewhere' | 'isolation'>
  accounts: Pick<Accounts, 'tierOf'>
  limits: Pick<Limits, 'countBatchRequest'>
  artifacts: Artifacts
  dataDir: string
  min_free_mb: number
  log: Logger
  now(): number
}

/** After this time a batch lets another one that waits run. */
const turn_ms = 30_000
const report_ms = 1000
/** Results go to a storage that machines share this often, and for a twentieth of the time at most. */
const share_ms = 5000
/** How long a batch whose turn is over may still wait for answers in flight; then others begin beside it. */
const grace_ms = 10_000
/**
 * Where they cannot, as the account has as many beside others as it may: how long one waits for its first answer. A
 * slow one must not be asked again at each turn.
 */
const first_ms = 600_000
/** Delay before work that failed is tried again. */
const retry_ms = 30_000
/** The same for one that has to wait for others of its account on upstreams. */
const yield_ms = 15_000

const operations = {
  '/v1/chat/completions': backgroundOperations.chat,
  '/v1/completions': backgroundOperations.completion,
  '/v1/embeddings': backgroundOperations.embedding,
} satisfies Record<BatchEndpoint, unknown>
/**
 * Requests of a batch in flight. The engine computes embeddings one after the other: more would delay live requests.
 */
const concurrencyOf = (endpoint: BatchEndpoint) => (endpoint === '/v1/embeddings' ? 1 : 16)

type Ending = NonNullable<store.BatchRow['ending']>
const unansweredMessages = {
  completed: { code: 'batch_failed', message: 'This request was not executed.' },
  expired: {
    code: 'batch_expired',
    message: 'This request could not be executed before the completion window expired.',
  },
  cancelled: { code: 'batch_cancelled', message: 'The batch was cancelled before this request was executed.' },
}

export async function workOnBatch(work: BatchWork, claim: Claim, stopping: AbortSignal, turn: Turn): Promise<void> {
  try {
    const row = await store.findUnscoped(work.db, claim.ref)
    if (!row || !store.isActive(row))
      return await withLease(work, claim, (trx) => work.queue.finish(trx, claim, 'done'))
    if (row.status === 'validating' && !(await validate(work, claim, row, stopping))) return
    await continueBatch(work, claim, (await store.findUnscoped(work.db, claim.ref))!, stopping, turn)
  } catch (error) {
    if (error instanceof LeaseLost) throw error
    if (stopping.aborted) return await requeue(work, claim, work.now())
    if (error instanceof TurnOver) return await requeue(work, claim, work.now() + yield_ms, 'unused')
    work.log.error({ err: error, batch: claim.ref }, 'the work on a batch failed')
    await retryOrFail(work, claim)
  }
}

const requeue = (work: BatchWork, claim: Claim, run_at: number, turn?: TurnEnd) =>
  withLease(work, claim, (trx) => work.queue.requeue(trx, claim, run_at, turn))

/** Tries again later; once the batch has expired, ends it as failed. */
async function retryOrFail(work: BatchWork, claim: Claim): Promise<void> {
  const row = await store.findUnscoped(work.db, claim.ref)
  if (!row || row.expires_at > work.now()) return await requeue(work, claim, work.now() + retry_ms)
  const message = 'Something failed inside the service. Its log has the cause.'
  await fail(work, claim, [{ code: 'internal_error', message, param: null, line: null }])
}

const fail = (work: BatchWork, claim: Claim, errors: BatchError[], values: Partial<store.BatchRow> = {}) =>
  withLease(work, claim, async (trx) => {
    const row = (await store.findUnscoped(trx, claim.ref))!
    await store.end(trx, row, 'failed', work.now(), { ...values, errors_json: JSON.stringify(errors) })
    await work.queue.finish(trx, claim, 'done')
  })

/** The path of the requests; undefined if the file is gone. */
async function inputOf(work: BatchWork, row: store.BatchRow): Promise<string | undefined> {
  const input = await work.files.pathOf(row.account_id, row.input_file_id)
  return input && existsSync(input.path) ? input.path : undefined
}

const inputMissing = ({ input_file_id }: store.BatchRow): BatchError => ({
  code: 'file_not_found',
  message: `The file '${input_file_id}' is no longer there.`,
  param: 'input_file_id',
  line: null,
})

/** Resolves with whether the batch continues. */
async function validate(work: BatchWork, claim: Claim, row: store.BatchRow, signal: AbortSignal): Promise<boolean> {
  const input = await inputOf(work, row)
  const { total, model, problems } = input
    ? await checkLines(input, row.endpoint, signal)
    : { total: 0, model: null, problems: [inputMissing(row)] }
  if (problems.length > 0) {
    await fail(work, claim, problems, { total, model })
    return false
  }
  await withLease(work, claim, async (trx) => {
    const current = (await store.findUnscoped(trx, row.id))!
    await store.setStatus(trx, current, 'in_progress', work.now(), { total, model })
  })
  return true
}

async function continueBatch(
  work: BatchWork,
  claim: Claim,
  row: store.BatchRow,
  stopping: AbortSignal,
  turn: Turn,
): Promise<void> {
  const ended = row.status === 'cancelling' || row.ending !== null || row.expires_at <= work.now()
  if (!ended) await yieldToOthers(work.inference, turn, row.account_id, row.model)
  const writing = { folder: work.dataDir, min_free_mb: work.min_free_mb, signal: stopping }
  await writeWhileFree(writing, (signal) => answerAndPublish(work, claim, row, signal, turn))
}

async function answerAndPublish(
  work: BatchWork,
  claim: Claim,
  row: store.BatchRow,
  stopping: AbortSignal,
  turn: Turn,
): Promise<void> {
  const input = await inputOf(work, row)
  if (!input) return await fail(work, claim, [inputMissing(row)])
  // Another machine may have answered some of it.
  await work.artifacts.ensureLargest(store.batchKey(row.id))
  const results = await openResults(store.batchDir(work.dataDir, row.id))
  try {
    // Also of a batch that was being published: a restored backup does not have its results.
    if (endingOf(work, row) === 'completed') {
      const answered = await answerLines(work, claim, row, input, results, stopping, turn)
      if (answered === 'later') return
    }
    await publish(work, claim, row.id, input, results)
  } finally {
    await results.close()
  }
  await work.artifacts.remove(store.batchKey(row.id))
}

/** How the batch ends if it ends now: `completed` with all lines answered. */
function endingOf(work: BatchWork, row: store.BatchRow): Ending {
  if (row.ending !== null) return row.ending
  if (store.timesOf(row).cancelling !== undefined) return 'cancelled'
  return row.expires_at <= work.now() ? 'expired' : 'completed'
}

/** Answers what is not answered yet. `later`: the batch was put back into the queue. */
async function answerLines(
  work: BatchWork,
  claim: Claim,
  row: store.BatchRow,
  input: string,
  results: Results,
  stopping: AbortSignal,
  turn: Turn,
): Promise<'done' | 'later'> {
  const turnEnds = work.now() + turn_ms
  /** Aborts when the batch has expired, was cancelled, or has to let others run. */
  const late = new AbortController()
  const failure = new AbortController()
  const signal = AbortSignal.any([stopping, late.signal, failure.signal])
  /** When the batch is continued. */
  let continueAt: number | undefined
  let othersWait = false
  /** Others have begun beside it: it only waits for its answers in flight. */
  let hasGivenWay = false
  const before = results.completed + results.failed
  const answered = () => results.completed + results.failed - before
  const lines = readLines(input)
  const next = async (): Promise<BatchLine | undefined> => {
    for (;;) {
      if (signal.aborted || continueAt !== undefined || hasGivenWay) return undefined
      if (othersWait && work.now() > turnEnds) return undefined
      const { value, done } = await lines.next()
      if (done) return undefined
      if (!results.has(value.custom_id)) return value
    }
  }
  /** What the row says: no more than the next server finds, if this one is killed. */
  let counts: Counts | undefined
  let shareNext_at = 0
  const share = async () => {
    const began = performance.now()
    const shared = await results.unchanged(async () => {
      const whole = countsOf(results)
      if (whole.completed + whole.failed === 0) return whole
      return await work.artifacts.publish(store.batchKey(row.id)).then(
        () => whole,
        (error: Error) => error,
      )
    })
    if (!(shared instanceof Error)) counts = shared
    shareNext_at = performance.now() + Math.max(share_ms, 20 * (performance.now() - began))
    return shared
  }
  /** Before the batch is left to whichever server claims it next. */
  const shareOrThrow = async () => {
    const shared = await share()
    if (shared instanceof Error) throw shared
  }
  const answerAll = async () => {
    for (let line = await next(); line; line = await next()) {
      const { account_id } = row
      const tier = await work.accounts.tierOf(account_id)
      if (!(await work.limits.countBatchRequest({ account_id, tier }))) {
        continueAt = Math.min(endOfDay(work.now()), row.expires_at)
        return
      }
      const { result, tokens } = await answer(work, row, line, signal, turn)
      results.add(result, tokens)
    }
  }
  const report = async () => {
    await results.sync()
    if (!work.artifacts.shared) counts = countsOf(results)
    else if (performance.now() >= shareNext_at) {
      const shared = await share()
      // The storage may be back before the batch ends.
      if (shared instanceof Error)
        work.log.warn({ err: shared, batch: row.id }, 'results of a batch could not be shared')
    }
    const now = work.now()
    othersWait = !turn.hasYielded && (await work.queue.othersWait(claim))
    const status = await withLease(work, claim, async (trx) => {
      if (counts) await store.update(trx, row.id, counts)
      return (await store.findUnscoped(trx, row.id))!.status
    })
    if (status === 'cancelling' || now >= row.expires_at) late.abort()
    // The engine may have paused its lines for hours.
    else if (othersWait && now > turnEnds + grace_ms) {
      hasGivenWay = turn.yield(row.account_id)
      if (!hasGivenWay && (answered() > 0 || now > turnEnds + first_ms)) late.abort()
    }
  }
  const reporting = reportWhile(report, failure)
  const workers = Array.from({ length: concurrencyOf(row.endpoint) }, () =>
    answerAll().catch((error) => {
      if (!signal.aborted) failure.abort(error)
    }),
  )
  await Promise.all(workers)
  await reporting.stop()
  await lines.return(undefined)
  failure.signal.throwIfAborted()
  if (stopping.aborted) await shareOrThrow()
  stopping.throwIfAborted()
  await report()
  const now = (await store.findUnscoped(work.db, row.id))!
  if (endingOf(work, now) !== 'completed' || results.completed + results.failed >= row.total) return 'done'
  await shareOrThrow()
  await requeue(work, claim, continueAt ?? work.now(), 'behind')
  return 'later'
}

function reportWhile(report: () => Promise<void>, failure: AbortController): { stop(): Promise<void> } {
  const stopped = new AbortController()
  const loop = (async () => {
    while (!stopped.signal.aborted) {
      await sleep(report_ms, undefined, { signal: stopped.signal }).catch(() => {})
      if (!stopped.signal.aborted) await report()
    }
  })().catch((error) => failure.abort(error))
  return {
    stop() {
      stopped.abort()
      return loop
    },
  }
}

type Counts = ReturnType<typeof countsOf>
const countsOf = ({ completed, failed, prompt_tokens, cached_tokens, completion_tokens }: Results) => ({
  completed,
  failed,
  prompt_tokens,
  cached_tokens,
  completion_tokens,
})

/** Answers one request. Throws if the signal aborts. */
async function answer(
  work: BatchWork,
  row: store.BatchRow,
  { line, custom_id, body }: BatchLine,
  signal: AbortSignal,
  turn: Turn,
): Promise<{ result: Result; tokens?: Tokens }> {
  const request_id = `${row.id}.${line}`
  const caller = { account_id: row.account_id, key_id: row.key_id }
  const tools = { inference: work.inference, log: work.log, turn }
  const answered = await askInBackground(tools, operations[row.endpoint], { caller, request_id, body }, signal)
  if ('error' in answered) {
    const { error } = answered
    return { result: { custom_id, request_id, status: error.status, body: JSON.stringify(errorBody(error, true)) } }
  }
  const { bytes, counts, warnings } = answered
  const result = { custom_id, request_id, status: 200, body: bytes.toString('utf8').trim(), warnings }
  return { result, tokens: counts }
}

/** Turns the results into files of the account and ends the batch, in one transaction. */
async function publish(work: BatchWork, claim: Claim, id: string, input: string, results: Results): Promise<void> {
  // Decided before the files are written, so that a kill does not change it.
  const ending = await withLease(work, claim, async (trx) => {
    const row = (await store.findUnscoped(trx, id))!
    const ending = endingOf(work, row)
    if (row.status !== 'finalizing') await store.setStatus(trx, row, 'finalizing', work.now(), { ending })
    return ending
  })
  if (results.completed + results.failed < (await store.findUnscoped(work.db, id))!.total)
    for await (const { custom_id } of readLines(input))
      if (!results.has(custom_id)) results.add({ custom_id, error: unansweredMessages[ending] })
  await results.sync()
  const written: NewFile[] = []
  const write = async (file: string, count: number) => {
    if (count === 0) return undefined
    const output = await work.files.write(createReadStream(file))
    written.push(output)
    return output
  }
  try {
    const output = await write(results.output, results.completed)
    const errors = await write(results.errors, results.failed)
    await withLease(work, claim, async (trx) => {
      const row = (await store.findUnscoped(trx, id))!
      const time = work.now()
      const file = {
        account_id: row.account_id,
        purpose: 'batch_output' as const,
        created_at: time,
        expires_at: row.output_seconds === null ? null : time + row.output_seconds * 1000,
      }
      if (output) await work.files.insert(trx, output, { ...file, filename: `${id}_output.jsonl` })
      if (errors) await work.files.insert(trx, errors, { ...file, filename: `${id}_error.jsonl` })
      const files = { output_file_id: output?.id ?? null, error_file_id: errors?.id ?? null }
      await store.end(trx, row, ending, time, { ...countsOf(results), ...files })
      await work.queue.finish(trx, claim, 'done')
    })
  } catch (error) {
    for (const file of written) await work.files.drop(file)
    throw error
  }
}
