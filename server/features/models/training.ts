// The training that made a model, as the row of its job has it. The row stays when the job is deleted.

import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import { entriesOf, type GroupName, type Objective } from '../../../contract/hyperparameters.ts'
import type { LineageDataset } from '../../../contract/models.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Queryable } from '../../platform/db/open.ts'
import type { Row } from '../../platform/db/schema.ts'

type JobRow = Row<'tuning_jobs'>
type Resolved<G extends GroupName> = NonNullable<ResolvedConfig[G]>

export type Training = NonNullable<Awaited<ReturnType<typeof trainingOf>>>

/** Also of a job that was deleted. */
export const trainingOf = (db: Queryable, job_id: string) =>
  db
    .selectFrom('tuning_jobs')
    .select([
      'id',
      'account_id',
      'model_id',
      'dataset_id',
      'parent_json',
      'recipe_json',
      'resolved_config_json',
      'metrics_json',
    ])
    .where('id', '=', job_id)
    .executeTakeFirst()

/** The numbers of a job's held-out rows; undefined if its trainer has not reported them. */
export async function heldOutRows(db: Queryable, job_id: string): Promise<number[] | undefined> {
  const row = await db.selectFrom('job_held_out').selectAll().where('job_id', '=', job_id).executeTakeFirst()
  return row && fromJson(row.rows_json)
}

/** The tuned model that a job continues. */
export interface Parent {
  model_id: string
  name: string | null
  job_id: string | null
  step: number | null
  /** SHA-256 of the GGUF file that the engine serves. */
  sha256: string | null
}

export type Dataset = LineageDataset & { size_mb: number | null }
/** Inputs of a job. */
export interface Recipe {
  method: ResolvedConfig['method']['value']
  /** Missing in jobs of earlier versions, which are supervised. */
  objective?: Objective
  epochs: number
  dataset: Dataset
  validation_dataset: Dataset | null
}

export const recipeOf = (job: Pick<JobRow, 'recipe_json'>) => JSON.parse(job.recipe_json) as Recipe
export const parentOf = (job: Pick<JobRow, 'parent_json'>) =>
  job.parent_json ? (JSON.parse(job.parent_json) as Parent) : null

/** The stored config of a job. A job that is older than a hyperparameter has its constant default. */
export function readResolvedConfig(json: string): ResolvedConfig {
  const config = JSON.parse(json) as ResolvedConfig
  const filled = <G extends GroupName>(group: G) => {
    const stored: Record<string, unknown> = { ...config[group] }
    const values = entriesOf(group).flatMap(([name, entry]) => {
      if (!entry.resolved || (entry.computed && !(name in stored))) return []
      return [[name, stored[name] ?? { value: entry.default, source: 'default' }]]
    })
    return Object.fromEntries(values) as Resolved<G>
  }
  return {
    ...config,
    method_options: filled('method_options'),
    lora_config: config.lora_config && filled('lora_config'),
    training_config: filled('training_config'),
    evaluation_config: filled('evaluation_config'),
  }
}

/** The plain values of resolved settings, without their sources. */
export const plainValues = <T extends Record<string, { value: unknown }>>(group: T) =>
  Object.fromEntries(Object.entries(group).map(([name, { value }]) => [name, value]))
