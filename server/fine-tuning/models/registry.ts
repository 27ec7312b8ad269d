// The models of an account: what its jobs made, and adapters that it brought.
import { existsSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { SortedQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { AdapterFields, Comparison, TunedModel, TunedModelDetails } from '../../../contract/models.ts'
import type { Datasets } from '../../datasets/service.ts'
import type { Db, Trx } from '../../db/open.ts'
import { type By, recordAct } from '../../events/audit.ts'
import type { FormFile } from '../../http/multipart.ts'
import { modelDir, modelFiles, probeFile } from '../artifacts.ts'
import * as store from '../store.ts'
import { createTaking, type TakenModel } from './export-source.ts'
import { type AdopterOptions, createAdopter } from './import-adapter.ts'
import { type ChangeLabels, labelColumns, labelsOf } from './labels.ts'
import { lineageOf } from './lineage.ts'
import { originOf } from './starting-model.ts'

/** A file of weights that the engine loads, with the name that it is loaded under. */
export interface Weights {
  id: string
  gguf: string
}

/** A model as inference and deployments use it: an adapter on its base, or whole weights. */
export interface ServableModel extends Weights {
  kind: 'adapter' | 'model'
  base_model_id: string
  /** The tuned model whose whole weights an adapter stands on, where these are not the base's. */
  parent?: Weights
  /** The rows by which engine and trainer are compared. */
  probe: string
  /** Null where they have not been compared yet. */
  comparison: Comparison | null
  created_at: number
}

/** What a model was made from, as the engine serves it. */
export interface Origin {
  base: Weights
  adapter?: Weights
}

/** Compares what the engine serves of a model with what was trained; undefined where there is nothing to compare by. */
export type Compare = (model: ServableModel, origin: Origin) => Promise<Comparison | undefined>

/** Says why a model is needed and must not be deleted, or undefined. Asked inside the deleting transaction. */
export type NeedsModel = (trx: Trx, account_id: string, model_id: string) => Promise<string | undefined>

export interface TunedModels {
  find(account_id: string, id: string): Promise<ServableModel | undefined>
  all(account_id: string): Promise<ServableModel[]>
  get(account_id: string, id: string): Promise<TunedModelDetails>
  list(account_id: string, query: SortedQuery): Promise<{ items: TunedModel[]; has_more: boolean }>
  /** Changes its name, description or metadata. */
  label: ChangeLabels<TunedModel>
  /** Takes an adapter that was trained elsewhere. */
  bring(by: By, form: FormFile<AdapterFields>): Promise<TunedModel>
  delete(by: By, id: string): Promise<{ id: string; deleted: true }>
  /** Inside the transaction that makes another feature need it. Throws model_not_found where it was deleted. */
  require(trx: Trx, account_id: string, id: string): Promise<void>
  /**
   * All that there is of a model, for those who make files of it; undefined where there is no such model. Throws
   * model_not_available.
   */
  taken(account_id: string, id: string): Promise<TakenModel | undefined>
  /** The comparison of a model, made now where it has not been; undefined where what it was made from is gone. */
  compared(account_id: string, id: string): Promise<Comparison | undefined>
  /** The comparison of files that are about to become a model; null where it cannot be made now. */
  compareNew(row: NewModel, from: Origin): Promise<Comparison | null>
  /** Lets another feature compare, say that it needs models, hear that one is gone. */
  compareWith(compare: Compare): void
  onNeeded(needs: NeedsModel): void
  onDeleted(tell: (model: ServableModel) => void): void
}

export type NewModel = Pick<store.ModelRow, 'id' | 'kind' | 'base_model_id' | 'weights_model_id' | 'created_at'>

export function createTunedModels(
  options: AdopterOptions & { datasets: Pick<Datasets, 'get' | 'forTraining'>; now?: () => number },
): TunedModels {
  const { db, hub, dataDir, log, now = Date.now } = options
  const needs: NeedsModel[] = []
  const listeners: ((model: ServableModel) => void)[] = []
  let compare: Compare | undefined
  const adopter = createAdopter(options)

  async function row(account_id: string, id: string, from: Db | Trx = db): Promise<store.ModelRow> {
    const model = await store.findModel(from, account_id, id)
    if (!model) throw new ApiError('model_not_found', `There is no model '${id}'.`)
    return model
  }

  const weightsOf = (id: string, kind: 'adapter' | 'model'): Weights => ({
    id,
    gguf: path.join(modelDir(dataDir, id), modelFiles[kind].gguf),
  })

  const servable = (model: NewModel & { comparison_json?: string | null }): ServableModel => ({
    ...weightsOf(model.id, model.kind),
    kind: model.kind,
    base_model_id: model.base_model_id,
    ...(model.weights_model_id && { parent: weightsOf(model.weights_model_id, 'model') }),
    probe: path.join(modelDir(dataDir, model.id), probeFile),
    comparison: model.comparison_json ? JSON.parse(model.comparison_json) : null,
    created_at: model.created_at,
  })

  /** Undefined where it is not there any more. */
  async function originOfModel(model: store.ModelRow): Promise<Origin | undefined> {
    if (model.kind === 'adapter')
      return {
        base: model.weights_model_id ? weightsOf(model.weights_model_id, 'model') : hub.local(model.base_model_id),
      }
    const job = model.job_id && (await store.jobById(db, model.job_id))
    if (!job) return undefined
    try {
      return originWeights(await originOf(db, hub, dataDir, model.account_id, job.model_id))
    } catch (error) {
      if (error instanceof ApiError) return undefined
      throw error
    }
  }

  async function compareNew(model: NewModel, from: Origin): Promise<Comparison | null> {
    try {
      return (await compare?.(servable(model), from)) ?? null
    } catch (error) {
      // It is tried again when the model is deployed.
      log.warn({ err: error, model: model.id }, 'a new model could not be compared yet')
      return null
    }
  }

  return {
    find: async (account_id, id) => {
      const model = await store.findModel(db, account_id, id)
      return model && servable(model)
    },
    all: async (account_id) => (await store.allModels(db, account_id)).map(servable),
    async get(account_id, id) {
      const model = await row(account_id, id)
      return { ...toWire(model), lineage: await lineageOf(db, model) }
    },

    async list(account_id, query) {
      const rows = await store.listModels(
        db,
        account_id,
        query,
        query.after ? await row(account_id, query.after) : undefined,
      )
      return { items: rows.slice(0, query.limit).map(toWire), has_more: rows.length > query.limit }
    },

    async label(by, id, labels) {
      const columns = labelColumns(labels)
      await db.transaction().execute(async (trx) => {
        await row(by.account_id, id, trx)
        if (Object.keys(columns).length === 0) return
        await store.updateModel(trx, id, columns)
        await recordAct(trx, by, 'model.changed', id, {}, now())
      })
      return toWire(await row(by.account_id, id))
    },

    async bring(by, form) {
      const { account_id } = by
      const made = await adopter.adopt(account_id, form)
      const created_at = now()
      const { base_model_id, weights_model_id } = made.origin
      const model = { id: made.id, kind: 'adapter' as const, base_model_id, weights_model_id, created_at }
      const comparison = await compareNew(model, originWeights(made.origin))
      const register = db.transaction().execute(async (trx) => {
        // What it stands on may have been deleted while it was read.
        if (weights_model_id) await row(account_id, weights_model_id, trx)
        await store.insertModel(trx, {
          ...model,
          account_id,
          name: made.name ?? form.filename,
          description: made.description ?? '',
          metadata_json: '{}',
          parent_model_id: null,
          job_id: null,
          method: 'lora',
          step: null,
          validation_loss: null,
          gguf_sha256: made.gguf_sha256,
          comparison_json: comparison && JSON.stringify(comparison),
          size_bytes: made.size_bytes,
        })
        await recordAct(trx, by, 'model.brought', made.id, { sha256: made.gguf_sha256 }, created_at)
      })
      await register.catch(async (error) => {
        await rm(modelDir(dataDir, made.id), { recursive: true, force: true })
        throw error
      })
      return toWire(await row(account_id, made.id))
    },

    async delete(by, id) {
      const { account_id } = by
      const model = await row(account_id, id)
      await db.transaction().execute(async (trx) => {
        await row(account_id, id, trx)
        const users = [
          await store.jobThatNeedsModel(trx, account_id, id),
          await store.modelOnModel(trx, account_id, id),
        ]
        for (const need of needs) users.push(await need(trx, account_id, id))
        const user = users.find((found) => found !== undefined)
        if (user)
          throw new ApiError('in_use', `The model is needed by ${user}. Delete that first, or wait for its end.`, {
            details: { used_by: user },
          })
        await store.deleteModel(trx, id)
        await recordAct(trx, by, 'model.deleted', id, {}, now())
      })
      await rm(modelDir(dataDir, id), { recursive: true, force: true })
      for (const tell of listeners) tell(servable(model))
      return { id, deleted: true }
    },

    async compared(account_id, id) {
      const model = await row(account_id, id)
      if (model.comparison_json) return JSON.parse(model.comparison_json)
      const from = await originOfModel(model)
      // Models of earlier versions left no rows to compare by.
      if (!from || !compare || !existsSync(servable(model).probe)) return undefined
      const found = await compare(servable(model), from)
      if (found) await store.rememberComparison(db, id, JSON.stringify(found))
      return found
    },

    require: async (trx, account_id, id) => void (await row(account_id, id, trx)),
    taken: createTaking(options),
    compareNew,
    compareWith: (given) => {
      compare = given
    },
    onNeeded: (need) => void needs.push(need),
    onDeleted: (tell) => void listeners.push(tell),
  }
}

/** What a job begins with, as the engine serves it. */
export const originWeights = ({ base, adapter }: Awaited<ReturnType<typeof originOf>>): Origin => ({
  base: { id: base.id, gguf: base.gguf },
  ...(adapter && { adapter: { id: adapter.model_id, gguf: adapter.gguf } }),
})

const toWire = (model: store.ModelRow): TunedModel => ({
  id: model.id,
  ...labelsOf(model),
  kind: model.kind,
  base_model_id: model.base_model_id,
  parent_model_id: model.parent_model_id,
  weights_model_id: model.weights_model_id,
  job_id: model.job_id,
  method: model.method,
  size_mb: Number((model.size_bytes / 1e6).toPrecision(4)),
  comparison: model.comparison_json ? JSON.parse(model.comparison_json) : null,
  created_at: new Date(model.created_at).toISOString(),
})
