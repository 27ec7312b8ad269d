import path from 'node:path'
import type { Machine } from '../../../contract/machine.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import { type ChangeNotifier, createChangeNotifier } from '../../platform/events/event-streams.ts'
import type { Endpoints } from '../../platform/outbound/signed-post.ts'
import type { Plans } from '../../platform/plans.ts'
import { type AbortSignals, createAbortSignals, startWorker } from '../../platform/queue/worker.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { PreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Evaluations } from '../evaluations/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Files } from '../files/index.ts'
import type { Downloads, Hub } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { EngineClient } from '../serving/index.ts'
import type { Usage } from '../usage/index.ts'
import { createComplete } from './complete.ts'
import { createCoreShare } from './core-share.ts'
import { createDevices, type Devices, type Serving } from './devices/index.ts'
import { createEstimator } from './estimate.ts'
import type { TrainerHost } from './host.ts'
import { createLocalHost } from './local-host.ts'
import { createJobMeter, type JobMeter } from './metering.ts'
import { observeAttempts } from './observe.ts'
import { openaiFineTuningRoutes } from './openai/routes.ts'
import { OpenaiFineTuning } from './openai/service.ts'
import { createRecorders } from './recorder.ts'
import { jobRoutes } from './routes.ts'
import { Jobs } from './service.ts'
import { createSpecs, type Specs } from './spec.ts'
import * as store from './store.ts'
import { createTracking } from './tracking.ts'
import { createTurnWatch } from './turns.ts'
import { type JobWorker, workOnJob } from './worker.ts'

export { jobNeedsDataset, jobNeedsModel } from './store.ts'

interface Needs {
  plans: Plans
  accounts: Accounts
  usage: Usage
  hub: Hub
  downloads: Downloads
  datasets: Datasets
  models: TunedModels
  evaluations: Evaluations
  /** What posts to environments of users. */
  endpoints: Endpoints
  files: Files
  /** The engine, which shares the cores with the trainers. */
  engine: {
    client: EngineClient
    pid(): number | undefined
    yieldCores(share: number, for_ms: number): Promise<void>
    choice: { vllm: string | null }
    sleep: Serving
  }
  secrets: Secrets
  prepared: PreparedTrainer
}

/** What the work on jobs shares, beside the context and what the feature needs. */
interface Parts {
  specs: Specs
  devices: Devices | undefined
  meter: JobMeter
  changes: ChangeNotifier
  stopRequests: AbortSignals
}

/** Where jobs run: in a Ray cluster, or on this machine. */
async function createHosts(
  context: Context,
  { engine, secrets, prepared, models, evaluations, endpoints }: Needs,
  { specs, devices, changes }: Parts,
) {
  const { config, db, queue, dataDir, artifacts, python, log, now } = context
  const cores = createCoreShare({
    share: config.training_share / 100,
    cores: usableCores(),
    enginePid: engine.pid,
    yieldCores: engine.yieldCores,
    log,
  })
  const ray = config.ray_address
    ? (await import('./ray/index.ts')).createRayHost({
        lease: { db, queue, notifyEvents: changes.notify },
        installation: context.installation,
        dataDir,
        python,
        converters: context.converters,
        artifacts,
        specs,
        config,
        secrets,
        log,
        now,
      })
    : undefined
  const host =
    ray ??
    createLocalHost({
      dataDir,
      min_free_mb: context.min_free_mb,
      python,
      devices: devices!,
      specs,
      artifacts,
      prepared,
      cores,
      models,
      engine: engine.client,
      grading: evaluations.grading,
      endpoints,
    })
  return { cores, ray, host }
}

/** What works on a claimed job, from its start to its outcome. */
function createWorker(context: Context, needs: Needs, parts: Parts, host: TrainerHost): JobWorker {
  const { config, db, queue, dataDir, artifacts, quota, metrics, log, now } = context
  const { accounts, models, files, evaluations } = needs
  const { meter, devices, changes, stopRequests } = parts
  const attempt = { db, queue, notifyEvents: changes.notify, artifacts, meter, quota, now }
  const tracking = {
    kind: config.tracking,
    target: config.tracking_url ?? (config.tracking === 'tensorboard' ? path.join(dataDir, 'tensorboard') : ''),
    project: config.tracking_project,
  }
  const track = createTracking(tracking, log)
  return {
    context: attempt,
    acquireSlot: (id: string) => accounts.acquireSlotForWork(id),
    observe: observeAttempts(metrics, context.tracing, now),
    host,
    createRecorder: createRecorders({ context: attempt, stopRequests, artifacts, track, log, now }),
    watchTurn: createTurnWatch({
      queue,
      turn_seconds: config.training_turn_seconds,
      devicesWanted: (id) => devices?.areWanted(id) ?? false,
      log,
      now,
    }),
    complete: createComplete({ context: attempt, dataDir, models, files, evaluations }),
    stopRequests,
    log,
  }
}

