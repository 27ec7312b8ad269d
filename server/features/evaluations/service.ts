import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { CreateEvaluation, Evaluation, EvaluationRow } from '../../../contract/evaluations.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson, fromJsonWithSeeds } from '../../platform/db/json.ts'
import type { Queryable, Trx } from '../../platform/db/open.ts'
import type { Page } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { checkMessages } from './check.ts'
import { type Actor, type CreationOptions, EvaluationCreation, queueKind, requireEvaluation } from './creation.ts'
import type { Grading } from './grading.ts'
import { differences, type Result, resultOf, sumGraders } from './result.ts'
import * as store from './store.ts'

/** How long a result that is not final is kept. */
const unfinished_ms = 600_000

/** Writes of another feature in the transaction that ends an evaluation. */
export type OnEnded = (trx: Trx, evaluation: store.EvaluationRow) => Promise<void>

interface Options extends CreationOptions {
  onEnded: OnEnded
  grading: Grading
}

/** The life of evaluations: listed, read, cancelled, deleted, ended with their result. */
export class Evaluations {
  readonly creation: EvaluationCreation
  /** Scores answers, also for other features. */
  readonly grading: Grading
  private readonly options: Options
  /** Results of evaluations that have not ended, by how many answers are scored. */
  private readonly unfinished = createTtlCache<Result>(unfinished_ms)

  constructor(options: Options) {
    this.options = options
    this.creation = new EvaluationCreation(options)
    this.grading = options.grading
  }

  wake(): void {
    this.options.queue.wake()
  }

  async create(by: Actor, request: CreateEvaluation): Promise<Evaluation> {
    checkMessages(request.template)
    await this.creation.checkGraders(by.account_id, request.graders, 'graders')
    return this.toResponse(await this.creation.insert(by, request, undefined))
  }

  async list(account_id: string, query: ListQuery): Promise<Page<Evaluation>> {
    const { db } = this.options
    const after = query.after === undefined ? undefined : await requireEvaluation(db, account_id, query.after)
    const { items, has_more } = await store.list(db, account_id, query, after)
    // One by one: the result of one that has not ended is made of all its answers.
    const evaluations: Evaluation[] = []
    for (const row of items) evaluations.push(await this.toResponse(row))
    return { items: evaluations, has_more }
  }

  async get(account_id: string, id: string): Promise<Evaluation> {
    return this.toResponse(await requireEvaluation(this.options.db, account_id, id))
  }

  async rows(
    account_id: string,
    id: string,
    { limit, after }: { limit: number; after?: number | undefined },
  ): Promise<Page<EvaluationRow>> {
    const { db } = this.options
    const evaluation = await requireEvaluation(db, account_id, id)
    const scores = await store.scores(db, id)
    // What got worse first; without a baseline the lowest scores.
    const rank = new Map<number, number>(
      evaluation.baseline === null
        ? scores.map(({ row, score }) => [row, score])
        : differences(scores).map(({ row, difference }) => [row, difference]),
    )
    const rows = [...new Set(scores.map(({ row }) => row))].sort(
      (a, b) => (rank.get(a) ?? Number.POSITIVE_INFINITY) - (rank.get(b) ?? Number.POSITIVE_INFINITY) || a - b,
    )
    const from = after === undefined ? 0 : rows.indexOf(after) + 1
    const { items, has_more } = await store.answersOf(db, id, rows.slice(from), limit)
    return {
      items: items.flatMap((answers) => {
        const of = (side: store.SideName) => answers.find((answer) => answer.side === side)
        const [ours, other] = [of('model'), of('baseline')]
        // Deleted meanwhile.
        if (!ours && !other) return []
        return {
          row: answers[0]!.row,
          item: fromJson((ours ?? other)!.item_json),
          model: ours ? toAnswer(ours) : null,
          baseline: other ? toAnswer(other) : null,
          difference: ours && other && !ours.ungraded && !other.ungraded ? ours.score - other.score : null,
        }
      }),
      has_more,
    }
  }

