// Background work of evaluations: the models answer the rows after all live requests, and graders score the answers.
// What is scored is in the database: after a kill an evaluation resumes behind it.

import type { Logger } from 'pino'
import type { ChatResponse } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { endOfDay } from '../../../lib/utc-day.ts'
import { fromJson, fromJsonWithSeeds } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import type { NewRow } from '../../platform/db/schema.ts'
import type { Limits } from '../../platform/limits/index.ts'
import { withLease } from '../../platform/queue/lease-writes.ts'
import { type Claim, LeaseLost, type Queue } from '../../platform/queue/queue.ts'
import type { Turn } from '../../platform/queue/worker.ts'
import { isFull } from '../../platform/storage/durable-files.ts'
import { writeWhileFree } from '../../platform/storage/free-disk.ts'
import { rowBytes, type StorageQuota } from '../../platform/storage/quota.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Files } from '../files/index.ts'
import { askInBackground, backgroundOperations, type Inference, TurnOver, yieldToOthers } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import { GraderError, GradingStopped } from './graders/template.ts'
import { createGradingThread } from './graders/thread.ts'
import { DayUsedUp, type Grading, type GradingRun, jsonOf, sampleOf } from './grading.ts'
import { type EvaluationItem, type RowFile, readItems, requestOf, rowsOf } from './items.ts'
import { gradingSoFar } from './result.ts'
import type { Evaluations } from './service.ts'
import * as store from './store.ts'

interface EvaluationWork {
  db: Db
  queue: Queue
  datasets: Pick<Datasets, 'ready' | 'asFiles' | 'source'>
  files: Pick<Files, 'pathOf'>
  models: Pick<TunedModels, 'heldOutRows'>
  inference: Pick<Inference, 'answer' | 'isElsewhere' | 'isolation'>
  accounts: Pick<Accounts, 'tierOf'>
  limits: Pick<Limits, 'countBatchRequest'>
  evaluations: Pick<Evaluations, 'end'>
  grading: Grading
  quota: Pick<StorageQuota, 'admit'>
  dataDir: string
  min_free_mb: number
  log: Logger
  now(): number
}

/** What one attempt at an evaluation has. */
interface Attempt {
  claim: Claim
  evaluation: store.EvaluationRow
  grading: GradingRun
  turn: Turn
}

/** Rows that are answered at once. */
const concurrency = 8
/** After how many scored answers they are written. */
const flushAnswers = 16
const retry_ms = 30_000
/** Failures of the work as a whole, kills included, before the evaluation fails. */
const attemptsMax = 20
/** Time slice: how long an evaluation runs while others wait. */
const slice_ms = 30_000
/** Until one is tried again that has to wait for others of its account on upstreams. */
const turn_ms = 15_000
/** How long one whose slice is over may still wait for answers in flight; then others begin beside it. */
const grace_ms = 10_000
/**
 * Where they cannot, as the account has as many beside others as it may: how long one waits for its first answer. A
 * slow one must not be asked again at each turn.
 */
const first_ms = 600_000
/** Time of the `item_schema` for all rows, before the first answer and within no time slice. */
const check_ms = 120_000
/** Between looks at who waits: an answer may take minutes. */
const look_ms = 1000

