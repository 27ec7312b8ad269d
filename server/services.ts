// Creates every feature from the configuration, in order.
import pino, { type Logger } from 'pino'
import { runPeriodically } from '../lib/periodic.ts'
import { hour_ms } from '../lib/utc-day.ts'
import pkg from '../package.json' with { type: 'json' }
import type { Config } from './config.ts'
import { createContext } from './context.ts'
import { createAccountsFeature } from './features/accounts/feature.ts'
import { batchNeedsFile, createBatchesFeature } from './features/batches/feature.ts'
import { createDatasetsFeature } from './features/datasets/feature.ts'
import {
  createAliases,
  createDeploymentsFeature,
  createGateDecision,
  deploymentNeedsModel,
} from './features/deployments/feature.ts'
import {
  createEvaluationsFeature,
  evaluationNeedsModel,
  evaluationNeedsSource,
} from './features/evaluations/feature.ts'
import { createExportsFeature, exportNeedsModel } from './features/exports/feature.ts'
import type { Context, Feature, Running } from './features/feature.ts'
import { createFilesFeature } from './features/files/feature.ts'
import { createHubFeature } from './features/hub/feature.ts'
import { createInferenceFeature } from './features/inference/feature.ts'
import { createJobsFeature, jobNeedsDataset, jobNeedsModel } from './features/jobs/feature.ts'
import { createMachineFeature } from './features/machine/feature.ts'
import { createDraftFiles, createModelsFeature, forgetDraftFiles } from './features/models/feature.ts'
import { createScalingFeature } from './features/scaling/feature.ts'
import {
  createCheckpoints,
  createComparison,
  createEngine,
  createScoring,
  createServingFeature,
  type ServingSet,
} from './features/serving/feature.ts'
import { createSharingFeature } from './features/sharing/feature.ts'
import { createSignInFeature } from './features/sign-in/feature.ts'
import { createStoredCompletionsFeature } from './features/stored-completions/feature.ts'
import { createTinkerFeature } from './features/tinker/feature.ts'
import { createDayThresholds, createUsageFeature } from './features/usage/feature.ts'
import { createWebFeature } from './features/web/feature.ts'
import { createWebhooksFeature } from './features/webhooks/feature.ts'
import type { Db } from './platform/db/open.ts'
import { startSweeping } from './platform/events/retention.ts'
import { createIdempotency } from './platform/http/idempotency-store.ts'
import { Limits } from './platform/limits/index.ts'
import { createAddressRules, readAllowed } from './platform/outbound/addresses.ts'
import { createPictureFetcher } from './platform/outbound/pictures.ts'
import { createEndpoints } from './platform/outbound/signed-post.ts'
import type { Plans } from './platform/plans.ts'
import { setupRoutes } from './platform/setup/index.ts'
import type { Secrets } from './platform/storage/secrets.ts'
import { createPreparedTrainer, type PreparedTrainer } from './platform/trainer/prepared-trainer.ts'
import { trainerEnv } from './platform/trainer/trainer.ts'

export function createLog(config: Config): Logger {
  const destination = pino.destination({ dest: 2, sync: true })
  // A closed terminal, or a full disk behind stderr, must not end the server.
  destination.on('error', () => {})
  return pino(
    {
      level: config.log_level,
      redact: ['req.headers.authorization', 'req.headers.cookie', 'req.headers["x-api-key"]'],
    },
    destination,
  )
}

export type Services = Awaited<ReturnType<typeof createServices>>

/** What may still need an object, which is then not deleted. */
const neededBy = {
  dataset: [evaluationNeedsSource, jobNeedsDataset],
  file: [batchNeedsFile, evaluationNeedsSource],
  model: [evaluationNeedsModel, jobNeedsModel, deploymentNeedsModel, exportNeedsModel],
}

/** What features are created with beside the context. */
interface Platform {
  plans: Plans
  secrets: Secrets
  limits: Limits
}

/** Keeps a trainer prepared, but where runs have several processes (torchrun starts these) or are in a cluster. */
function prepareTrainers({ config, python, threads, trainingSetup, log }: Context): PreparedTrainer {
  return createPreparedTrainer({
    python,
    threads,
    env: trainerEnv,
    idle_seconds: config.trainer_processes > 1 || config.ray_address ? 0 : config.prepared_trainer_seconds,
    ready: () => trainingSetup.ready(),
    log,
  })
}

