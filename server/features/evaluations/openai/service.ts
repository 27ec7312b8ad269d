// OpenAI's evals: graders with a name. Their runs are evaluations.

import { Readable } from 'node:stream'
import { ApiError } from '../../../../contract/errors.ts'
import { evaluationRowsMax } from '../../../../contract/evaluations.ts'
import type {
  CreateEval,
  CreateRun,
  DataSource,
  Eval,
  EvalQuery,
  OutputItem,
  OutputItemQuery,
  Run,
  RunQuery,
  SourceConfig,
  UpdateEval,
} from '../../../../contract/openai-evals.ts'
import { newId } from '../../../../lib/ids.ts'
import { isoTime } from '../../../../lib/utc-day.ts'
import { fromJson, fromJsonWithSeeds } from '../../../platform/db/json.ts'
import type { Db, Queryable, Trx } from '../../../platform/db/open.ts'
import { openaiPage, pageBytes } from '../../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../../platform/events/audit.ts'
import type { Caller } from '../../../platform/http/caller.ts'
import { requireFreeDisk, writeWhileFree } from '../../../platform/storage/free-disk.ts'
import { rowBytes, type StorageQuota } from '../../../platform/storage/quota.ts'
import type { Files } from '../../files/index.ts'
import type { StoredCompletions } from '../../stored-completions/index.ts'
import { checkMessages } from '../check.ts'
import type { NewRun } from '../creation.ts'
import type { Evaluations } from '../service.ts'
import { showsPictures } from '../sight.ts'
import * as store from '../store.ts'
import { requestOf } from './request.ts'
import { inputLength, outputItems, rowOf, statusOf, toEval, toRun } from './responses.ts'

type Actor = AccountActor & Pick<Caller, 'key_id' | 'scopes'>
type NewRows = Exclude<DataSource['source'], { type: 'file_id' }>
type List<T extends { id: string }> = ReturnType<typeof openaiPage<T>>

interface Options {
  db: Db
  evaluations: Evaluations
  files: Pick<Files, 'write' | 'insert' | 'drop'>
  storedCompletions: Pick<StoredCompletions, 'conversations'>
  dataDir: string
  min_free_mb: number
  quota: StorageQuota
  now(): number
}

/** Rows of one run that come from the request or from stored completions, in characters. */
const rowsBytesMax = 200e6

/** Fields of an evaluation under the names of a run. */
const params: Record<string, string> = {
  model: 'data_source.model',
  dataset: 'data_source.source.id',
  rows: 'data_source.source',
}

function naming(error: unknown): never {
  const param = error instanceof ApiError && error.param ? params[error.param] : undefined
  if (!(error instanceof ApiError) || param === undefined) throw error
  throw error.with({ param })
}

export class OpenaiEvals {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  async create(by: Actor, { name, metadata, data_source_config, testing_criteria }: CreateEval): Promise<Eval> {
    const { db, evaluations, dataDir, min_free_mb, quota, now } = this.options
    if (data_source_config.type === 'custom')
      await evaluations.creation.checkSchema(
        by.account_id,
        data_source_config.item_schema,
        'data_source_config.item_schema',
      )
    await evaluations.creation.checkGraders(by.account_id, testing_criteria, 'testing_criteria')
    const id = newId('evaldef')
    const created_at = now()
    const row: store.EvalRow = {
      id,
      account_id: by.account_id,
      name:
        name ??
        testing_criteria
          .map((grader) => grader.name)
          .join(', ')
          .slice(0, 200),
      metadata_json: JSON.stringify(metadata ?? {}),
      source_config_json: JSON.stringify(data_source_config),
      graders_json: JSON.stringify(testing_criteria),
      size_bytes: 0,
      updated_at: created_at,
      created_at,
    }
    await requireFreeDisk(dataDir, min_free_mb)
    await db.transaction().execute(async (trx) => {
      await store.insertEval(trx, { ...row, size_bytes: rowBytes(row) })
      await quota.require(trx, by.account_id, 0)
      await recordAuditEntry(trx, by, 'eval.created', id, { name: row.name }, created_at)
    })
    return toEval(row)
  }

  async list(account_id: string, query: EvalQuery): Promise<List<Eval>> {
    const { db } = this.options
    const after = query.after === undefined ? undefined : await requireEval(db, account_id, query.after)
    const { items, has_more } = await store.listEvals(db, account_id, query, after)
    return openaiPage({ items: items.map(toEval), has_more })
  }

  async get(account_id: string, id: string): Promise<Eval> {
    return toEval(await requireEval(this.options.db, account_id, id))
  }

