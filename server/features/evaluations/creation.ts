import { ApiError, undefinedIf } from '../../../contract/errors.ts'
import type { CreateEvaluation } from '../../../contract/evaluations.ts'
import { evaluationRowsMax } from '../../../contract/evaluations.ts'
import type { Grader } from '../../../contract/graders.ts'
import { newId } from '../../../lib/ids.ts'
import { readJsonl } from '../../../lib/jsonl.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Endpoints } from '../../platform/outbound/signed-post.ts'
import { assertBacklogLimit, type Queue } from '../../platform/queue/queue.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import { rowBytes, type StorageQuota } from '../../platform/storage/quota.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Files } from '../files/index.ts'
import type { Inference } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import { checkEndpoint, checkGraders, checkSchema, judgesOf } from './check.ts'
import { createCompileCheck } from './graders/compile-check.ts'
import type { PythonGraders } from './graders/python/pool.ts'
import { rowsOf, type Template } from './items.ts'
import { firstPictured, type Reader, requireSight } from './sight.ts'
import * as store from './store.ts'

export const queueKind = 'evaluation'

export type Actor = AccountActor & { key_id: string | null }

/** A run of an eval: its rows may bring their answers, and then no model is asked. */
export interface NewRun extends Omit<CreateEvaluation, 'model' | 'baseline' | 'rows' | 'held_out_by'> {
  model: string | null
  eval_id: string
  /** As it is shown in the shape of OpenAI's API. */
  data_source: object
}

interface Source {
  /** Hash of the file, where it is a dataset. */
  sha256?: string
  total: number
  name: string
  /** The first of the wanted rows with which a model is shown pictures. */
  pictured(numbers: ReadonlySet<number>, template: Template | undefined): Promise<number | undefined>
}

export interface CreationOptions {
  db: Db
  queue: Queue
  datasets: Pick<Datasets, 'ready' | 'asFiles' | 'source'>
  files: Pick<Files, 'pathOf'>
  models: Pick<TunedModels, 'nameOf' | 'trainedRows' | 'heldOutRows'>
  inference: Pick<Inference, 'modelId' | 'readsPictures'>
  dataDir: string
  min_free_mb: number
  quota: StorageQuota
  max_waiting: number
  python: Pick<PythonGraders, 'check'>
  endpoints: Pick<Endpoints, 'problem'>
  now(): number
}

export class EvaluationCreation {
  private readonly options: CreationOptions
  private readonly check = createCompileCheck()

  constructor(options: CreationOptions) {
    this.options = options
  }

  /** Throws evaluation_not_found, or invalid_request if models of this base could not read the pictures of its rows. */
  async require(account_id: string, id: string, base?: { id: string; pictures: boolean }): Promise<void> {
    const evaluation = await requireEvaluation(this.options.db, account_id, id)
    if (base) await this.requireSightOf(evaluation, [{ name: base.id, pictures: base.pictures, field: 'model' }])
  }

  /**
   * Evaluates other models on the rows and with the graders of an evaluation, in the caller's transaction. Call `wake`
   * after it has committed. Resolves with the new one's id. Throws evaluation_not_found, or dataset_not_found if its
   * rows are gone.
   */
  async repeat(
    trx: Trx,
    by: AccountActor & { key_id: string | null },
    id: string,
    { model, baseline }: { model: string; baseline: string },
  ): Promise<string> {
    const { datasets, files, models } = this.options
    const { account_id } = by
    const evaluation = await requireEvaluation(trx, account_id, id)
    const { dataset_id } = evaluation
    const dataset = await datasets.asFiles.find(account_id, dataset_id)
    if (!dataset && !(await files.pathOf(account_id, dataset_id)))
      throw new ApiError('dataset_not_found', `The rows of the evaluation '${id}', '${dataset_id}', were deleted.`)
    if (evaluation.model === '' && evaluation.template_json === null)
      throw new ApiError(
        'invalid_request',
        `The rows of '${id}' bring their answers: no model can be asked. Name an evaluation that asked one.`,
      )
    const name = `${(await models.nameOf(trx, account_id, model)) ?? model}, ${evaluation.name}`.slice(0, 200)
    const drawn = rowsOf(evaluation, await this.heldOutOf(evaluation))
    const trained_rows = dataset
      ? await models.trainedRows(trx, account_id, model, { id: dataset_id, sha256: dataset.sha256 }, drawn)
      : null
    const row = {
      ...evaluation,
      ...this.fresh(by),
      name,
      model,
      model_id: model,
      baseline,
      baseline_id: baseline,
      trained_rows,
    }
    await this.enqueue(trx, by, row, { model, baseline, like: id })
    return row.id
  }

