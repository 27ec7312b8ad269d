// Names, descriptions and metadata of jobs and models.
import { asDisplayName, type Labels } from '../../../../contract/common.ts'
import type { AccountActor } from '../../../platform/events/audit.ts'
import type { JobRow } from '../store.ts'

const name_max = 200

/** `head` + `tail`, with `head` cut so that both fit into the length limit of names. */
const joinWithinLimit = (head: string, tail: string) =>
  `${asDisplayName(head.slice(0, Math.max(0, name_max - tail.length)))}${tail}`

/** The default name of a job: `tickets · SmolLM2-135M-Instruct`. */
export const nameOfJob = (dataset_name: string, base_model_id: string): string =>
  asDisplayName(
    joinWithinLimit(dataset_name.replace(/\.(jsonl?|csv|parquet)$/i, ''), ` · ${base_model_id.split('/').at(-1)}`),
  )

/** The name of a checkpoint that a job keeps besides its result. */
export const nameOfStep = (job_name: string, step: number): string => joinWithinLimit(job_name, ` · step ${step}`)

/** The columns that a PATCH sets. */
export const labelColumns = ({ name, description, metadata }: Labels) => ({
  ...(name !== undefined && { name }),
  ...(description !== undefined && { description }),
  ...(metadata !== undefined && { metadata_json: JSON.stringify(metadata) }),
})

export const labelsOf = ({
  name,
  description,
  metadata_json,
}: Pick<JobRow, 'name' | 'description' | 'metadata_json'>) => ({
  name,
  description,
  metadata: JSON.parse(metadata_json) as NonNullable<Labels['metadata']>,
})

export type ChangeLabels<T> = (by: AccountActor, id: string, labels: Labels) => Promise<T>