  async update(by: AccountActor, id: string, { name, metadata }: UpdateEval): Promise<Eval> {
    const { db, now } = this.options
    return db.transaction().execute(async (trx) => {
      await requireEval(trx, by.account_id, id)
      const changes = {
        ...(name != null && { name }),
        ...(metadata != null && { metadata_json: JSON.stringify(metadata) }),
        updated_at: now(),
      }
      await store.updateEval(trx, id, changes)
      await recordAuditEntry(trx, by, 'eval.updated', id, { name, metadata }, changes.updated_at)
      return toEval(await requireEval(trx, by.account_id, id))
    })
  }

  async delete(by: AccountActor, id: string): Promise<{ object: 'eval.deleted'; deleted: true; eval_id: string }> {
    const { db, now } = this.options
    await db.transaction().execute(async (trx) => {
      const { name } = await requireEval(trx, by.account_id, id)
      const runs = await store.runsOf(trx, id)
      const active = runs.find(({ status }) => store.isActive({ status }))
      if (active)
        throw new ApiError('in_use', `The run '${active.id}' is ${active.status}. Cancel it, then delete the eval.`, {
          param: 'eval_id',
        })
      for (const run of runs) await store.remove(trx, run.id)
      await store.removeEval(trx, id)
      await recordAuditEntry(trx, by, 'eval.deleted', id, { name, runs: runs.length }, now())
    })
    return { object: 'eval.deleted', deleted: true, eval_id: id }
  }

  async createRun(by: Actor, eval_id: string, { name, metadata, data_source }: CreateRun): Promise<Run> {
    const { db, evaluations, files, now } = this.options
    const existing = await requireEval(db, by.account_id, eval_id)
    const config = fromJson(existing.source_config_json)
    const { model, template, sampling } = requestOf(data_source, config)
    checkMessages(template, 'data_source.input_messages.template')
    const { source } = data_source
    const run = {
      model,
      template,
      sampling,
      graders: fromJsonWithSeeds(existing.graders_json),
      name: name ?? `${model ?? 'answers'}, ${existing.name}`.slice(0, 200),
      description: '',
      metadata: metadata ?? {},
      eval_id,
    }
    const requireStill = (trx: Trx) => requireEval(trx, by.account_id, eval_id)
    if (source.type === 'file_id') {
      const newRun = { ...run, dataset: source.id, data_source }
      return this.runOf(await evaluations.creation.createRun(by, newRun, undefined, requireStill).catch(naming))
    }
    const { file, total, pictured } = await this.writeRows(by.account_id, source, config, template)
    const filename = `${run.name}.jsonl`
    const row = { account_id: by.account_id, filename, purpose: 'evals' as const, created_at: now() }
    const shown = source.type === 'file_content' ? { type: 'file_id', id: file.id } : source
    const newRun = { ...run, dataset: file.id, data_source: { ...data_source, source: shown } }
    const evaluation = await evaluations.creation
      .createRun(by, newRun, { total, name: filename, pictured: async () => pictured }, async (trx) => {
        await requireStill(trx)
        await files.insert(trx, file, row)
      })
      .catch(async (error) => {
        await files.drop(file)
        return naming(error)
      })
    return this.runOf(evaluation)
  }

  async runs(account_id: string, eval_id: string, { status, ...query }: RunQuery): Promise<List<Run>> {
    const { db } = this.options
    await requireEval(db, account_id, eval_id)
    const after = query.after === undefined ? undefined : await this.requireRun(account_id, eval_id, query.after)
    const filter = status && statusOf(status)
    const { items, has_more } = await store.listRuns(db, eval_id, filter, query, after)
    const runs: Run[] = []
    for (const row of items) runs.push(await this.runOf(row))
    return openaiPage({ items: runs, has_more })
  }

  async run(account_id: string, eval_id: string, id: string): Promise<Run> {
    return this.runOf(await this.requireRun(account_id, eval_id, id))
  }

  async cancelRun(by: AccountActor, eval_id: string, id: string): Promise<Run> {
    await this.requireRun(by.account_id, eval_id, id)
    await this.options.evaluations.cancel(by, id)
    return this.runOf(await this.requireRun(by.account_id, eval_id, id))
  }

  async deleteRun(
    by: AccountActor,
    eval_id: string,
    id: string,
  ): Promise<{ object: 'eval.run.deleted'; deleted: true; run_id: string }> {
    await this.requireRun(by.account_id, eval_id, id)
    await this.options.evaluations.delete(by, id)
    return { object: 'eval.run.deleted', deleted: true, run_id: id }
  }

