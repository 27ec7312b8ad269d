// Why a dataset is refused for what it is to be used for.
import type { Dataset } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Model } from '../../../contract/hub.ts'
import type { Objective } from '../../../contract/hyperparameters.ts'
import type { Check } from './check-rows.ts'

const learnedFrom: Record<Objective, string> = {
  sft: 'conversations (messages)',
  dpo: 'pairs of answers (prompt, chosen, rejected)',
  kto: 'rated answers (prompt, completion, label)',
  reinforcement: 'prompts (messages that end with one of the user)',
}
export const wrongKind = (id: string, objective: Objective, objectives: Objective[]) =>
  new ApiError(
    'dataset_invalid',
    `The rows of '${id}' are ${learnedFrom[objectives[0]!]}; the objective '${objective}' learns from ` +
      `${learnedFrom[objective]}. Choose another dataset or the objective '${objectives[0]}' ` +
      "(config.method_options.objective; in OpenAI's API method.type).",
    { details: { objective, objectives } },
  )

/** Refuses rows that have nothing to learn until a model has answered them. */
export const promptsAlone = (id: string) =>
  new ApiError(
    'invalid_request',
    `The rows of '${id}' are prompts without answers: which tokens are learned is known when a model answers them.`,
  )

export const sameAnswers = ({ id, rows }: Pick<Dataset, 'id' | 'rows'>) =>
  new ApiError(
    'dataset_invalid',
    `${rows === 1 ? `'${id}' has one answer` : `All ${rows} answers of '${id}' are the same`}. The objective 'kto' ` +
      'compares each answer with answers to other prompts, so it would learn nothing. Add rows with other answers.',
    { details: { objective: 'kto', rows } },
  )

/** Throws invalid_request for rows with pictures and a base that cannot be trained on them. */
export function requirePictureReader(
  base: Pick<Model, 'id' | 'pictures'>,
  dataset: Pick<Dataset, 'id' | 'pictures'>,
): void {
  if (dataset.pictures > 0 && !base.pictures?.trained) throw readsTextOnly(base, dataset)
}
export const readsTextOnly = (
  base: Pick<Model, 'id' | 'pictures'>,
  { id, pictures }: Pick<Dataset, 'id' | 'pictures'>,
) =>
  new ApiError(
    'invalid_request',
    `The rows of '${id}' have pictures, and ${base.id} cannot be trained on them. Choose a base whose 'pictures' say ` +
      "'trained' (GET /v1/hub/ lists them), or a dataset without pictures." +
      (base.pictures?.notes ?? []).map((note) => ` ${note}`).join(''),
    { details: { field: 'model_id', pictures }, param: 'model_id' },
  )

/** The error for a dataset with rows that cannot be trained on. */
export const invalidDataset = (dataset: { id: string; rows: number }, check: Check) =>
  new ApiError(
    'dataset_invalid',
    `${check.error_count} of the dataset's ${dataset.rows} rows cannot be trained on. POST ` +
      `/v1/datasets/${dataset.id}/validate lists them.`,
    { details: { error_count: check.error_count, errors: check.errors.slice(0, 10) } },
  )
