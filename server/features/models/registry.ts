// Model registry: results of jobs and imported adapters, by account.

import { existsSync } from 'node:fs'
import path from 'node:path'
import type { Labels, SortedQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { AdapterFields, Comparison, TrainedWith, TunedModel, TunedModelDetails } from '../../../contract/models.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import { assertNotNeeded, type NeededBy } from '../../platform/db/needed-by.ts'
import type { Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import type { NewRow } from '../../platform/db/schema.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { FormFile } from '../../platform/http/multipart.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import { removeUnlessCommitted } from '../../platform/storage/durable-files.ts'
import type { Orphans } from '../../platform/storage/orphans.ts'
import type { Datasets } from '../datasets/index.ts'
import type { EventBus } from '../events.ts'
import type { Projector } from '../hub/index.ts'
import { draftsFolder, draftsKey, modelDir, modelFiles, modelKey, ownProjector, probeFile } from './artifacts.ts'
import { createExportSource, type ExportSource } from './export-source.ts'
import { ftName } from './ft-name.ts'
import { AdapterImporter, type AdapterImporterOptions } from './import-adapter.ts'
import { labelColumns, labelsOf } from './labels.ts'
import { lineageOf } from './lineage.ts'
import { resolveStartingModel, type StartingModel } from './starting-model.ts'
import * as store from './store.ts'
import { heldOutRows, trainingOf } from './training.ts'

/** A weights file for the engine, and the name to load it under. */
interface Weights {
  id: string
  gguf: string
  /** Set for whole weights that read pictures, and for an adapter with a projector of its own. */
  projector?: Projector | null
}

/** A model as inference and deployments use it: an adapter on its base, or whole weights. */
export interface ServableModel extends Weights {
  kind: 'adapter' | 'model'
  base_model_id: string
  /** Its name in OpenAI's API. */
  ft_name: string | null
  /** The tuned model whose whole weights an adapter needs, if these are not the hub base's. */
  parent?: Weights
  /** Rows to compare the engine's answers with the trainer's. */
  probe: string
  /** Null if not compared yet. */
  comparison: Comparison | null
  /** What the rows of its training have in common; null where it is not known. */
  trained_with: TrainedWith | null
  created_at: number
}

/** The files that a model was made from, as the engine serves them: the baseline of a comparison. */
export interface ServedBase {
  base: Weights
  adapter?: Weights
}

/** What a model's weights are to be, recorded when it was made. */
interface ExpectedModel {
  /** SHA-256 of the file that is served, in hex. */
  sha256: string
  /** The same of its folder in Hugging Face's form, which vLLM serves; null of models made before it was recorded. */
  folder_sha256: string | null
  /** Its probe rows and the weights that it was made from; undefined if one of them is missing. */
  probe?: { file: string; from: ServedBase }
}

/** Compares the engine's answers of a model with the trainer's; undefined if there are no rows to compare with. */
export type Compare = (model: ServableModel, base: ServedBase, account_id: string) => Promise<Comparison | undefined>

export type MadeModel = Pick<store.ModelRow, 'id' | 'job_id' | 'ft_name' | 'step' | 'validation_loss' | 'created_at'>

type NewModel = Pick<
  store.ModelRow,
  'id' | 'kind' | 'base_model_id' | 'weights_model_id' | 'projector_sha256' | 'weights_projector_sha256' | 'created_at'
>

interface Options extends AdapterImporterOptions {
  datasets: Pick<Datasets, 'get' | 'ready' | 'forTraining'>
  orphans: Orphans
  changes: Pick<Changes, 'announce'>
  events: EventBus
  compare: Compare
  /** What may still need a model that is to be deleted. */
  neededBy: readonly NeededBy[]
  now(): number
}

export class TunedModels {
  private readonly options: Options
  private readonly importer: AdapterImporter
  private readonly exportSources: ReturnType<typeof createExportSource>

  constructor(options: Options) {
    this.options = options
    this.importer = new AdapterImporter(options)
    this.exportSources = createExportSource(options)
  }

  /** The id of the model with this name in OpenAI's API (`ft:…`), if there is one. */
  async idOf(account_id: string, name: string): Promise<string | undefined> {
    return name.startsWith('ft:') ? (await store.findModelByFtName(this.options.db, account_id, name))?.id : undefined
  }

  async find(account_id: string, id: string): Promise<ServableModel | undefined> {
    const model = await store.findModel(this.options.db, account_id, id)
    return model && this.servable(model)
  }

  async all(account_id: string): Promise<ServableModel[]> {
    return (await store.allModels(this.options.db, account_id)).map((model) => this.servable(model))
  }

  async get(account_id: string, id: string): Promise<TunedModelDetails> {
    const model = await this.requireModel(account_id, id)
    return {
      ...toResponse(model),
      lineage: await lineageOf(this.options.db, model),
      trained_with: fromJson(model.trained_with_json),
    }
  }

  async list(account_id: string, query: SortedQuery): Promise<Page<TunedModel>> {
    const last = query.after ? await this.requireModel(account_id, query.after) : undefined
    return pageOf((await store.listModels(this.options.db, account_id, query, last)).map(toResponse), query.limit)
  }

  /** What people call those of these models that are tuned, of any account. */
  async namesOf(ids: string[]): Promise<Map<string, string>> {
    const rows = ids.length === 0 ? [] : await store.findNames(this.options.db, ids)
    return new Map(rows.map(({ id, name }) => [id, name]))
  }

  /** What people call it; undefined if there is no such tuned model. */
  async nameOf(from: Queryable, account_id: string, id: string): Promise<string | undefined> {
    return (await store.findModel(from, account_id, id))?.name
  }

  /** Imports an adapter that was trained elsewhere. */
  async importAdapter(by: AccountActor, form: FormFile<AdapterFields>): Promise<TunedModel> {
    const { quota, db, artifacts, now } = this.options
    const { account_id } = by
    const imported = await this.importer.importAdapter(account_id, form)
    const created_at = now()
    const { base_model_id, weights_model_id, weights_projector } = imported.startingModel
    const isAdapter = imported.kind === 'adapter'
    const model = {
      id: imported.id,
      kind: imported.kind,
      base_model_id,
      weights_model_id: isAdapter ? weights_model_id : null,
      projector_sha256: imported.projector_sha256,
      weights_projector_sha256: (isAdapter && weights_projector?.sha256) || null,
      created_at,
    }
    const comparison = await this.compareNew(account_id, model, servedBaseOf(imported.startingModel))
    const register = async () => {
      await artifacts.publish(modelKey(imported.id))
      await db.transaction().execute(async (trx) => {
        // Its base model may have been deleted during the import.
        if (weights_model_id) await this.requireModel(account_id, weights_model_id, trx)
        await store.insertModel(trx, {
          ...model,
          account_id,
          ft_name: ftName({ base_model_id, account_id, model_id: imported.id }),
          name: imported.name ?? form.filename,
          description: imported.description ?? '',
          metadata_json: '{}',
          // What the whole weights were made from, which they do not need.
          parent_model_id: isAdapter ? null : weights_model_id,
          job_id: null,
          method: 'lora',
          step: null,
          validation_loss: null,
          gguf_sha256: imported.gguf_sha256,
          folder_sha256: imported.folder_sha256,
          comparison_json: comparison && JSON.stringify(comparison),
          trained_with_json: null,
          size_bytes: imported.size_bytes,
        })
        await quota.require(trx, account_id, 0)
        await recordAuditEntry(trx, by, 'model.brought', imported.id, { sha256: imported.gguf_sha256 }, created_at)
      })
    }
    await register().catch(async (error) => {
      const isCommitted = () => store.findModelUnscoped(db, imported.id)
      await removeUnlessCommitted(isCommitted, () => artifacts.remove(modelKey(imported.id)))
      throw error
    })
    return toResponse(await this.requireModel(account_id, imported.id))
  }

  async delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }> {
    const { changes, db, artifacts, neededBy, events, now } = this.options
    const { account_id } = by
    const model = await this.requireModel(account_id, id)
    const unload = await db.transaction().execute(async (trx) => {
      await this.requireModel(account_id, id, trx)
      await assertNotNeeded(
        [store.modelUsingWeights, ...neededBy],
        trx,
        account_id,
        id,
        (user) => `The model is needed by ${user}. Delete that first, or wait for its end.`,
      )
      await store.deleteModel(trx, id)
      await recordAuditEntry(trx, by, 'model.deleted', id, {}, now())
      return await events.emit(trx, 'model.deleted', this.servable(model))
    })
    await changes.announce(account_id)
    await artifacts.remove(modelKey(id), draftsKey(id))
    unload()
    return { id, deleted: true }
  }

  /** For the transaction of another feature that starts to need the model. Throws model_not_found. */
  async require(trx: Trx, account_id: string, id: string): Promise<void> {
    await this.requireModel(account_id, id, trx)
  }

  /** The stored comparison of a model, or a new one; undefined if the files that it was made from are gone. */
  async getComparison(account_id: string, id: string): Promise<Comparison | undefined> {
    const { db, artifacts, compare, log } = this.options
    const model = await this.requireModel(account_id, id)
    const stored: Comparison | undefined = model.comparison_json ? fromJson(model.comparison_json) : undefined
    if (stored && this.isOfServedForm(model, stored)) return stored
    const from = await this.findServedBase(model)
    await artifacts.ensureLocal(modelKey(id))
    // Models of early versions have no probe rows.
    if (!from || !existsSync(this.servable(model).probe)) return stored
    const comparison = await compare(this.servable(model), from, account_id).catch((error) => {
      if (!stored) throw error
      log.warn({ err: error, model: id }, 'a model could not be compared with the form of its base that is served')
      return stored
    })
    if (comparison) await store.saveComparison(db, id, JSON.stringify(comparison))
    return comparison
  }

  /** Compares files that are about to become a model; null if that fails now. */
  async compareNew(account_id: string, model: NewModel, from: ServedBase): Promise<Comparison | null> {
    const { compare, log } = this.options
    try {
      return (await compare(this.servable(model), from, account_id)) ?? null
    } catch (error) {
      // Deploying the model tries again.
      log.warn({ err: error, model: model.id }, 'comparing a new model failed; its deployment tries again')
      return null
    }
  }

  /** What a replica must serve as this model, of any account; undefined if there is no such tuned model. */
  async expected(id: string): Promise<ExpectedModel | undefined> {
    const model = await store.findModelUnscoped(this.options.db, id)
    if (!model) return undefined
    const { gguf_sha256, folder_sha256 } = model
    const file = this.servable(model).probe
    const from = existsSync(file) ? await this.findServedBase(model) : undefined
    return { sha256: gguf_sha256, folder_sha256, ...(from && { probe: { file, from } }) }
  }

  /**
   * How many of these rows of a dataset the model was trained on, by its lineage: those that no training on this file
   * held out. `rows` count from 1. 0 for what is no tuned model.
   */
  async trainedRows(
    from: Queryable,
    account_id: string,
    id: string,
    dataset: { id: string; sha256: string },
    rows: ReadonlySet<number>,
  ): Promise<number> {
    const model = await store.findModel(from, account_id, id)
    if (!model) return 0
    const { steps } = await lineageOf(from, model)
    const trainings = steps.filter((step) => step.dataset?.id === dataset.id || step.dataset?.sha256 === dataset.sha256)
    const heldOut = await Promise.all(
      trainings.map(async ({ job_id }) => new Set(job_id === null ? [] : await heldOutRows(from, job_id))),
    )
    return [...rows].filter((row) => heldOut.some((held) => !held.has(row))).length
  }

  /** Adds a model in the transaction that ends its training. */
  async insert(trx: Trx, model: NewRow<'models'>): Promise<void> {
    await store.insertModel(trx, model)
  }

  /**
   * What a training starts from: the files of a hub base or tuned model, fetched for a tuned one. Throws
   * model_not_found, model_not_available, training_not_ready.
   */
  startingModel(account_id: string, id: string, from: Queryable = this.options.db): Promise<StartingModel> {
    const { hub, artifacts } = this.options
    return resolveStartingModel(from, hub, artifacts, account_id, id)
  }

  /** The numbers of the rows that a job held out of its dataset; undefined until its trainer reports them. */
  heldOut(job_id: string): Promise<number[] | undefined> {
    return heldOutRows(this.options.db, job_id)
  }

  /** The same of an account's job, also of a deleted one, with the dataset. Throws job_not_found. */
  async heldOutRows(account_id: string, job_id: string): Promise<{ dataset_id: string; rows: number[] }> {
    const { db } = this.options
    const job = await trainingOf(db, job_id)
    if (job?.account_id !== account_id) throw new ApiError('job_not_found', `There is no job '${job_id}'.`)
    return { dataset_id: job.dataset_id, rows: (await heldOutRows(db, job_id)) ?? [] }
  }

  /** The models that a job made, by step. */
  madeBy(job_id: string): Promise<MadeModel[]> {
    return store.modelsOfJob(this.options.db, job_id)
  }

  /** Removes the draft files whose dataset another process of the installation deleted. */
  removeForgottenDrafts(): Promise<void> {
    const { db, orphans } = this.options
    return orphans.removeEnded(draftsFolder, async (id) => (await store.hasDrafts(db, id)) === false)
  }

  /** Changes its name, description or metadata. */
  async label(by: AccountActor, id: string, labels: Labels): Promise<TunedModel> {
    const { db, now } = this.options
    const columns = labelColumns(labels)
    await db.transaction().execute(async (trx) => {
      await this.requireModel(by.account_id, id, trx)
      if (Object.keys(columns).length === 0) return
      await store.updateModel(trx, id, columns)
      await recordAuditEntry(trx, by, 'model.changed', id, {}, now())
    })
    return toResponse(await this.requireModel(by.account_id, id))
  }

  /**
   * The files of a model and how it was made, for exports; undefined if there is no such model. Throws
   * model_not_available.
   */
  exportSource(account_id: string, id: string): Promise<ExportSource | undefined> {
    return this.exportSources(account_id, id)
  }

  private async requireModel(
    account_id: string,
    id: string,
    from: Queryable = this.options.db,
  ): Promise<store.ModelRow> {
    const model = await store.findModel(from, account_id, id)
    if (!model) throw new ApiError('model_not_found', `There is no model '${id}'.`)
    return model
  }

  private weightsOf(id: string, kind: 'adapter' | 'model', projector_sha256: string | null): Weights {
    const folder = modelDir(this.options.dataDir, id)
    const projector = ownProjector(folder, projector_sha256)
    return { id, gguf: path.join(folder, modelFiles[kind].gguf), ...(projector && { projector }) }
  }

  /** Unless a projector was trained with them, whole weights have that of their hub base. */
  private wholeWeightsOf(id: string, base_model_id: string, projector_sha256: string | null): Weights {
    return {
      projector: this.options.hub.localOrUndefined(base_model_id)?.projector ?? null,
      ...this.weightsOf(id, 'model', projector_sha256),
    }
  }

  private parentOf({ weights_model_id, weights_projector_sha256, base_model_id }: NewModel): Weights | undefined {
    return weights_model_id === null
      ? undefined
      : this.wholeWeightsOf(weights_model_id, base_model_id, weights_projector_sha256)
  }

  private servable(
    model: NewModel & Partial<Pick<store.ModelRow, 'comparison_json' | 'trained_with_json' | 'ft_name'>>,
  ): ServableModel {
    return {
      ...(model.kind === 'model'
        ? this.wholeWeightsOf(model.id, model.base_model_id, model.projector_sha256)
        : this.weightsOf(model.id, 'adapter', model.projector_sha256)),
      kind: model.kind,
      base_model_id: model.base_model_id,
      ft_name: model.ft_name ?? null,
      ...(model.weights_model_id && { parent: this.parentOf(model)! }),
      probe: path.join(modelDir(this.options.dataDir, model.id), probeFile),
      comparison: fromJson(model.comparison_json ?? null),
      trained_with: fromJson(model.trained_with_json ?? null),
      created_at: model.created_at,
    }
  }

  /** Undefined if it was deleted. */
  private async findServedBase(model: store.ModelRow): Promise<ServedBase | undefined> {
    const { db, hub, artifacts } = this.options
    if (model.kind === 'adapter') return { base: this.parentOf(model) ?? hub.local(model.base_model_id) }
    const job = model.job_id ? await trainingOf(db, model.job_id) : undefined
    // An imported adapter that was merged into its base has no job.
    const origin = model.job_id ? job?.model_id : (model.parent_model_id ?? model.base_model_id)
    if (origin === undefined) return undefined
    try {
      const startingModel = await resolveStartingModel(db, hub, artifacts, model.account_id, origin)
      return servedBaseOf(model.method === 'full' ? startingModel : { ...startingModel, adapter: undefined })
    } catch (error) {
      if (error instanceof ApiError && error.code !== 'training_not_ready') return undefined
      throw error
    }
  }

  /** Whether a comparison was made with the form in which the base of an adapter is served now. */
  private isOfServedForm(model: store.ModelRow, { eight_bits = false }: Comparison) {
    const base =
      model.kind === 'adapter' && !this.parentOf(model)
        ? this.options.hub.localOrUndefined(model.base_model_id)
        : undefined
    return !base || eight_bits === (base.eight_bits !== null)
  }
}

/** The engine's files of a starting model. */
export const servedBaseOf = ({ base, adapter }: Awaited<ReturnType<typeof resolveStartingModel>>): ServedBase => ({
  base: { id: base.id, gguf: base.gguf, projector: base.projector },
  ...(adapter && { adapter: { id: adapter.model_id, gguf: adapter.gguf, projector: adapter.projector } }),
})

const toResponse = (model: store.ModelRow): TunedModel => ({
  id: model.id,
  ...labelsOf(model),
  kind: model.kind,
  base_model_id: model.base_model_id,
  parent_model_id: model.parent_model_id,
  weights_model_id: model.weights_model_id,
  job_id: model.job_id,
  method: model.method,
  size_mb: Number((model.size_bytes / 1e6).toPrecision(4)),
  projector_sha256: model.projector_sha256,
  comparison: fromJson(model.comparison_json),
  created_at: isoTime(model.created_at),
})
