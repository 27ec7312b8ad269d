// Default names of jobs and of the models that they make.
import { asDisplayName } from '../../../contract/common.ts'

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
