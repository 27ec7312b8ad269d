// Background work of evaluations: the models answer the rows after all live requests, and graders score the answers.
// What is scored is in the database: after a kill an evaluation goes on behind it.
import type { Logger } from 'pino'
import type { ChatResponse } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { endOfDay } from '../../lib/utc-day.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Db } from '../db/open.ts'
import type { NewRow } from '../db/schema.ts'
import type { Files } from '../files/index.ts'
import { askInBackground, backgroundOperations, type Inference } from '../inference/index.ts'
import type { Limits } from '../limits/index.ts'
import { type Claim, LeaseLost, type Queue, withLease } from '../queue/queue.ts'
import { type Graded, gradeAnswer } from './graders/grade.ts'
import { GraderError } from './graders/template.ts'
import { createGradingThread, type GradingThread } from './graders/thread.ts'
import { drawnRows, type EvaluationItem, readItems } from './items.ts'
import type { Evaluations } from './service.ts'
import * as store from './store.ts'

export interface EvaluationWork {
  db: Db
  queue: Queue
  datasets: Pick<Datasets, 'asFiles' | 'source'>
  files: Pick<Files, 'pathOf'>
  inference: Pick<Inference, 'answer'>
  accounts: Pick<Accounts, 'tierForWork'>
  limits: Pick<Limits, 'countBatchRequest'>
  evaluations: Pick<Evaluations, 'end'>
  log: Logger
  now(): number
}

/** Rows that are answered at once. */
const concurrency = 8
/** After how many scored answers they are written. */
const flushAnswers = 16
const retry_ms = 30_000
/** Failures of the work as a whole, a kill included, before the evaluation fails. */
const attemptsMax = 20

/** The work is put off until then. */
class Later extends Error {
  readonly run_at: number
  constructor(run_at: number) {
    super('later')
    this.run_at = run_at
  }
}

export async function workOnEvaluation(work: EvaluationWork, claim: Claim, stopping: AbortSignal): Promise<void> {
  const { db, queue } = work
  const thread = createGradingThread()
  try {
    const evaluation = await store.byId(db, claim.ref)
    if (!evaluation || !store.isActive(evaluation))
      return await withLease(work, claim, (trx) => queue.finish(trx, claim, 'done'))
    await withLease(work, claim, (trx) =>
      store.update(trx, claim.ref, { status: 'running', started_at: evaluation.started_at ?? work.now() }),
    )
    await answerRows(work, claim, evaluation, thread, stopping)
    await end(work, claim, 'completed')
  } catch (error) {
    if (error instanceof LeaseLost) throw error
    if (stopping.aborted) await requeue(work, claim, work.now())
    else if (error instanceof Later) await requeue(work, claim, error.run_at)
    else if (error instanceof GraderError || error instanceof ApiError || claim.attempt >= attemptsMax)
      await end(work, claim, 'failed', reasonOf(error))
    else {
      work.log.error({ err: error, evaluation: claim.ref }, 'the work on an evaluation failed')
      await requeue(work, claim, work.now() + retry_ms)
    }
  } finally {
    await thread.close()
  }
}

const requeue = (work: EvaluationWork, claim: Claim, run_at: number) =>
  withLease(work, claim, (trx) => work.queue.requeue(trx, claim, run_at))

const textOf = ({ code, message }: ApiError) => ({ code, message })

const reasonOf = (error: unknown) =>
  error instanceof ApiError
    ? textOf(error)
    : error instanceof GraderError
      ? { code: 'evaluation_invalid', message: error.message }
      : { code: 'internal_error', message: 'Something failed inside the service. Its log has the cause.' }

function end(
  work: EvaluationWork,
  claim: Claim,
  status: 'completed' | 'failed',
  error?: { code: string; message: string },
): Promise<void> {
  return withLease(work, claim, async (trx) => {
    await work.evaluations.end(trx, (await store.byId(trx, claim.ref))!, status, error)
    await work.queue.finish(trx, claim, 'done')
  })
}

