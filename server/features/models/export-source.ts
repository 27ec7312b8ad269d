// The input of an export: the files of a model and how it was made.

import path from 'node:path'
import { undefinedIf } from '../../../contract/errors.ts'
import { type Objective, optionsFor } from '../../../contract/hyperparameters.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Hub, Projector } from '../hub/index.ts'
import { modelFiles, modelKey, ownProjector, probeFile } from './artifacts.ts'
import { resolveStartingModel } from './starting-model.ts'
import * as store from './store.ts'
import { plainValues, readResolvedConfig, trainingOf } from './training.ts'

export interface ExportSource {
  id: string
  name: string
  kind: 'adapter' | 'model'
  method: 'lora' | 'qlora' | 'full'
  /** The adapter's folder as PEFT wrote it, or the checkpoint of whole weights. */
  folder: string
  /** The file that the engine serves. */
  gguf: string
  /** With which it reads pictures: its own, or that of its base; null: it reads text only. */
  projector: Projector | null
  /** Whether that was trained with it. */
  owns_projector: boolean
  /** Rows to compare the engine's answers with the trainer's. */
  probe: string
  /** Its training data, one conversation per line; null if deleted. */
  rows: string | null
  size_bytes: number
  /** The base of an adapter, or what whole weights were made from: a hub base, or a tuned model with whole weights. */
  base: {
    id: string
    base_model_id: string
    path: string
    gguf: string
    projector: Projector | null
    parameters: number
    context_length: number
    license: string | null
  }
  /** How it was made, for the model card. */
  card: {
    job_id: string | null
    dataset: { name: string; rows: number; sha256: string } | null
    settings: object | null
    results: object | null
    created_at: string
  }
}

interface Options {
  db: Db
  hub: Hub
  datasets: Pick<Datasets, 'get' | 'ready' | 'forTraining'>
  artifacts: Artifacts
}

/**
 * Finds the files of a model and of its base, and how it was made. Throws model_not_found, model_not_available,
 * training_not_ready.
 */
export function createExportSource({ db, hub, datasets, artifacts }: Options) {
  return async (account_id: string, id: string): Promise<ExportSource | undefined> => {
    const model = await store.findModel(db, account_id, id)
    if (!model) return undefined
    const { name, kind, method, base_model_id, size_bytes } = model
    const startingModel = await resolveStartingModel(db, hub, artifacts, account_id, id)
    // For whole weights `startingModel.base` is the model itself; configuration and name come from the hub base.
    const { hf, gguf, projector, parameters, context_length } =
      kind === 'model' ? hub.trainable(base_model_id) : startingModel.base
    const folder = artifacts.pathOf(modelKey(id))
    const license = hub.get(base_model_id).license
    return {
      id,
      name,
      kind,
      method,
      folder: path.join(folder, modelFiles[kind].folder),
      gguf: path.join(folder, modelFiles[kind].gguf),
      projector: ownProjector(folder, model.projector_sha256) ?? projector,
      owns_projector: model.projector_sha256 !== null,
      probe: path.join(folder, probeFile),
      size_bytes,
      base: {
        id: startingModel.weights_model_id && kind === 'adapter' ? startingModel.weights_model_id : base_model_id,
        base_model_id,
        path: hf,
        gguf,
        projector,
        parameters,
        context_length,
        license: license === 'unknown' ? null : license,
      },
      ...(await provenanceOf(account_id, model)),
    }
  }

  async function provenanceOf(account_id: string, { job_id, created_at }: store.ModelRow) {
    const provenance = { job_id, created_at: isoTime(created_at) }
    const job = job_id === null ? undefined : await trainingOf(db, job_id)
    if (!job) return { rows: null, card: { ...provenance, dataset: null, settings: null, results: null } }
    // The dataset may be gone.
    const dataset = await datasets.get(account_id, job.dataset_id).catch(undefinedIf('dataset_not_found'))
    const { method, method_options, lora_config, training_config, projector } = readResolvedConfig(
      job.resolved_config_json,
    )
    const objective = method_options.objective.value
    const files = await datasets
      .ready(account_id, job.dataset_id)
      .then(() => datasets.forTraining(db, account_id, job.dataset_id, objective))
      .catch(undefinedIf('dataset_not_found', 'dataset_not_ready', 'dataset_invalid'))
    const optionsOf = (objective: Objective) =>
      Object.fromEntries(
        Object.entries(plainValues(method_options)).filter(([name]) => optionsFor(objective).includes(name)),
      )
    const settings = {
      method: method.value,
      ...(objective !== 'sft' && { [objective === 'reinforcement' ? objective : 'preferences']: optionsOf(objective) }),
      ...(lora_config && { lora: plainValues(lora_config) }),
      ...(projector?.value && { projector: true }),
      training: plainValues(training_config),
    }
    return {
      rows: files ? await artifacts.ensureLocal(files.path) : null,
      card: {
        ...provenance,
        dataset: dataset ? { name: dataset.name, rows: dataset.rows, sha256: dataset.sha256 } : null,
        settings,
        results: fromJson(job.metrics_json),
      },
    }
  }
}

/** Cache in a model folder, written by its first export that needs it: the trainer's answers to fixed prompts. */
export const referenceAnswersFile = (model: ExportSource) => path.join(path.dirname(model.probe), 'answers.json')
/** Cache in a model folder: the importance matrix for quantization. */
export const importanceMatrixFile = (model: ExportSource) =>
  path.join(path.dirname(model.probe), 'importance.safetensors')