export async function workOnEvaluation(
  work: EvaluationWork,
  claim: Claim,
  stopping: AbortSignal,
  turn: Turn,
): Promise<void> {
  const { db, queue } = work
  let grading: GradingRun | undefined
  try {
    const evaluation = await store.findUnscoped(db, claim.ref)
    if (!evaluation || !store.isActive(evaluation))
      return await withLease(work, claim, (trx) => queue.finish(trx, claim, 'done'))
    // What ends the process at each try never gets to the catch below.
    if (claim.attempt > attemptsMax) return await end(work, claim, 'failed', reasonOf(undefined))
    for (const model of [evaluation.model_id, evaluation.baseline_id])
      await yieldToOthers(work.inference, turn, evaluation.account_id, model)
    await withLease(work, claim, (trx) =>
      store.update(trx, claim.ref, { status: 'running', started_at: evaluation.started_at ?? work.now() }),
    )
    const writing = { folder: work.dataDir, min_free_mb: work.min_free_mb, signal: stopping }
    const run = await openGrading(work, evaluation, turn)
    grading = run
    const isDone = await writeWhileFree(writing, (signal) =>
      answerRows(work, { claim, evaluation, grading: run, turn }, signal),
    )
    if (isDone) await end(work, claim, 'completed')
    else await work.queue.defer(claim, work.now(), 'behind')
  } catch (error) {
    if (error instanceof LeaseLost) throw error
    if (stopping.aborted) await work.queue.defer(claim, work.now())
    else if (error instanceof DayUsedUp) await work.queue.defer(claim, error.run_at)
    else if (isFull(error) || (error instanceof ApiError && error.code === 'storage_full'))
      await work.queue.defer(claim, work.now() + retry_ms)
    else if (error instanceof TurnOver) await work.queue.defer(claim, work.now() + turn_ms, 'unused')
    else if (error instanceof GraderError || isRefusal(error) || claim.attempt >= attemptsMax)
      await end(work, claim, 'failed', reasonOf(error))
    else {
      work.log.error({ err: error, evaluation: claim.ref }, 'the work on an evaluation failed')
      await withLease(work, claim, (trx) => work.queue.requeue(trx, claim, work.now() + retry_ms))
    }
  } finally {
    await grading?.close()
  }
}

async function openGrading(work: EvaluationWork, evaluation: store.EvaluationRow, turn: Turn): Promise<GradingRun> {
  const { id, account_id, key_id } = evaluation
  return work.grading.open({
    account_id,
    key_id,
    id,
    graders: fromJsonWithSeeds(evaluation.graders_json),
    limits: store.gradingOf(evaluation),
    soFar: evaluation.done > 0 ? await gradingSoFar(store.graders(work.db, id)) : undefined,
    turn,
  })
}

/** What repeating would not mend. */
const isRefusal = (error: unknown) => error instanceof ApiError && error.status < 500 && error.status !== 429

const textOf = ({ code, message }: ApiError) => ({ code, message })

const reasonOf = (error: unknown) =>
  error instanceof ApiError
    ? textOf(error)
    : error instanceof GraderError
      ? { code: error instanceof GradingStopped ? error.code : 'evaluation_invalid', message: error.message }
      : { code: 'internal_error', message: 'Something failed inside the service. Its log has the cause.' }

async function end(
  work: EvaluationWork,
  claim: Claim,
  status: 'completed' | 'failed',
  error?: { code: string; message: string },
): Promise<void> {
  await withLease(work, claim, async (trx) => {
    await work.evaluations.end(trx, (await store.findUnscoped(trx, claim.ref))!, status, error)
    await work.queue.finish(trx, claim, 'done')
  })
  // A gate may continue.
  work.queue.wake()
}