  /** `source` tells what a file that is not stored yet will have; `before` stores it, in the same transaction. */
  createRun(
    by: Actor,
    run: NewRun,
    source: Source | undefined,
    before: (trx: Trx) => Promise<unknown>,
  ): Promise<store.EvaluationRow> {
    return this.insert(by, run, run, source, before)
  }

  /** `of`: the eval of a run. `source` and `before`: see `createRun`. */
  async insert(
    by: Actor,
    request: Omit<CreateEvaluation, 'model'> & { model: string | null },
    of: Pick<NewRun, 'eval_id' | 'data_source'> | undefined,
    source?: Source,
    before: (trx: Trx) => Promise<unknown> = async () => {},
  ): Promise<store.EvaluationRow> {
    const { db, queue, models, inference, dataDir, min_free_mb } = this.options
    const { account_id } = by
    const { model, baseline, dataset, graders, template, sampling, description, metadata } = request
    const model_id = model === null ? '' : await inference.modelId(account_id, model)
    const baseline_id = baseline === undefined ? null : await inference.modelId(account_id, baseline)
    const from = source ?? (await this.sourceOf(account_id, dataset))
    const { held_out_by = null } = request
    const heldOut = held_out_by === null ? undefined : await this.requireHeldOut(account_id, held_out_by, dataset)
    const total = heldOut?.length ?? from.total
    const rows = Math.min(total, request.rows ?? total)
    if (rows > evaluationRowsMax)
      throw new ApiError(
        'invalid_request',
        `'dataset': it has ${total} rows, and an evaluation has at most ${evaluationRowsMax}. ` +
          (of ? 'Divide them into several files, with a run of each.' : "Give 'rows' to draw some."),
        { param: 'rows', details: { max: evaluationRowsMax } },
      )
    if (rows === 0)
      throw new ApiError('dataset_invalid', of ? 'The run has no rows.' : 'The dataset has no rows.', {
        param: 'dataset',
      })
    const readers = await this.readersOf(account_id, { model: model ?? undefined, baseline })
    const drawn = rowsOf({ total_rows: total, rows }, heldOut)
    await requireSight(readers, () => from.pictured(drawn, template))
    const { sha256 } = from
    const row: store.EvaluationRow = {
      ...this.fresh(by),
      account_id,
      name: request.name ?? `${await this.labelOf(account_id, model, model_id)}, ${from.name}`.slice(0, 200),
      description,
      metadata_json: JSON.stringify(metadata),
      model: model ?? '',
      model_id,
      baseline: baseline ?? null,
      baseline_id,
      dataset_id: dataset,
      graders_json: JSON.stringify(graders),
      template_json: template ? JSON.stringify(template) : null,
      sampling_json: JSON.stringify(sampling),
      grading_json: request.grading ? JSON.stringify(request.grading) : null,
      total_rows: total,
      rows,
      held_out_by,
      trained_rows:
        sha256 === undefined || model === null
          ? null
          : await models.trainedRows(db, account_id, model_id, { id: dataset, sha256 }, drawn),
      eval_id: of?.eval_id ?? null,
      data_source_json: of ? JSON.stringify(of.data_source) : null,
    }
    await requireFreeDisk(dataDir, min_free_mb)
    await db.transaction().execute(async (trx) => {
      await before(trx)
      await this.enqueue(trx, by, row, { model, baseline, dataset })
    })
    queue.wake()
    return row
  }

  /** Throws model_not_found, or invalid_request for graders that could never score. `field` is where they are. */
  async checkGraders(account_id: string, graders: readonly Grader[] | Grader, field: string): Promise<void> {
    const { python, endpoints } = this.options
    await checkGraders({ compile: this.check, python, endpoints }, account_id, graders, field)
    for (const judge of judgesOf(graders)) await this.options.inference.modelId(account_id, judge)
  }

  /** Throws invalid_request, or address_blocked, for an address that can never be asked. `field` is where it is. */
  checkEndpoint(url: string, field: string): void {
    checkEndpoint(this.options.endpoints, url, field)
  }

  /** Throws invalid_request for a JSON Schema that cannot be used. */
  checkSchema(account_id: string, schema: Record<string, unknown>, field: string): Promise<void> {
    return checkSchema(this.check, account_id, schema, field)
  }

  /** Throws invalid_request if these models, asked with the rows of an evaluation, could not read their pictures. */
  async requireSight(account_id: string, id: string, models: { model: string; baseline: string }): Promise<void> {
    await this.requireSightOf(
      await requireEvaluation(this.options.db, account_id, id),
      await this.readersOf(account_id, models),
    )
  }