export async function createJobsFeature(
  context: Context,
  needs: Needs,
): Promise<
  Feature & {
    jobs: Jobs
    /** The number of running trainings. */
    runningTrainings(): number
    /** The devices that trainings hold; undefined where they run in a cluster. */
    devices: Devices | undefined
    /** Shares the cores with a trainer that is no job's, until the returned function is called. */
    watchTrainer(pid: number): () => void
    /** The devices of this machine that jobs train on; none where they train in a cluster. */
    trainingDevices(): Promise<Machine['training_devices']>
  }
> {
  const { config, db, queue, dataDir, artifacts, python, threads, trainingSetup, metrics, log, now } = context
  const { plans, usage, hub, downloads, datasets, models, evaluations, files, prepared } = needs
  const { training_turn_seconds: turn_seconds, parse_control_tokens } = config
  const changes = createChangeNotifier(context.notifications)
  const stopRequests = createAbortSignals(context.notifications)
  const meter = createJobMeter({ add: usage.add, price: (id) => plans.pricing(id).training_per_million_tokens })
  const specs = createSpecs({
    db,
    models,
    datasets,
    artifacts,
    converters: context.converters,
    checkpoint_seconds: config.checkpoint_seconds,
    log,
  })
  // This machine trains a job on each device; a cluster as many as it has room for.
  const devices = config.ray_address
    ? undefined
    : await createDevices({
        config,
        hub,
        serving: needs.engine.choice.vllm === null ? undefined : needs.engine.sleep,
        log,
        hasOthers: async () => (await context.servers.list()).length > 1,
        onReleased: (ids) =>
          void queue
            .recall(store.queueKind, ids)
            .catch((error) => log.warn({ err: error }, 'jobs that wait for devices look for them later')),
      })
  const turns = { at_once: devices?.at_once ?? config.ray_jobs, slice_ms: turn_seconds * 1000 }
  const jobs = new Jobs({
    db,
    queue,
    events: context.events,
    changes,
    stopRequests,
    hub,
    downloads,
    datasets,
    models,
    evaluations,
    specs,
    estimator: createEstimator({ dataDir, python, prepared, trainingSetup, devices }),
    devices,
    meter,
    trainingSetup,
    log,
    artifacts,
    orphans: context.orphans,
    dataDir,
    threads,
    min_free_mb: context.min_free_mb,
    quota: context.quota,
    max_waiting: config.max_waiting_jobs,
    parse_control_tokens,
    turns,
    now,
  })
  const parts = { specs, devices, meter, changes, stopRequests }
  const { cores, ray, host } = await createHosts(context, needs, parts)
  const worker = createWorker(context, needs, parts, host)
  const openai = new OpenaiFineTuning({ db, hub, datasets, files, jobs, models, tracking: config.tracking })
  metrics.onLook(async () => {
    const { queued, running, paused } = await store.countUnfinished(db)
    for (const [state, count] of Object.entries({ queued, running, paused })) metrics.jobs.set({ state }, count)
  })
  return {
    jobs,
    runningTrainings: cores.count,
    devices,
    watchTrainer: (pid) => cores.watch(pid, () => {}),
    trainingDevices: async () => (await devices?.list()) ?? [],
    mount(app) {
      jobRoutes(app, jobs, context.stopping)
      openaiFineTuningRoutes(app, openai)
      ray?.mount(app)
    },
    owned: [{ folder: 'runs', table: 'tuning_jobs' }],
    sweep: () => jobs.sweep(),
    async start() {
      await jobs.settleRunningClocks()
      await jobs.watchTrainingSetup()
      const workers = Array.from({ length: turns.at_once }, (_, index) =>
        startWorker({
          queue,
          kind: store.queueKind,
          name: index === 0 ? undefined : String(index + 1),
          claims: { turn_ms: turn_seconds === 0 ? undefined : turn_seconds * 1000 },
          log,
          whenReady: (signal) => trainingSetup.whenReady(signal),
          handle: (claim, _, turn) => workOnJob(worker, claim, turn),
        }),
      )
      prepared.start(turns.at_once)
      return [...workers, prepared, ...(ray ? [ray.start()] : [])]
    },
  }
}