/** Resolves with whether all rows are answered: after its time slice, an evaluation lets others run. */
async function answerRows(work: EvaluationWork, attempt: Attempt, stopping: AbortSignal): Promise<boolean> {
  const { claim, evaluation, turn } = attempt
  const sliceEnds = work.now() + slice_ms
  let isOver = false
  let answered = 0
  const file = await fileOf(work, evaluation)
  const seen = new Set((await store.answered(work.db, evaluation.id)).map(({ row, side }) => `${row} ${side}`))
  const { account_id, held_out_by } = evaluation
  const heldOut = held_out_by === null ? undefined : await work.models.heldOutRows(account_id, held_out_by)
  const drawn = rowsOf(evaluation, heldOut?.rows)
  if (seen.size === 0) await checkRows(work, evaluation, readItems(file, drawn), stopping)
  const items = readItems(file, drawn)
  const failure = new AbortController()
  /** Aborts when answers in flight take longer than the slice and its grace. */
  const late = new AbortController()
  const signal = AbortSignal.any([stopping, failure.signal, late.signal])
  const sides: [store.SideName, string][] = [['model', evaluation.model_id]]
  if (evaluation.baseline_id !== null) sides.push(['baseline', evaluation.baseline_id])
  let scored: NewRow<'evaluation_answers'>[] = []
  let writing = Promise.resolve()
  const flush = () => {
    const answers = scored
    scored = []
    if (answers.length > 0)
      writing = writing.then(() =>
        withLease(work, claim, async (trx) => {
          const bytes = answers.reduce((sum, answer) => sum + rowBytes(answer), 0)
          await work.quota.admit(trx, account_id, bytes)
          await store.addAnswers(trx, answers)
          const { done, size_bytes } = (await store.findUnscoped(trx, evaluation.id))!
          await store.update(trx, evaluation.id, { done: done + answers.length, size_bytes: size_bytes + bytes })
        }),
      )
    return writing
  }
  const answerAll = async () => {
    for (;;) {
      signal.throwIfAborted()
      if (isOver) return
      const { value: item, done } = await items.next()
      if (done) return
      for (const [side, model] of sides) {
        if (seen.has(`${item.row} ${side}`)) continue
        // First the answer: `scored` is another list after a flush.
        const answer = await answerRow(work, attempt, item, side, model, signal)
        scored.push(answer)
        answered++
        if (scored.length >= flushAnswers) await flush()
      }
    }
  }
  const looks = runPeriodically(look_ms, async () => {
    if (work.now() <= sliceEnds || turn.hasYielded) return
    isOver ||= await work.queue.othersWait(claim).catch(() => false)
    if (!isOver || work.now() <= sliceEnds + grace_ms || turn.yield(account_id)) return
    if (answered > 0 || work.now() > sliceEnds + first_ms) late.abort()
  })
  const workers = Array.from({ length: concurrency }, () =>
    answerAll().catch((error) => {
      if (!late.signal.aborted) failure.abort(error)
    }),
  )
  await Promise.all(workers)
  await looks.close()
  await items.return(undefined)
  await flush()
  stopping.throwIfAborted()
  failure.signal.throwIfAborted()
  return !isOver
}

/** Before the first answer: throws GraderError for a row that cannot be asked, or that its eval does not take. */
async function checkRows(
  work: EvaluationWork,
  evaluation: store.EvaluationRow,
  items: AsyncIterable<EvaluationItem>,
  stopping: AbortSignal,
): Promise<void> {
  const template = store.templateOf(evaluation)
  const schema = await itemSchemaOf(work.db, evaluation)
  const bounds = { signal: stopping, left_ms: check_ms }
  const thread = createGradingThread()
  try {
    for await (const item of items) {
      stopping.throwIfAborted()
      if (evaluation.model_id !== '') requestOf(item, template)
      if (!schema) continue
      const grader = { type: 'json_schema', name: 'item_schema', input: '{{item.given}}', schema } as const
      const { passed } = await thread
        .grade(grader, { item: { given: item.given } }, bounds)
        .catch((error: GraderError) => {
          throw error instanceof GraderError
            ? new GraderError(`The item_schema: row ${item.row}: ${error.message}.`)
            : error
        })
      if (!passed) throw new GraderError(`Row ${item.row} does not satisfy the item_schema of the eval.`)
    }
  } finally {
    await thread.close()
  }
}

async function itemSchemaOf(db: Db, { eval_id }: store.EvaluationRow): Promise<Record<string, unknown> | undefined> {
  const definition = eval_id === null ? undefined : await store.findEvalUnscoped(db, eval_id)
  const config = definition && fromJson(definition.source_config_json)
  return config?.type === 'custom' ? config.item_schema : undefined
}

/** The rows of an evaluation, and whether they are those of a dataset. */
async function fileOf(work: EvaluationWork, { account_id, dataset_id }: store.EvaluationRow): Promise<RowFile> {
  if (await work.datasets.asFiles.find(account_id, dataset_id)) {
    await work.datasets.ready(account_id, dataset_id)
    return { path: (await work.datasets.source(work.db, account_id, dataset_id)).path, canonical: true }
  }
  const file = await work.files.pathOf(account_id, dataset_id)
  if (!file) throw new ApiError('dataset_not_found', `The rows of the evaluation, '${dataset_id}', are gone.`)
  return { path: file.path, canonical: false }
}