  /** The rows of the source, and its name. */
  private async sourceOf(account_id: string, id: string): Promise<Source> {
    const { db, datasets, files } = this.options
    const dataset = await datasets.asFiles.find(account_id, id)
    if (dataset) {
      await datasets.ready(account_id, id)
      const { path, total, name, pictures } = await datasets.source(db, account_id, id)
      return {
        sha256: dataset.sha256,
        total,
        name,
        pictured: async (numbers, template) =>
          pictures > 0 ? firstPictured({ path, canonical: true }, numbers, template) : undefined,
      }
    }
    const file = await files.pathOf(account_id, id)
    if (!file) throw new ApiError('dataset_not_found', `There is no dataset or file '${id}'.`, { param: 'dataset' })
    let total = 0
    for await (const _ of readJsonl(file.path)) total++
    const rows = { path: file.path, canonical: false }
    return { total, name: file.filename, pictured: (numbers, template) => firstPictured(rows, numbers, template) }
  }

  private readersOf(account_id: string, names: { model?: string | undefined; baseline?: string | undefined }) {
    return Promise.all(
      (['model', 'baseline'] as const).flatMap((field) => {
        const name = names[field]
        const reader = async (name: string): Promise<Reader> => ({
          name,
          field,
          pictures: await this.options.inference.readsPictures(account_id, name),
        })
        return name === undefined ? [] : [reader(name)]
      }),
    )
  }

  /**
   * Throws for models that cannot be asked with the rows of a known evaluation. Rows that are gone are not looked at.
   */
  private async requireSightOf(evaluation: store.EvaluationRow, readers: Reader[]): Promise<void> {
    const { account_id, dataset_id } = evaluation
    await requireSight(readers, async () => {
      const source = await this.sourceOf(account_id, dataset_id).catch(undefinedIf('dataset_not_found'))
      return source?.pictured(rowsOf(evaluation, await this.heldOutOf(evaluation)), store.templateOf(evaluation))
    })
  }

  /** The rows to draw from, where these are not all. The job may be deleted by now: its rows are known still. */
  private async heldOutOf({ account_id, held_out_by }: Pick<store.EvaluationRow, 'account_id' | 'held_out_by'>) {
    return held_out_by === null ? undefined : (await this.options.models.heldOutRows(account_id, held_out_by)).rows
  }

  /** The rows that a job held out of this dataset. Throws job_not_found, or invalid_request if there are none. */
  private async requireHeldOut(account_id: string, job_id: string, dataset: string): Promise<number[]> {
    const { dataset_id, rows } = await this.options.models.heldOutRows(account_id, job_id)
    const refuse = (reason: string) =>
      new ApiError('invalid_request', `'held_out_by': ${reason}`, { param: 'held_out_by' })
    if (dataset_id !== dataset)
      throw refuse(`${job_id} held rows out of ${dataset_id}, not of ${dataset}. Name that dataset.`)
    if (rows.length === 0)
      throw refuse(
        `${job_id} held no rows out of its dataset. Leave the field out, name another job, or train with a ` +
          'validation_split.',
      )
    return rows
  }

  private async enqueue(
    trx: Trx,
    by: AccountActor,
    row: store.EvaluationRow,
    details: Record<string, unknown>,
  ): Promise<void> {
    const { queue, quota, max_waiting } = this.options
    assertBacklogLimit(await store.countActive(trx, row.account_id), 'evaluations', max_waiting)
    await store.insert(trx, { ...row, size_bytes: rowBytes(row) })
    await quota.require(trx, row.account_id, 0)
    await queue.enqueue(trx, queueKind, row.id, row.account_id)
    await recordAuditEntry(trx, by, 'evaluation.created', row.id, details, row.created_at)
  }

  /** What is the same of every evaluation that has not begun. */
  private fresh(by: { key_id: string | null }) {
    return {
      id: newId('eval'),
      key_id: by.key_id ?? '',
      status: 'queued' as const,
      error_json: null,
      done: 0,
      size_bytes: 0,
      result_json: null,
      created_at: this.options.now(),
      started_at: null,
      finished_at: null,
    }
  }

  /** A model as people call it: by its name where the request has its id. */
  private async labelOf(account_id: string, model: string | null, model_id: string): Promise<string> {
    const { db, models } = this.options
    if (model === null) return 'answers'
    return model === model_id ? ((await models.nameOf(db, account_id, model_id)) ?? model) : model
  }
}

/** Throws evaluation_not_found. */
export async function requireEvaluation(from: Queryable, account_id: string, id: string): Promise<store.EvaluationRow> {
  const evaluation = await store.find(from, account_id, id)
  if (!evaluation)
    throw new ApiError('evaluation_not_found', `There is no evaluation '${id}'.`, { param: 'evaluation_id' })
  return evaluation
}