  async cancel(by: AccountActor, id: string): Promise<Evaluation> {
    const { db, queue, now } = this.options
    await db.transaction().execute(async (trx) => {
      const evaluation = await requireEvaluation(trx, by.account_id, id)
      if (evaluation.status === 'cancelled') return
      if (!store.isActive(evaluation))
        throw new ApiError('evaluation_not_cancellable', `The evaluation is ${evaluation.status} already.`, {
          details: { status: evaluation.status },
        })
      await queue.cancel(trx, queueKind, id)
      await this.end(trx, evaluation, 'cancelled')
      await recordAuditEntry(trx, by, 'evaluation.cancelled', id, {}, now())
    })
    queue.wake()
    return this.toResponse(await requireEvaluation(db, by.account_id, id))
  }

  async delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }> {
    const { db, now } = this.options
    await db.transaction().execute(async (trx) => {
      const evaluation = await requireEvaluation(trx, by.account_id, id)
      if (store.isActive(evaluation))
        throw new ApiError('in_use', `The evaluation is ${evaluation.status}. Cancel it, then delete it.`)
      await store.remove(trx, id)
      await recordAuditEntry(trx, by, 'evaluation.deleted', id, { name: evaluation.name }, now())
    })
    return { id, deleted: true }
  }

  /** Score so far; null while nothing is scored. */
  async resultOf(row: store.EvaluationRow): Promise<Result | null> {
    const { db } = this.options
    if (row.result_json) return fromJson(row.result_json)
    if (row.done === 0) return null
    if (store.isActive(row)) {
      const result = this.unfinished.getOrLoad(
        row.id,
        async () => (await this.compute(db, row)) ?? undefined,
        `${row.done}`,
      )
      return (await result) ?? null
    }
    const result = await this.compute(db, row)
    // It ended before a migration.
    if (result)
      await db.transaction().execute((trx) => store.update(trx, row.id, { result_json: JSON.stringify(result) }))
    return result
  }

  /** An evaluation with its result so far. Throws evaluation_not_found. */
  async result(account_id: string, id: string): Promise<store.EvaluationRow> {
    const row = await requireEvaluation(this.options.db, account_id, id)
    return { ...row, result_json: JSON.stringify(await this.resultOf(row)) }
  }

  /** Ends an evaluation with the result of what is scored. */
  async end(
    trx: Trx,
    evaluation: store.EvaluationRow,
    status: 'completed' | 'failed' | 'cancelled',
    error?: { code: string; message: string },
  ): Promise<void> {
    const { onEnded, now } = this.options
    const result = await this.compute(trx, evaluation)
    const ended = {
      status,
      finished_at: now(),
      error_json: error ? JSON.stringify(error) : null,
      result_json: result && JSON.stringify(result),
    }
    await store.update(trx, evaluation.id, ended)
    await onEnded(trx, { ...evaluation, ...ended })
  }

  private async compute(from: Queryable, row: store.EvaluationRow): Promise<Result | null> {
    const sums = await sumGraders(store.graders(from, row.id))
    return resultOf(await store.figures(from, row.id), sums, row.model || null, row.baseline)
  }

  private async toResponse(row: store.EvaluationRow): Promise<Evaluation> {
    const result = await this.resultOf(row)
    return {
      id: row.id,
      name: row.name,
      description: row.description,
      metadata: fromJson(row.metadata_json),
      status: row.status,
      error: fromJson(row.error_json),
      model: row.model || null,
      baseline: row.baseline,
      dataset: row.dataset_id,
      eval: row.eval_id,
      graders: fromJsonWithSeeds(row.graders_json),
      grading: store.gradingOf(row),
      template: store.templateOf(row) ?? null,
      sampling: store.samplingOf(row),
      held_out_by: row.held_out_by,
      rows: row.rows,
      trained_rows: row.trained_rows,
      done: row.done,
      result,
      created_at: isoTime(row.created_at),
      started_at: isoTime(row.started_at),
      finished_at: isoTime(row.finished_at),
    }
  }
}

const toAnswer = (row: store.AnswerRow) => ({
  output: row.output,
  ...(row.tool_calls_json && { tool_calls: fromJson(row.tool_calls_json) }),
  score: row.ungraded ? null : row.score,
  passed: row.passed === 1,
  graders: fromJson(row.graders_json),
  error: fromJson(row.error_json),
  finish_reason: row.finish_reason,
  latency_ms: row.latency_ms,
})
