import path from 'node:path'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Db } from '../db/open.ts'
import type { Hub } from '../hub/index.ts'
import type { Claim } from '../queue/queue.ts'
import { runDir } from './artifacts.ts'
import { adapterSpec, resolveStartingModel } from './models/starting-model.ts'
import * as store from './store.ts'
import type { FineTuningWork } from './work.ts'

/** The plain values of resolved settings, without their sources. */
export const plainValues = <T extends Record<string, { value: unknown }>>(group: T) =>
  Object.fromEntries(Object.entries(group).map(([name, { value }]) => [name, value]))

/** Token limit of an answer to a sample prompt. */
const answer_tokens = 64

interface SpecSources {
  db: Db
  hub: Hub
  datasets: Datasets
  dataDir: string
}

interface TrainingRun {
  account_id: string
  model_id: string
  dataset_id: string
  config: ResolvedConfig
  threads: number
}

/** Everything that decides a training run: all resolved values, and the paths and hashes of its files. */
async function trainingSpec(
  { db, hub, datasets, dataDir }: SpecSources,
  { account_id, model_id, dataset_id, config, threads }: TrainingRun,
) {
  const startingModel = await resolveStartingModel(db, hub, dataDir, account_id, model_id)
  const dataset = async (id: string) => {
    const { path, sha256 } = await datasets.forTraining(db, account_id, id)
    return { path, sha256 }
  }
  const evaluation = config.evaluation_config
  return {
    base: { id: startingModel.base_model_id, path: startingModel.base.hf },
    start: await adapterSpec(startingModel),
    dataset: await dataset(dataset_id),
    method: config.method.value,
    lora: config.lora_config && plainValues(config.lora_config),
    training: { ...plainValues(config.training_config), weight_decay: 0, max_grad_norm: 1 },
    evaluation: {
      split: evaluation.validation_split.value,
      dataset: evaluation.validation_dataset_id.value && (await dataset(evaluation.validation_dataset_id.value)),
      every_steps: evaluation.every_steps.value,
      patience: evaluation.early_stopping_patience.value,
      prompts: evaluation.sample_prompts.value,
      answer_tokens,
      keep: evaluation.keep_checkpoints.value,
    },
    tokenizer: config.tokenizer ?? null,
    // Jobs older than this setting were started with parsing on, and must resume the same way.
    parse_control_tokens: config.parse_control_tokens ?? true,
    threads,
  }
}

/** The spec of one attempt at a job, with the checkpoints that the trainer may resume from, newest first. */
export async function jobSpec(work: FineTuningWork, job: store.JobRow, claim: Claim): Promise<object> {
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

/** The spec of a trial run for an estimate: no checkpoints, no result. */
export const trialSpec = async (sources: SpecSources, training: TrainingRun): Promise<object> => ({
  ...(await trainingSpec(sources, training)),
  job_id: 'trial',
  attempt: 1,
  checkpoint: { every_seconds: null, every_steps: null, keep: 1 },
  resume_from: [],
  converters: '',
})