async function answerRow(
  work: EvaluationWork,
  { evaluation, grading, turn }: Attempt,
  input: EvaluationItem,
  side: store.SideName,
  model: string,
  signal: AbortSignal,
): Promise<NewRow<'evaluation_answers'>> {
  const { id, account_id, key_id } = evaluation
  const { row, item } = input
  const common = { evaluation_id: id, row, side, item_json: JSON.stringify(item) }
  const background = { inference: work.inference, log: work.log, turn }
  let calls = 0
  const ask = async (request: Record<string, unknown>) => {
    const tier = await work.accounts.tierOf(account_id)
    if (!(await work.limits.countBatchRequest({ account_id, tier }))) throw new DayUsedUp(endOfDay(work.now()))
    const request_id = `${id}.${row}.${side}.${calls++}`
    const caller = { account_id, key_id }
    const asking = { caller, request_id, body: request }
    const answered = await askInBackground(background, backgroundOperations.chat, asking, signal)
    if ('error' in answered) return answered
    return { answer: JSON.parse(answered.bytes.toString('utf8')) as ChatResponse, counts: answered.counts }
  }
  const grade = async (sample: Sample): Promise<NewRow<'evaluation_answers'>> => {
    const graded = await grading.grade({ item, sample: sample.values }, signal)
    return {
      ...common,
      output: sample.output,
      tool_calls_json: sample.tool_calls.length > 0 ? JSON.stringify(sample.tool_calls) : null,
      score: graded.score ?? 0,
      passed: graded.passed ? 1 : 0,
      ungraded: graded.score === null ? 1 : 0,
      graders_json: JSON.stringify(graded.graders),
      error_json: graded.error === null ? null : JSON.stringify({ code: 'graders_failed', message: graded.error }),
      finish_reason: sample.finish_reason,
      latency_ms: sample.latency_ms,
      ...sample.counts,
    }
  }
  if (model === '') return grade(givenSample(input.sample))
  const { tools: defaultTools, ...sampling } = store.samplingOf(evaluation)
  const { messages, tools: theirs } = requestOf(input, store.templateOf(evaluation))
  const tools = theirs ?? defaultTools
  const started = performance.now()
  const answered = await ask({ model, messages, ...(tools !== undefined && { tools }), ...sampling })
  const latency_ms = Math.round(performance.now() - started)
  if ('error' in answered)
    return {
      ...common,
      output: null,
      tool_calls_json: null,
      score: 0,
      passed: 0,
      graders_json: '{}',
      error_json: JSON.stringify(textOf(answered.error)),
      finish_reason: null,
      latency_ms: null,
      ...noTokens,
    }
  const { message, finish_reason } = answered.answer.choices[0]!
  const output = message.content ?? ''
  const tool_calls = message.tool_calls ?? []
  const values = sampleOf(output, tool_calls)
  return grade({ values, output, tool_calls, finish_reason, latency_ms, counts: answered.counts })
}

/** An answer, and what graders see of it. */
interface Sample {
  values: Record<string, unknown>
  output: string | null
  tool_calls: unknown[]
  finish_reason: string | null
  latency_ms: number | null
  counts: { prompt_tokens: number; cached_tokens: number; completion_tokens: number }
}

const noTokens = { prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0 }

/** The answer that a row brings. */
function givenSample(values: Record<string, unknown>): Sample {
  const { output_text, output_tools } = values
  const output = typeof output_text === 'string' ? output_text : null
  return {
    values: output === null ? values : { ...jsonOf(output), output_tools: [], ...values },
    output,
    tool_calls: Array.isArray(output_tools) ? output_tools : [],
    finish_reason: null,
    latency_ms: null,
    counts: noTokens,
  }
}
