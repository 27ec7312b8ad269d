import path from 'node:path'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import type { Claim } from '../queue/queue.ts'
import { originOf, startOf } from './origin.ts'
import { runDir } from './paths.ts'
import * as store from './store.ts'
import type { TuningWork } from './work.ts'

const values = <T extends Record<string, { value: unknown }>>(group: T) => Object.fromEntries(Object.entries(group).map(([name, { value }]) => [name, value]))

/** How many tokens an answer to a sample prompt may have. */
const answer_tokens = 64

/** What a trainer is told: every value in force, where its files are, and the checkpoints it may go on from. */
export async function specOf(work: TuningWork, job: store.JobRow, claim: Claim): Promise<object> {
  const config = JSON.parse(job.resolved_config_json) as ResolvedConfig
  const origin = await originOf(work.db, work.hub, work.dataDir, job.account_id, job.model_id)
  const dataset = async (id: string) => {
    const { path, sha256 } = await work.datasets.forTraining(work.db, job.account_id, id)
    return { path, sha256 }
  }
  const watched = config.evaluation_config
  const checkpoints = await store.checkpoints(work.db, job.id, 10)
  return {
    job_id: job.id,
    attempt: claim.attempt,
    base: { id: origin.base_model_id, path: origin.base.hf },
    start: await startOf(origin),
    dataset: await dataset(job.dataset_id),
    method: config.method.value,
    lora: config.lora_config && values(config.lora_config),
    training: { ...values(config.training_config), weight_decay: 0, max_grad_norm: 1 },
    evaluation: {
      split: watched.validation_split.value,
      dataset: job.validation_dataset_id && (await dataset(job.validation_dataset_id)),
      every_steps: watched.every_steps.value,
      patience: watched.early_stopping_patience.value,
      prompts: watched.sample_prompts.value,
      answer_tokens,
      keep: watched.keep_checkpoints.value,
    },
    threads: job.threads,
    checkpoint: { every_seconds: work.checkpoint_seconds, every_steps: null, keep: 2 },
    resume_from: checkpoints.map(({ attempt, step, sha256 }) => ({
      path: path.join(runDir(work.dataDir, job.id, attempt), 'checkpoints', `step-${step}`),
      sha256,
      step,
    })),
    converters: work.converters,
  }
}
