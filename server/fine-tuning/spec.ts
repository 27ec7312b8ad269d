import path from 'node:path'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import type { Datasets } from '../datasets/service.ts'
import type { Db } from '../db/open.ts'
import type { Hub } from '../hub/service.ts'
import type { Claim } from '../queue/queue.ts'
import { runDir } from './artifacts.ts'
import { originOf, startOf } from './models/starting-model.ts'
import * as store from './store.ts'
import type { TuningWork } from './work.ts'

export const values = <T extends Record<string, { value: unknown }>>(group: T) =>
  Object.fromEntries(Object.entries(group).map(([name, { value }]) => [name, value]))

/** How many tokens an answer to a sample prompt may have. */
const answer_tokens = 64

interface Parts {
  db: Db
  hub: Hub
  datasets: Datasets
  dataDir: string
}

interface Training {
  account_id: string
  model_id: string
  dataset_id: string
  config: ResolvedConfig
  threads: number
}

/** Everything that decides a training: every value in force, and where its files are. */
async function trainingSpec(
  { db, hub, datasets, dataDir }: Parts,
  { account_id, model_id, dataset_id, config, threads }: Training,
) {
  const origin = await originOf(db, hub, dataDir, account_id, model_id)
  const dataset = async (id: string) => {
    const { path, sha256 } = await datasets.forTraining(db, account_id, id)
    return { path, sha256 }
  }
  const watched = config.evaluation_config
  return {
    base: { id: origin.base_model_id, path: origin.base.hf },
    start: await startOf(origin),
    dataset: await dataset(dataset_id),
    method: config.method.value,
    lora: config.lora_config && values(config.lora_config),
    training: { ...values(config.training_config), weight_decay: 0, max_grad_norm: 1 },
    evaluation: {
      split: watched.validation_split.value,
      dataset: watched.validation_dataset_id.value && (await dataset(watched.validation_dataset_id.value)),
      every_steps: watched.every_steps.value,
      patience: watched.early_stopping_patience.value,
      prompts: watched.sample_prompts.value,
      answer_tokens,
      keep: watched.keep_checkpoints.value,
    },
    tokenizer: config.tokenizer ?? null,
    // Jobs of before there was the choice have none: they were begun with rows that are parsed, and go on so.
    parse_control_tokens: config.parse_control_tokens ?? true,
    threads,
  }
}

/** What the trainer of a job is told, with the checkpoints that it may go on from. */
export async function specOf(work: TuningWork, job: store.JobRow, claim: Claim): Promise<object> {
  const config = JSON.parse(job.resolved_config_json) as ResolvedConfig
  const checkpoints = await store.checkpoints(work.db, job.id, 10)
  return {
    ...(await trainingSpec(work, { ...job, config })),
    job_id: job.id,
    attempt: claim.attempt,
    checkpoint: { every_seconds: work.checkpoint_seconds, every_steps: null, keep: 2 },
    resume_from: checkpoints.map(({ attempt, step, sha256 }) => ({
      path: path.join(runDir(work.dataDir, job.id, attempt), 'checkpoints', `step-${step}`),
      sha256,
      step,
    })),
    converters: work.converters,
  }
}

/** The spec of a trial, which leaves nothing. */
export const trialSpec = async (parts: Parts, training: Training): Promise<object> => ({
  ...(await trainingSpec(parts, training)),
  job_id: 'trial',
  attempt: 1,
  checkpoint: { every_seconds: null, every_steps: null, keep: 1 },
  resume_from: [],
  converters: '',
})
