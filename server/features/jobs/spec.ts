import type { Logger } from 'pino'
import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import { entriesOf, type GroupName, type Hyperparameter } from '../../../contract/hyperparameters.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Datasets } from '../datasets/index.ts'
import { adapterSpec, readResolvedConfig, type TunedModels } from '../models/index.ts'
import { checkpointsToResume } from './checkpoints.ts'
import { checkpointsKept } from './run-files.ts'
import type * as store from './store.ts'

/** A group of hyperparameters under spec.json's names, with the constants that the API does not offer. */
export function specGroup(group: GroupName, resolved: Record<string, { value: unknown }>): Record<string, unknown> {
  const valueIn = (name: string, entry: Hyperparameter) => (entry.resolved ? resolved[name]?.value : entry.default)
  return Object.fromEntries(entriesOf(group).map(([name, entry]) => [entry.spec_name ?? name, valueIn(name, entry)]))
}

interface Options {
  db: Db
  models: Pick<TunedModels, 'startingModel'>
  datasets: Pick<Datasets, 'ready' | 'forTraining'>
  artifacts: Artifacts
  converters: string
  checkpoint_seconds: number
  log: Logger
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
  { db, models, datasets, artifacts }: Options,
  { account_id, model_id, dataset_id, config, threads }: TrainingRun,
) {
  const startingModel = await models.startingModel(account_id, model_id)
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
    merge: config.method.value !== 'full' && startingModel.base.merges_adapters,
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

/** The files that a training reads all the time, which must stay here. */
export const filesOfSpec = ({ base, start, dataset, evaluation }: TrainingSpec): string[] =>
  [base, start, dataset, evaluation.dataset].flatMap((part) => (part ? [part.path] : []))

export interface Specs {
  /** The spec of one attempt at a job, with the checkpoints that the trainer may resume from, newest first. */
  ofJob(job: store.JobRow, run: { attempt: number }): Promise<TrainingSpec & JobParts>
  /** The spec of a trial run for an estimate: no checkpoints, no result. */
  ofTrial(training: TrainingRun): Promise<TrainingSpec & JobParts>
}

type TrainingSpec = Awaited<ReturnType<typeof trainingSpec>>

/** What tells the runs of one training apart. */
interface JobParts {
  job_id: string
  attempt: number
  checkpoint: { every_seconds: number | null; every_steps: number | null; keep: number; min_free_mb?: number }
  resume_from: { path: string; sha256: string; step: number }[]
  converters: string
}

export const createSpecs = (options: Options): Specs => ({
  ofJob: async (job, { attempt }) => ({
    ...(await trainingSpec(options, { ...job, config: readResolvedConfig(job.resolved_config_json) })),
    job_id: job.id,
    attempt,
    checkpoint: { every_seconds: options.checkpoint_seconds, every_steps: null, keep: checkpointsKept },
    resume_from: await checkpointsToResume(options, job.id),
    converters: options.converters,
  }),
  ofTrial: async (training) => ({
    ...(await trainingSpec(options, training)),
    job_id: 'trial',
    attempt: 1,
    checkpoint: { every_seconds: null, every_steps: null, keep: 1 },
    resume_from: [],
    converters: '',
  }),
})
