import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import { entriesOf, type GroupName, type Hyperparameter } from '../../../contract/hyperparameters.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Hub } from '../hub/index.ts'
import { adapterSpec, readResolvedConfig, resolveStartingModel } from '../models/index.ts'
import { checkpointsToResume } from './checkpoints.ts'
import type * as store from './store.ts'
import type { JobWork } from './work.ts'

/** A group of hyperparameters under spec.json's names, with the constants that the API does not offer. */
export function specGroup(group: GroupName, resolved: Record<string, { value: unknown }>): Record<string, unknown> {
  const valueIn = (name: string, entry: Hyperparameter) => (entry.resolved ? resolved[name]?.value : entry.default)
  return Object.fromEntries(entriesOf(group).map(([name, entry]) => [entry.spec_name ?? name, valueIn(name, entry)]))
}

interface SpecSources {
  db: Db
  hub: Hub
  datasets: Datasets
  artifacts: Artifacts
}

interface TrainingRun {
  account_id: string
  model_id: string
  dataset_id: string
  config: ResolvedConfig
  threads: number
}

/** How long a job waits for its rows to be converted. */
const conversion_ms = 15 * 60_000

/** Everything that decides a training run: all resolved values, and the paths and hashes of its files. */
async function trainingSpec(
  { db, hub, datasets, artifacts }: SpecSources,
  { account_id, model_id, dataset_id, config, threads }: TrainingRun,
) {
  const startingModel = await resolveStartingModel(db, hub, artifacts, account_id, model_id)
  const dataset = async (id: string) => {
    // Rows that an earlier version wrote are converted first.
    await datasets.ready(account_id, id, conversion_ms)
    const objective = config.method_options.objective.value
    const { path, sha256, known_as } = await datasets.forTraining(db, account_id, id, objective)
    return { path: await artifacts.ensureLocal(path), sha256, known_as }
  }
  const validation_id = config.evaluation_config.validation_dataset_id.value
  return {
    base: { id: startingModel.base_model_id, path: startingModel.base.hf },
    start: await adapterSpec(startingModel),
    dataset: await dataset(dataset_id),
    method: config.method.value,
    options: specGroup('method_options', config.method_options),
    lora: config.lora_config && specGroup('lora_config', config.lora_config),
    projector: config.projector?.value ?? false,
    training: specGroup('training_config', config.training_config),
    evaluation: {
      ...specGroup('evaluation_config', config.evaluation_config),
      dataset: validation_id && (await dataset(validation_id)),
    },
    tokenizer: config.tokenizer ?? null,
    // Jobs older than this setting were started with parsing on, and must resume the same way.
    parse_control_tokens: config.parse_control_tokens ?? true,
    threads,
  }
}

/** The spec of one attempt at a job, with the checkpoints that the trainer may resume from, newest first. */
export async function jobSpec(work: JobWork, job: store.JobRow, { attempt: current }: Pick<Claim, 'attempt'>) {
  const config = readResolvedConfig(job.resolved_config_json)
  return {
    ...(await trainingSpec(work, { ...job, config })),
    job_id: job.id,
    attempt: current,
    checkpoint: { every_seconds: work.checkpoint_seconds, every_steps: null, keep: 2 },
    resume_from: await checkpointsToResume(work, job.id),
    converters: work.converters,
  }
}

/** The files that a training reads all the time, which must stay here. */
export const filesOfSpec = ({ base, start, dataset, evaluation }: Awaited<ReturnType<typeof trainingSpec>>): string[] =>
  [base, start, dataset, evaluation.dataset].flatMap((each) => (each ? [each.path] : []))

/** The spec of a trial run for an estimate: no checkpoints, no result. */
export const trialSpec = async (sources: SpecSources, training: TrainingRun) => ({
  ...(await trainingSpec(sources, training)),
  job_id: 'trial',
  attempt: 1,
  checkpoint: { every_seconds: null, every_steps: null, keep: 1 },
  resume_from: [],
  converters: '',
})