/** What people bring and have: accounts, bases, data, usage. */
async function createDataFeatures(context: Context, { plans, secrets, limits }: Platform) {
  const { config } = context
  const accounts = createAccountsFeature(context, { plans, limits })
  const signIn = createSignInFeature(context, { accounts: accounts.accounts, secrets })
  const usage = createUsageFeature(context, { plans })
  const hub = await createHubFeature(context, { plans })
  const rules = createAddressRules(readAllowed(config.webhook_allow))
  const endpoints = createEndpoints({ rules, secrets, version: pkg.version, now: context.now })
  const pictureFetcher = createPictureFetcher({
    enabled: config.fetch_pictures === 'on',
    rules,
    version: pkg.version,
    onFetched: (outcome) => context.metrics.picturesFetched.inc({ outcome }),
  })
  const prepared = prepareTrainers(context)
  const datasets = createDatasetsFeature(context, {
    hub: hub.hub,
    pictureFetcher,
    neededBy: neededBy.dataset,
    forgetDerived: forgetDraftFiles,
    onUploaded: prepared.prepare,
  })
  const files = createFilesFeature(context, { datasets: datasets.datasets, neededBy: neededBy.file })
  const stored = createStoredCompletionsFeature(context, { datasets: datasets.datasets })
  return { accounts, signIn, usage, hub, rules, endpoints, pictureFetcher, prepared, datasets, files, stored }
}

type DataFeatures = Awaited<ReturnType<typeof createDataFeatures>>

/** What answers requests for models, and what asks models in the background. */
function createAnsweringFeatures(context: Context, { plans, secrets, limits }: Platform, data: DataFeatures) {
  const { config, db, dataDir, artifacts, threads, log } = context
  const { accounts } = data.accounts
  const { usage } = data.usage
  const { hub } = data.hub
  const { datasets } = data.datasets
  const { files } = data.files
  const { storedCompletions } = data.stored
  const keepsOriginal = (id: string) => hub.keepsOriginal(id)
  const weightFiles = {
    artifacts,
    keepsOriginal,
    checkpoint: createCheckpoints(config, hub),
    draftFile: createDraftFiles(db, artifacts, log),
  }
  const engine = createEngine({ config, dataDir, threads, files: weightFiles, log })
  const scoreRows = createScoring(engine.client)
  const compare = createComparison(engine.client, scoreRows)
  const models = createModelsFeature(context, { hub, datasets, compare, neededBy: neededBy.model })
  const serving = createServingFeature(context, { engine, hub, models: models.models, scoreRows, secrets })
  const servingSets = new Map<string, ServingSet>()
  const inference = createInferenceFeature(context, {
    plans,
    limits,
    serving: serving.serving,
    hub,
    models: models.models,
    usage,
    storedCompletions,
    pictureFetcher: data.pictureFetcher,
    aliases: createAliases(db),
    servingSets,
  })
  const batches = createBatchesFeature(context, { accounts, limits, files, inference: inference.inference })
  const evaluations = createEvaluationsFeature(context, {
    accounts,
    limits,
    datasets,
    files,
    models: models.models,
    inference: inference.inference,
    storedCompletions,
    endpoints: data.endpoints,
    onEnded: createGateDecision(context.queue, context.now),
  })
  return { weightFiles, engine, models, serving, servingSets, inference, batches, evaluations }
}

