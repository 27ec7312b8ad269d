// What there is of a model for those who make files of it to take away.
import path from 'node:path'
import type { ResolvedConfig } from '../../../contract/tuning.ts'
import type { Datasets } from '../../datasets/service.ts'
import type { Db } from '../../db/open.ts'
import type { Hub } from '../../hub/service.ts'
import { modelDir, modelFiles, probeFile } from '../artifacts.ts'
import { values } from '../spec.ts'
import * as store from '../store.ts'
import { originOf } from './starting-model.ts'

export interface TakenModel {
  id: string
  name: string
  kind: 'adapter' | 'model'
  method: 'lora' | 'qlora' | 'full'
  /** The adapter's folder as PEFT wrote it, or the checkpoint of whole weights; and what the engine serves. */
  folder: string
  gguf: string
  /** Rows by which engine and trainer are compared. */
  probe: string
  /** What it was trained on, one conversation a line; null where that is not there any more. */
  rows: string | null
  size_bytes: number
  /**
   * What an adapter stands on, or what whole weights were made from: a base of the hub, or a model of the account with
   * whole weights.
   */
  base: {
    id: string
    base_model_id: string
    path: string
    gguf: string
    parameters: number
    context_length: number
    license: string | null
  }
  /** How it came about, for those who find the files later. */
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
  datasets: Pick<Datasets, 'get' | 'forTraining'>
  dataDir: string
}

/**
 * Finds the files of a model, those it stands on, and how it was made. Throws model_not_found or model_not_available.
 */
export function createTaking({ db, hub, datasets, dataDir }: Options) {
  return async (account_id: string, id: string): Promise<TakenModel | undefined> => {
    const model = await store.findModel(db, account_id, id)
    if (!model) return undefined
    const { name, kind, method, base_model_id, size_bytes } = model
    const origin = await originOf(db, hub, dataDir, account_id, id)
    // Of whole weights, `base` is the model itself; what its configuration and name come from is the hub's.
    const { hf, gguf, parameters, context_length } = kind === 'model' ? hub.local(base_model_id) : origin.base
    const folder = modelDir(dataDir, id)
    const license = hub.get(base_model_id).license
    return {
      id,
      name,
      kind,
      method,
      folder: path.join(folder, modelFiles[kind].folder),
      gguf: path.join(folder, modelFiles[kind].gguf),
      probe: path.join(folder, probeFile),
      size_bytes,
      base: {
        id: origin.weights_model_id && kind === 'adapter' ? origin.weights_model_id : base_model_id,
        base_model_id,
        path: hf,
        gguf,
        parameters,
        context_length,
        license: license === 'unknown' ? null : license,
      },
      ...(await historyOf(account_id, model)),
    }
  }

  async function historyOf(account_id: string, { job_id, created_at }: store.ModelRow) {
    const told = { job_id, created_at: new Date(created_at).toISOString() }
    const job = job_id === null ? undefined : await store.jobById(db, job_id)
    if (!job) return { rows: null, card: { ...told, dataset: null, settings: null, results: null } }
    // The dataset may be gone.
    const dataset = await datasets.get(account_id, job.dataset_id).catch(() => undefined)
    const files = await datasets.forTraining(db, account_id, job.dataset_id).catch(() => undefined)
    const { method, lora_config, training_config } = JSON.parse(job.resolved_config_json) as ResolvedConfig
    const settings = {
      method: method.value,
      ...(lora_config && { lora: values(lora_config) }),
      training: values(training_config),
    }
    return {
      rows: files?.path ?? null,
      card: {
        ...told,
        dataset: dataset ? { name: dataset.name, rows: dataset.rows, sha256: dataset.sha256 } : null,
        settings,
        results: JSON.parse(job.metrics_json) as object,
      },
    }
  }
}

/** In the folder of a model, found at its first export that asks for it: what its trainer answers to fixed prompts. */
export const answersOf = (model: TakenModel) => path.join(path.dirname(model.probe), 'answers.json')
/** Likewise: how much each input of its matrices weighs. */
export const importanceOf = (model: TakenModel) => path.join(path.dirname(model.probe), 'importance.safetensors')
