import path from 'node:path'
import { usableCores } from '../../../lib/usable-cores.ts'
import type { Plans } from '../../platform/plans.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import { createPreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import { trainerEnv } from '../../platform/trainer/trainer.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Files } from '../files/index.ts'
import type { Downloads, Hub } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { Usage } from '../usage/index.ts'
import { createCoreShare } from './core-share.ts'
import { createEstimator } from './estimate.ts'
import { workOnJob } from './jobs.ts'
import { createJobMeter } from './metering.ts'
import { observeAttempts } from './observe.ts'
import { openaiFineTuningRoutes } from './openai/routes.ts'
import { createOpenaiFineTuning } from './openai/service.ts'
import { queueKind } from './pending-weights.ts'
import { jobRoutes } from './routes.ts'
import { createJobs, type Jobs } from './service.ts'
import * as store from './store.ts'
import { createTracking } from './tracking.ts'
import type { JobWork } from './work.ts'

interface Needs {
  plans: Plans
  accounts: Accounts
  usage: Usage
  hub: Hub
  downloads: Downloads
  datasets: Datasets
  models: TunedModels
  files: Files
  /** The engine, which shares the cores with the trainers. */
  engine: { pid(): number | undefined; yieldCores(share: number, for_ms: number): Promise<void> }
  secrets: Secrets
}

export async function createJobsFeature(
  context: Context,
  needs: Needs,
): Promise<
  Feature & {
    jobs: Jobs
    /** The number of running trainings. */
    runningTrainings(): number
  }
> {
  const { config, dataDir, log } = context
  const { plans, accounts, usage, hub, downloads, datasets, models, files, engine } = needs
  const { parse_control_tokens } = config
  const meter = createJobMeter({ add: usage.add, price: (id) => plans.pricing(id).training_per_million_tokens })
  const { checkpoint_seconds, training_turn_seconds: turn_seconds, trainer_processes } = config
  const prepared = createPreparedTrainer({
    python: context.python,
    threads: context.threads,
    env: trainerEnv,
    // Runs of several processes are started by torchrun, and those of a cluster elsewhere.
    idle_seconds: trainer_processes > 1 || config.ray_address ? 0 : config.prepared_trainer_seconds,
    ready: context.trainingSetup.ready,
    log,
  })
  // This machine trains one job at a time; a cluster as many as it has room for.
  const turns = { at_once: config.ray_address ? config.ray_jobs : 1, slice_ms: turn_seconds * 1000 }
  const jobs = createJobs({
    ...context,
    hub,
    downloads,
    datasets,
    models,
    estimator: createEstimator({ ...context, prepared }),
    meter,
    max_waiting: config.max_waiting_jobs,
    parse_control_tokens,
    turns,
  })
  const cores = createCoreShare({
    share: config.training_share / 100,
    cores: usableCores(),
    enginePid: engine.pid,
    yieldCores: engine.yieldCores,
    log,
  })
  const track = createTracking(
    {
      kind: config.tracking,
      target: config.tracking_url ?? (config.tracking === 'tensorboard' ? path.join(dataDir, 'tensorboard') : ''),
      project: config.tracking_project,
    },
    log,
  )
  const work: JobWork = {
    ...context,
    ...jobs,
    hub,
    models,
    datasets,
    files,
    meter,
    observe: observeAttempts(context.metrics, context.tracing, context.now),
    cores,
    track,
    checkpoint_seconds,
    turn_seconds,
    trainer_processes,
    prepared,
    acquireSlot: accounts.acquireSlotForWork,
    isSuspended: async (id) => (await accounts.tierForWork(id)) === undefined,
  }
  const ray = config.ray_address
    ? (await import('./ray/index.ts')).createRayTraining(work, config, needs.secrets)
    : undefined
  work.cluster = ray
  const openai = createOpenaiFineTuning({
    ...context,
    hub,
    datasets,
    files,
    jobs,
    models,
    tracking: config.tracking,
  })
  const { db, metrics } = context
  metrics.onLook(async () => {
    const { queued, running, paused } = await store.countUnfinished(db)
    for (const [state, jobs] of Object.entries({ queued, running, paused })) metrics.jobs.set({ state }, jobs)
  })
  return {
    jobs,
    runningTrainings: cores.count,
    mount(app) {
      jobRoutes(app, jobs, context.stopping)
      openaiFineTuningRoutes(app, openai)
      ray?.mount(app)
    },
    owned: [{ folder: 'runs', table: 'tuning_jobs' }],
    sweep: jobs.sweep,
    async start() {
      await jobs.settleRunningClocks()
      await jobs.watchTrainingSetup()
      datasets.onCreated(prepared.prepare)
      const workers = Array.from({ length: turns.at_once }, (_, index) =>
        startWorker({
          ...context,
          kind: queueKind,
          name: index === 0 ? undefined : String(index + 1),
          claims: { turn_ms: turn_seconds === 0 ? undefined : turn_seconds * 1000 },
          whenReady: context.trainingSetup.whenReady,
          handle: (claim, signal) => workOnJob(work, claim, signal),
        }),
      )
      return ray ? [...workers, ray.start()] : [...workers, prepared]
    },
  }
}
