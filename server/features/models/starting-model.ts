import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import type { Queryable } from '../../platform/db/open.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Hub, Projector, TrainableBase } from '../hub/index.ts'
import { modelFiles, modelKey, ownProjector } from './artifacts.ts'
import * as store from './store.ts'

/**
 * What a job starts from: whole weights, of a hub base or of a tuned model, and optionally an adapter on them to
 * continue.
 */
export interface StartingModel {
  base: TrainableBase
  base_model_id: string
  /** The id of the tuned model that `base` is; null if it is a hub base. */
  weights_model_id: string | null
  /** The projector of `base`, where it differs from that of the hub's base. */
  weights_projector: Projector | null
  adapter?:
    | undefined
    | {
        model_id: string
        folder: string
        gguf: string
        /** Its own; null: it has that of `base`. */
        projector: Projector | null
        r: number
        alpha: number
        target_modules: string[]
        /** Whether it changes experts. */
        experts: boolean
      }
}

/**
 * Finds the files of a hub base or tuned model, and fetches those of a tuned one. Throws model_not_found,
 * model_not_available, training_not_ready.
 */
export async function resolveStartingModel(
  db: Queryable,
  hub: Hub,
  artifacts: Pick<Artifacts, 'ensureLocal'>,
  account_id: string,
  model_id: string,
): Promise<StartingModel> {
  const tuned = await store.findModel(db, account_id, model_id)
  if (!tuned)
    return { base: hub.trainable(model_id), base_model_id: model_id, weights_model_id: null, weights_projector: null }
  const { base_model_id } = tuned
  if (tuned.kind === 'model') return wholeModel(hub, artifacts, base_model_id, tuned.id, tuned.projector_sha256)
  const files = modelFiles.adapter
  const modelFolder = await artifacts.ensureLocal(modelKey(tuned.id))
  const folder = path.join(modelFolder, files.folder)
  const gguf = path.join(modelFolder, files.gguf)
  const config = JSON.parse(await readFile(path.join(folder, 'adapter_config.json'), 'utf8'))
  const { weights_model_id, weights_projector_sha256 } = tuned
  return {
    ...(weights_model_id
      ? await wholeModel(hub, artifacts, base_model_id, weights_model_id, weights_projector_sha256)
      : { base: hub.trainable(base_model_id), base_model_id, weights_model_id: null, weights_projector: null }),
    adapter: {
      model_id: tuned.id,
      folder,
      gguf,
      projector: ownProjector(modelFolder, tuned.projector_sha256),
      r: config.r,
      alpha: config.lora_alpha,
      ...targetsOf(config),
    },
  }
}

/**
 * What an adapter changes. Layers whose names PEFT would take for those of experts are parameters in its file
 * (trainer/model/experts.py), as the experts are.
 */
function targetsOf(config: { target_modules: string[]; target_parameters?: string[] | null }) {
  const parameters = config.target_parameters ?? []
  const layers = parameters.filter((name) => name.endsWith('.weight')).map((name) => name.split('.').at(-2)!)
  return {
    target_modules: [...new Set([...config.target_modules, ...layers])].sort(),
    experts: layers.length < parameters.length,
  }
}

/** Whole weights of a tuned model, with the size and context of the base that it was made from. */
async function wholeModel(
  hub: Hub,
  artifacts: Pick<Artifacts, 'ensureLocal'>,
  base_model_id: string,
  id: string,
  projector_sha256: string | null,
): Promise<StartingModel> {
  const folder = await artifacts.ensureLocal(modelKey(id))
  const hubBase = hub.local(base_model_id)
  const weights_projector = ownProjector(folder, projector_sha256)
  return {
    base: {
      ...hubBase,
      id,
      hf: path.join(folder, modelFiles.model.folder),
      gguf: path.join(folder, modelFiles.model.gguf),
      projector: weights_projector ?? hubBase.projector,
    },
    base_model_id,
    weights_model_id: id,
    weights_projector,
  }
}

/** The adapter for the trainer's spec, with the SHA-256 of its weights. */
export async function adapterSpec({ adapter }: StartingModel): Promise<{ path: string; sha256: string } | null> {
  if (!adapter) return null
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path.join(adapter.folder, 'adapter_model.safetensors'))) hash.update(chunk)
  return { path: adapter.folder, sha256: hash.digest('hex') }
}