/** Creates the features in the order in which one may build on another. */
async function createFeatures(context: Context, platform: Platform) {
  const { plans, secrets, limits } = platform
  const { trainingSetup } = context
  const data = await createDataFeatures(context, platform)
  const answering = createAnsweringFeatures(context, platform, data)
  const { accounts } = data.accounts
  const { usage } = data.usage
  const { hub, downloads } = data.hub
  const { storedCompletions } = data.stored
  const { engine, weightFiles, servingSets } = answering
  const { models } = answering.models
  const { inference } = answering.inference
  const { evaluations } = answering.evaluations
  const withJobs = await createJobsFeature(context, {
    plans,
    accounts,
    usage,
    hub,
    downloads,
    datasets: data.datasets.datasets,
    models,
    evaluations,
    endpoints: data.endpoints,
    files: data.files.files,
    engine,
    secrets,
    prepared: data.prepared,
  })
  const { jobs, runningTrainings, trainingDevices } = withJobs
  const withDeployments = createDeploymentsFeature(context, { models, inference, downloads, evaluations, usage })
  const { deployments } = withDeployments
  const scaling = await createScalingFeature(context, {
    deployments,
    inference,
    models,
    plans,
    engine,
    secrets,
    files: weightFiles,
    servingSets,
  })
  const withExports = createExportsFeature(context, { accounts, models, deployments })
  const replicas = answering.serving.serving.pools.overview
  const features: Feature[] = [
    { mount: (app) => setupRoutes(app, trainingSetup), start: async () => [trainingSetup.start()] },
    data.accounts,
    data.signIn,
    data.hub,
    data.usage,
    data.datasets,
    data.files,
    data.stored,
    answering.models,
    withJobs,
    createTinkerFeature(context, {
      plans,
      accounts,
      usage,
      hub,
      models,
      serving: answering.serving.serving,
      inference,
      devices: withJobs.devices,
      secrets,
      watchTrainer: withJobs.watchTrainer,
    }),
    answering.serving,
    answering.inference,
    answering.batches,
    answering.evaluations,
    withDeployments,
    scaling,
    withExports,
    createSharingFeature(context, { models, evaluations, inference, limits }),
    createWebhooksFeature(context, { secrets, rules: data.rules }),
    createMachineFeature(context, {
      engine,
      replicas,
      runningTrainings,
      trainingDevices,
      namesOf: (ids) => models.namesOf(ids),
      version: pkg.version,
    }),
    createWebFeature(),
  ]
  const { signIn, sessions, throttle: signInThrottle } = data.signIn
  const { exports } = withExports
  return {
    features,
    engine,
    inference,
    scaling,
    removeExpiredFiles: data.files.removeExpired,
    /** What is deleted when its time is over, of all servers and of this one. */
    expiring: {
      shared: [data.files.removeExpired, (now: number) => storedCompletions.removeExpired(now)],
      own: [() => models.removeForgottenDrafts(), (now: number) => jobs.removeExpiredRuns(now)],
    },
    forRequests: {
      accounts,
      signIn,
      sessions,
      signInThrottle,
      usage,
      jobs,
      storedCompletions,
      deployments,
      exports,
      runningTrainings,
    },
  }
}

/** Opens the database unless given, and wires the services. Starts no process and no work; `startWork` does. */
export async function createServices(config: Config, log: Logger, database?: Db) {
  const { context, secrets, plans, stopping, stopDeadline, storageOwner } = await createContext(config, log, database)
  const { db, servers, notifications, redis, artifacts, tracing, changes, running } = context
  const limits = new Limits({
    db,
    plans,
    log,
    shared: redis && { redis, changes },
    several: config.database_url !== undefined,
    onCounted: createDayThresholds(db, context.now),
    now: context.now,
  })
  const parts = await createFeatures(context, { plans, secrets, limits })
  const { features, engine, inference, scaling } = parts
  const sweepOrphans = () => context.orphans.sweep(features.flatMap(({ owned = [] }) => owned))

  return {
    ...context,
    ...parts.forRequests,
    limits,
    idempotency: createIdempotency({ db, secrets }),
    version: pkg.version,
    features,
    /** Why the service cannot take requests now, or undefined. */
    async ready() {
      if (stopping.signal.aborted) return 'the service is stopping'
      await db.selectFrom('migrations').select('name').limit(1).execute()
      return engine.problem()
    },
    /** What operators should know although the service takes requests. */
    async warnings() {
      const storage = await artifacts.problem()
      const problems = storage === undefined ? [] : [storage]
      return redis?.isAway() ? [...problems, 'Redis does not answer: each server counts limits by itself'] : problems
    },
    /** Removes leftovers of a crash. Call it before requests are accepted. */
    async sweep() {
      for (const feature of features) await feature.sweep?.()
      await sweepOrphans()
    },
    /** Starts queue workers and periodic tasks. Only for the process that holds the data folder's lock. */
    async startWork(): Promise<Running> {
      const works: Running[] = [
        await servers.start(),
        await notifications.start(),
        context.reserve.start(),
        runPeriodically(hour_ms, sweepOrphans, { delayed: true }),
        artifacts.start({ ...storageOwner, oncePer: servers.oncePer }),
      ]
      await context.queue.expireOwnLeases()
      for (const feature of features) works.push(...((await feature.start?.()) ?? []))
      // After the usage that an earlier process left has been folded: an old row keeps its request from being counted
      // twice.
      works.push(startSweeping(context, parts.expiring))
      return {
        async close() {
          await Promise.all(works.map((work) => work.close()))
        },
      }
    },
    /** Starts the engine ahead of the first request. */
    startEngine: engine.start,
    removeExpiredFiles: parts.removeExpiredFiles,
    enginePid: engine.pid,
    beginStop: () => stopping.abort(),
    /** Ends the answers that are still in flight. */
    abortStreams: () => stopDeadline.abort(),
    async close() {
      running.close()
      await inference.close()
      await Promise.all([engine.stop(), scaling.close()])
      await parts.forRequests.usage.close()
      await redis?.close()
      await tracing?.close()
      artifacts.close()
      await db.destroy()
    },
  }
}
