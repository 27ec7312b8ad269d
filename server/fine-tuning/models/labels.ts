// What people call jobs and models, and write about them.
import { asDisplayName, type Labels } from '../../../contract/common.ts'
import type { By } from '../../events/audit.ts'
import type { JobRow } from '../store.ts'

const name_max = 200

/** `head`, cut so that `tail` can follow it within the bound of names. */
const joined = (head: string, tail: string) =>
  `${asDisplayName(head.slice(0, Math.max(0, name_max - tail.length)))}${tail}`

/** The name of a job that was given none: `tickets · SmolLM2-135M-Instruct`. */
export const nameOfJob = (dataset_name: string, base_model_id: string): string =>
  asDisplayName(joined(dataset_name.replace(/\.(jsonl?|csv|parquet)$/i, ''), ` · ${base_model_id.split('/').at(-1)}`))

/** The name of a state that a job was asked to keep beside its result. */
export const nameOfStep = (job_name: string, step: number): string => joined(job_name, ` · step ${step}`)

/** The columns that a change sets. */
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

export type ChangeLabels<T> = (by: By, id: string, labels: Labels) => Promise<T>
