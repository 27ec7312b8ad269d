// Lineage of a model: its base and each training on the way, with its datasets. A job
// stores a snapshot of its inputs and keeps its row, so the lineage survives the deletion of jobs, models and datasets.

import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import type { Lineage, LineageDataset, LineageStep } from '../../../contract/models.ts'
import type { Db, Queryable } from '../../platform/db/open.ts'
import type { Datasets } from '../datasets/index.ts'
import * as store from './store.ts'
import { type Dataset, type Parent, parentOf, type Recipe, recipeOf, type Training, trainingOf } from './training.ts'

/** Columns of a new job that store its parent model and inputs. */
export async function sourceColumns(
  db: Db,
  datasets: Pick<Datasets, 'get'>,
  account_id: string,
  { model_id, dataset_id, config }: { model_id: string; dataset_id: string; config: ResolvedConfig },
) {
  const { method, method_options, training_config, evaluation_config } = config
  const validation_dataset_id = evaluation_config.validation_dataset_id.value
  const model = await store.findModel(db, account_id, model_id)
  const parent: Parent | null = model
    ? { model_id, name: model.name, job_id: model.job_id, step: model.step, sha256: model.gguf_sha256 }
    : null
  const describe = async (dataset_id: string): Promise<Dataset> => {
    const { id, name, sha256, size_mb } = await datasets.get(account_id, dataset_id)
    return { id, name, sha256, size_mb }
  }
  const recipe: Recipe = {
    method: method.value,
    objective: method_options.objective.value,
    epochs: training_config.epochs.value,
    dataset: await describe(dataset_id),
    validation_dataset: validation_dataset_id ? await describe(validation_dataset_id) : null,
  }
  return {
    dataset: recipe.dataset,
    columns: { parent_json: parent && JSON.stringify(parent), recipe_json: JSON.stringify(recipe) },
  }
}

/** The lineage of a model, first training or upload first. */
export async function lineageOf(db: Queryable, model: store.ModelRow): Promise<Lineage> {
  const steps: LineageStep[] = []
  let ancestor: Parent | null = {
    model_id: model.id,
    name: model.name,
    job_id: model.job_id,
    step: model.step,
    sha256: model.gguf_sha256,
  }
  while (ancestor) {
    const job: Training | undefined = ancestor.job_id === null ? undefined : await trainingOf(db, ancestor.job_id)
    const { model_id, name, job_id, step, sha256 }: Parent = ancestor
    const recipe = job && recipeOf(job)
    const { method = null, dataset = null, validation_dataset = null } = recipe ?? {}
    steps.unshift({
      model_id,
      name,
      sha256,
      job_id,
      step,
      method,
      objective: recipe ? (recipe.objective ?? 'sft') : null,
      dataset: withoutSize(dataset),
      validation_dataset: withoutSize(validation_dataset),
    })
    ancestor = job ? parentOf(job) : null
  }
  return { base_model_id: model.base_model_id, steps }
}

const withoutSize = (dataset: Dataset | null): LineageDataset | null =>
  dataset && { id: dataset.id, name: dataset.name, sha256: dataset.sha256 }