async function answerRows(
  work: EvaluationWork,
  claim: Claim,
  evaluation: store.EvaluationRow,
  thread: GradingThread,
  stopping: AbortSignal,
): Promise<void> {
  const file = await fileOf(work, evaluation)
  const known = new Set((await store.answered(work.db, evaluation.id)).map(({ row, side }) => `${row} ${side}`))
  const template = evaluation.template_json ? JSON.parse(evaluation.template_json) : undefined
  const items = readItems(file, drawnRows(evaluation.total_rows, evaluation.rows), template)
  const failure = new AbortController()
  const signal = AbortSignal.any([stopping, failure.signal])
  const sides: [store.SideName, string][] = [
    ['model', evaluation.model_id],
    ...(evaluation.baseline_id === null ? [] : [['baseline', evaluation.baseline_id] as [store.SideName, string]]),
  ]
  let scored: NewRow<'evaluation_answers'>[] = []
  let writing = Promise.resolve()
  const flush = () => {
    const answers = scored
    scored = []
    if (answers.length > 0)
      writing = writing.then(() =>
        withLease(work, claim, async (trx) => {
          await store.addAnswers(trx, answers)
          const { done } = (await store.byId(trx, evaluation.id))!
          await store.update(trx, evaluation.id, { done: done + answers.length })
        }),
      )
    return writing
  }
  const answerAll = async () => {
    for (;;) {
      signal.throwIfAborted()
      const { value: item, done } = await items.next()
      if (done) return
      for (const [side, model] of sides) {
        if (known.has(`${item.row} ${side}`)) continue
        // First the answer: `scored` is another list after a flush.
        const answer = await answerRow(work, evaluation, thread, item, side, model, signal)
        scored.push(answer)
        if (scored.length >= flushAnswers) await flush()
      }
    }
  }
  const workers = Array.from({ length: concurrency }, () => answerAll().catch((error) => failure.abort(error)))
  await Promise.all(workers)
  await items.return(undefined)
  await flush()
  stopping.throwIfAborted()
  failure.signal.throwIfAborted()
}

async function fileOf(work: EvaluationWork, { account_id, dataset_id }: store.EvaluationRow): Promise<string> {
  if (await work.datasets.asFiles.find(account_id, dataset_id))
    return (await work.datasets.source(work.db, account_id, dataset_id)).path
  const file = await work.files.pathOf(account_id, dataset_id)
  if (!file) throw new ApiError('dataset_not_found', `The rows of the evaluation, '${dataset_id}', are gone.`)
  return file.path
}

async function answerRow(
  work: EvaluationWork,
  evaluation: store.EvaluationRow,
  thread: GradingThread,
  { row, item, messages, tools }: EvaluationItem,
  side: store.SideName,
  model: string,
  signal: AbortSignal,
): Promise<NewRow<'evaluation_answers'>> {
  const { id, account_id, key_id } = evaluation
  const common = { evaluation_id: id, row, side, item_json: JSON.stringify(item) }
  let calls = 0
  const ask = async (request: Record<string, unknown>) => {
    const tier = await work.accounts.tierForWork(account_id)
    if (tier === undefined) throw new Later(work.now() + retry_ms)
    if (!(await work.limits.countBatchRequest({ account_id, tier }))) throw new Later(endOfDay(work.now()))
    const request_id = `${id}.${row}.${side}.${calls++}`
    const caller = { account_id, key_id }
    const answered = await askInBackground(
      work,
      backgroundOperations.chat,
      { caller, request_id, body: request },
      signal,
    )
    if ('error' in answered) return answered
    return { answer: JSON.parse(answered.bytes.toString('utf8')) as ChatResponse, counts: answered.counts }
  }
  const started = performance.now()
  const sampling = JSON.parse(evaluation.sampling_json) as Record<string, unknown>
  const answered = await ask({ model, messages, ...(tools !== undefined && { tools }), ...sampling })
  const latency_ms = Math.round(performance.now() - started)
  const empty = { output: null, tool_calls_json: null, score: 0, passed: 0, graders_json: '{}', latency_ms: null }
  if ('error' in answered)
    return {
      ...common,
      ...empty,
      prompt_tokens: 0,
      completion_tokens: 0,
      error_json: JSON.stringify(textOf(answered.error)),
    }
  const { content, tool_calls } = answered.answer.choices[0]!.message
  const output = content ?? ''
  const sample = { output_text: output, output_tools: tool_calls ?? [], ...jsonOf(output) }
  const judge = async (request: Record<string, unknown>) => {
    const judged = await ask(request)
    if ('error' in judged) throw new GraderError(`The judge did not answer: ${judged.error.message}`)
    return judged.answer.choices[0]!.message.content ?? ''
  }
  const graded: Graded = await gradeAnswer(
    JSON.parse(evaluation.graders_json),
    { item, sample },
    { thread, ask: judge },
  )
  return {
    ...common,
    output,
    tool_calls_json: tool_calls ? JSON.stringify(tool_calls) : null,
    score: graded.score,
    passed: graded.passed ? 1 : 0,
    graders_json: JSON.stringify(graded.graders),
    error_json: null,
    latency_ms,
    prompt_tokens: answered.counts.prompt_tokens,
    completion_tokens: answered.counts.completion_tokens,
  }
}

function jsonOf(text: string): { output_json?: unknown } {
  try {
    return { output_json: JSON.parse(text) }
  } catch {
    return {}
  }
}