  async outputItems(
    account_id: string,
    eval_id: string,
    run_id: string,
    { limit, order, status, after: last }: OutputItemQuery,
  ): Promise<List<OutputItem>> {
    const run = await this.requireRun(account_id, eval_id, run_id)
    const after = last === undefined ? undefined : rowOf(run_id, last)
    if (last !== undefined && after === undefined)
      throw new ApiError('invalid_request', `There is no output item '${last}' of this run.`, { param: 'after' })
    const passed = status && status === 'pass'
    const answers = await store.listAnswers(this.options.db, run_id, { limit, order, passed, after })
    const toItem = outputItems(run)
    const items: OutputItem[] = []
    let inputs = 0
    for (const answer of answers.items) {
      const item = toItem(answer)
      inputs += inputLength(item)
      // A template may make a long text of a short row.
      if (items.length > 0 && inputs > pageBytes) return openaiPage({ items, has_more: true })
      items.push(item)
    }
    return openaiPage({ items, has_more: answers.has_more })
  }

  async outputItem(account_id: string, eval_id: string, run_id: string, id: string): Promise<OutputItem> {
    const run = await this.requireRun(account_id, eval_id, run_id)
    const row = rowOf(run_id, id)
    const answers = row === undefined ? [] : (await store.answersOf(this.options.db, run_id, [row], 1)).items.flat()
    const answer = answers.find(({ side }) => side === 'model')
    if (!answer)
      throw new ApiError('evaluation_not_found', `There is no output item '${id}' of this run.`, {
        param: 'output_item_id',
      })
    return outputItems(run)(answer)
  }

  private async requireRun(account_id: string, eval_id: string, id: string): Promise<store.EvaluationRow> {
    const { db } = this.options
    await requireEval(db, account_id, eval_id)
    const run = await store.find(db, account_id, id)
    if (run?.eval_id !== eval_id)
      throw new ApiError('evaluation_not_found', `There is no run '${id}' of this eval.`, { param: 'run_id' })
    return run
  }

  private async runOf(row: store.EvaluationRow) {
    return toRun(row, await this.options.evaluations.resultOf(row))
  }

  /** The lines of a file with the rows of a run. */
  private async *linesOf(account_id: string, source: NewRows, config: SourceConfig): AsyncGenerator<string> {
    if (source.type === 'file_content') {
      for (const row of source.content) yield `${JSON.stringify(row)}\n`
      return
    }
    const declared = config.type === 'custom' ? undefined : config.metadata
    const metadata = { ...declared, ...source.metadata }
    const filter = {
      metadata,
      ...(source.model && { model: source.model }),
      ...(source.created_after != null && { created_after: isoTime(source.created_after * 1000) }),
      ...(source.created_before != null && { created_before: isoTime(source.created_before * 1000) }),
    }
    const limit = Math.min(source.limit ?? evaluationRowsMax, evaluationRowsMax)
    for await (const { id, messages, tools, answer } of this.options.storedCompletions.conversations(
      account_id,
      filter,
      limit,
    )) {
      const { content, tool_calls } = answer.message
      const reference = { ...(content && { reference: content }), ...(tool_calls && { reference_calls: tool_calls }) }
      const item = { completion_id: id, input: messages, ...(tools && { tools }), ...reference }
      const sample = { output_text: content ?? '', output_tools: tool_calls ?? [] }
      yield `${JSON.stringify({ item, sample })}\n`
    }
  }

  /** Writes the rows of a run into a file that is not the account's yet. */
  private async writeRows(account_id: string, source: NewRows, config: SourceConfig, template: NewRun['template']) {
    const { files, dataDir, min_free_mb } = this.options
    let [total, bytes] = [0, 0]
    let pictured: number | undefined
    const linesOf = () => this.linesOf(account_id, source, config)
    async function* counted(signal: AbortSignal) {
      for await (const line of linesOf()) {
        signal.throwIfAborted()
        total++
        bytes += line.length
        if (bytes > rowsBytesMax)
          throw new ApiError(
            'file_too_large',
            'The rows are more than 200 MB. Give a lower limit, or a narrower filter.',
            { param: 'data_source.source' },
          )
        if (pictured === undefined && showsPictures(total, line, template)) pictured = total
        yield line
      }
    }
    const writing = { folder: dataDir, min_free_mb, signal: new AbortController().signal }
    const file = await writeWhileFree(writing, (signal) => files.write(Readable.from(counted(signal))))
    return { file, total, pictured }
  }
}

async function requireEval(from: Queryable, account_id: string, id: string): Promise<store.EvalRow> {
  const row = await store.findEvalUnscoped(from, id)
  if (row?.account_id !== account_id)
    throw new ApiError('evaluation_not_found', `There is no eval '${id}'.`, { param: 'eval_id' })
  return row
}
