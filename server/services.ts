// Creates every service from the configuration and wires them together.
import os from 'node:os'
import path from 'node:path'
import pino, { type Logger } from 'pino'
import type { Download } from '../contract/hub.ts'
import { root } from '../lib/root.ts'
import pkg from '../package.json' with { type: 'json' }
import { createAccounts } from './accounts/index.ts'
import type { Services } from './app.ts'
import type { Config } from './config.ts'
import { createDatasets, createTokens, queueKind as datasetKind, prepareDataset } from './datasets/index.ts'
import { type Db, openThreadedDatabase } from './db/open.ts'
import { createDeployments } from './deployments/index.ts'
import { startSweeping } from './events/retention.ts'
import { createExports, createPush, queueKind as exportKind, workOnExport } from './exports/index.ts'
import {
  createCoreShare,
  createEstimator,
  createFineTuning,
  createJobMeter,
  createTracking,
  createTunedModels,
  queueKind as tuningKind,
  workOnJob,
} from './fine-tuning/index.ts'
import { createIdempotency } from './http/idempotency-store.ts'
import { createDownloads, createHub, queueKind as downloadKind, workOnDownload } from './hub/index.ts'
import {
  createCacheSalt,
  createEngineClient,
  createEngineHealth,
  createEngineProcess,
  createInference,
  createMergedAdapters,
  createMergedCheck,
  createPools,
  createScoring,
  readUpstreams,
} from './inference/index.ts'
import { createLimits } from './limits/index.ts'
import { readPlans } from './plans.ts'
import { createQueue } from './queue/queue.ts'
import { startWorker } from './queue/worker.ts'
import { createReserve } from './storage/disk-space.ts'
import { createSecrets } from './storage/secrets.ts'
import { createUsage } from './usage/index.ts'
import { createWebhooks, readAllowed } from './webhooks/index.ts'

const defaultBase = 'HuggingFaceTB/SmolLM2-135M-Instruct'

export function createLog(config: Config): Logger {
  const destination = pino.destination({ dest: 2, sync: true })
  // A closed terminal, or a full disk behind stderr, must not end the server.
  destination.on('error', () => {})
  return pino({ level: config.log_level, redact: ['req.headers.authorization'] }, destination)
}

/** Opens the database unless given, and wires the services. Starts no process and no work; `startWork` does. */
export async function createServices(config: Config, log: Logger, database?: Db) {
  const { data_dir: dataDir, min_free_disk_mb: min_free_mb, threads } = config
  const upstreams = readUpstreams(config.upstreams, process.env)
  const allowed = readAllowed(config.webhook_allow)
  const db = database ?? (await openThreadedDatabase(dataDir))
  const queue = createQueue(db)
  const reserve = createReserve(dataDir, log)
  const python = path.join(root, '.local/python/bin/python')
  const converters = path.join(root, '.local/llama/source')
  const stopping = new AbortController()
  const stopDeadline = new AbortController()
  const plans = readPlans(config)
  const secrets = createSecrets(config.secret_key_file ?? path.join(dataDir, 'secret.key'))
  const idempotency = createIdempotency({ db, secrets })
  const limits = createLimits({ db, plans, log })
  const accounts = createAccounts({ db, plans, limits, defaultTier: config.default_tier, log })
  const usage = createUsage({ db, limits, dataDir, currency: plans.currency, log })
  const { models_dir: modelsDir, model_downloads: policy } = config
  const states = new Map<string, Download>()
  const hub = createHub(modelsDir, plans.pricing, { policy, downloads: states })
  const downloads = createDownloads({ db, queue, hub, states, modelsDir, policy, min_free_mb })
  const datasets = createDatasets({
    db,
    queue,
    hub,
    tokens: createTokens({ python, parse_control_tokens: config.parse_control_tokens }),
    dataDir,
    max_mb: config.max_dataset_mb,
    max_rows: config.max_dataset_rows,
    min_free_mb,
    defaultBase,
  })
  const meter = createJobMeter({ add: usage.add, price: (id) => plans.pricing(id).training_per_million_tokens })
  const fineTuning = createFineTuning({
    db,
    queue,
    hub,
    downloads,
    datasets,
    estimator: createEstimator({ dataDir, python }),
    meter,
    dataDir,
    threads,
    min_free_mb,
    max_waiting: config.max_waiting_jobs,
    parse_control_tokens: config.parse_control_tokens,
  })
  const models = createTunedModels({
    db,
    hub,
    datasets,
    dataDir,
    python,
    converters,
    threads,
    min_free_mb,
    max_mb: config.max_adapter_mb,
    log,
  })
  const engine = createEngineProcess({
    dataDir,
    threads,
    options: [...config.engine_options, ...(config.parse_control_tokens ? ['--parse-control-tokens'] : [])],
    log,
  })
  const engineClient = createEngineClient(engine, log)
  const coreShare = createCoreShare({
    share: config.training_share / 100,
    cores: os.availableParallelism(),
    enginePid: () => engine.current()?.pid,
    yieldCores: engineClient.yieldCores,
    log,
  })
  const engineHealth = createEngineHealth(engine, engineClient, log)
  const pools = createPools({
    engine: engineClient,
    upstreams,
    waiting_max: config.max_waiting,
    cacheSalt: createCacheSalt(dataDir),
    log,
  })
  const scoreRows = createScoring(engineClient)
  const mergedAdapters = createMergedAdapters({
    models,
    pools,
    check: createMergedCheck(scoreRows),
    dataDir,
    python,
    memory_bytes: config.merged_memory_mb * 1e6,
    after_tokens: config.merge_after_tokens,
    min_free_mb,
    log,
  })
  const inference = createInference({
    hub,
    models,
    engine: engineClient,
    pools,
    scoreRows,
    mergedAdapters,
    usage,
    pricing: plans.pricing,
  })
  const deployments = createDeployments({ db, models, inference, downloads })
  const push = config.huggingface_token
    ? createPush({ url: config.huggingface_url, token: config.huggingface_token })
    : undefined
  const exports = createExports({
    db,
    queue,
    models,
    deployments,
    reserve,
    dataDir,
    min_free_mb,
    max_waiting: config.max_waiting_jobs,
    canPush: push !== undefined,
    onExpiryFailure: (error) => log.warn({ err: error }, 'expired exports could not be removed; trying again later'),
  })
  const webhooks = createWebhooks({ db, secrets, allowed, max: config.max_webhooks, version: pkg.version, log })

  const services: Services = {
    accounts,
    plans,
    limits,
    idempotency,
    reserve,
    hub,
    downloads,
    datasets,
    fineTuning: fineTuning,
    models,
    usage,
    inference,
    deployments,
    exports,
    webhooks,
    log,
    version: pkg.version,
    stopping: stopping.signal,
    stopDeadline: stopDeadline.signal,
    async ready() {
      if (stopping.signal.aborted) return 'the service is stopping'
      await db.selectFrom('migrations').select('name').limit(1).execute()
      return engine.problem() ?? (await engineHealth.problem())
    },
    gauges: [
      {
        name: 'tunery_merged_adapters',
        help: 'Adapters that are served from a merged copy.',
        read: () => mergedAdapters.counts().serving,
      },
      {
        name: 'tunery_merge_refusals',
        help: 'Adapters that turned out not to be worth a merged copy.',
        read: () => mergedAdapters.counts().refused,
      },
    ],
  }

  return {
    ...services,
    /** Removes leftovers of a crash. Call it before requests are accepted: a running upload has no row yet either. */
    async sweep() {
      await downloads.load()
      await mergedAdapters.removeLeftovers()
      await datasets.sweep()
      await fineTuning.sweep()
      await exports.sweep()
    },
    /** Starts queue workers and periodic tasks. Only for the process that holds the data folder's lock. */
    async startWork() {
      await queue.expireAllLeases()
      await fineTuning.settleRunningClocks()
      await webhooks.releaseAllLeases()
      await usage.start()
      const periodicTasks = [
        accounts.start(),
        limits.start(),
        startSweeping(db, reserve, log, [fineTuning.removeExpiredRuns]),
        reserve.start(),
        exports.start(),
      ]
      const webhookDelivery = webhooks.start()
      const idle_ms = config.idle_unload_seconds * 1000
      const stopIdleUnload = idle_ms > 0 ? engineClient.unloadIdle(idle_ms) : () => {}
      const { notifyEvents, stopSignal, clearStopRequest } = fineTuning
      const stopHealthWatch = engineHealth.watch()
      const fineTuningWork = {
        db,
        queue,
        hub,
        models,
        datasets,
        dataDir,
        python,
        converters,
        checkpoint_seconds: config.checkpoint_seconds,
        trainer_processes: config.trainer_processes,
        cores: coreShare,
        log,
        track: createTracking(
          {
            kind: config.tracking,
            target: config.tracking_url ?? (config.tracking === 'tensorboard' ? path.join(dataDir, 'tensorboard') : ''),
            project: config.tracking_project,
          },
          log,
        ),
        notifyEvents,
        stopSignal,
        clearStopRequest,
        meter,
        acquireSlot: accounts.acquireSlotForWork,
        now: Date.now,
      }
      const exportWork = {
        db,
        queue,
        models,
        dataDir,
        python,
        converters,
        threads,
        min_free_mb,
        retention_days: config.export_days,
        parse_control_tokens: config.parse_control_tokens,
        log,
        push,
        acquireSlot: accounts.acquireSlotForWork,
        notifyEvents: exports.notifyEvents,
        deletionSignal: exports.deletionSignal,
        finished: exports.finished,
        now: Date.now,
      }
      const prepareWork = {
        db,
        queue,
        dataDir,
        max_rows: config.max_dataset_rows,
        max_bytes: 4e6 * config.max_dataset_mb,
        min_free_mb,
        huggingface_url: config.huggingface_url,
        hubToken: datasets.hubToken,
        log,
        deletionSignal: datasets.deletionSignal,
        notifyPrepared: datasets.notifyPrepared,
      }
      const downloadWork = {
        downloads,
        hub,
        modelsDir,
        url: config.huggingface_url,
        token: config.huggingface_token,
        python,
        converters,
        min_free_mb,
        log,
        now: Date.now,
      }
      const name = `server-${process.pid}`
      const workers = [
        // Two workers, so that a slow download does not delay the next file.
        ...['a', 'b'].map((each) =>
          startWorker({
            queue,
            kind: datasetKind,
            name: `${name}-${each}`,
            log,
            handle: (claim, signal) => prepareDataset(prepareWork, claim, signal),
          }),
        ),
        startWorker({
          queue,
          kind: downloadKind,
          name,
          log,
          handle: (claim, signal) => workOnDownload(downloadWork, claim, signal),
        }),
        startWorker({
          queue,
          kind: tuningKind,
          name,
          log,
          handle: (claim, signal) => workOnJob(fineTuningWork, claim, signal),
        }),
        startWorker({
          queue,
          kind: exportKind,
          name,
          log,
          handle: (claim, signal) => workOnExport(exportWork, claim, signal),
        }),
      ]
      return {
        async stop() {
          stopIdleUnload()
          stopHealthWatch()
          await Promise.all([
            webhookDelivery.stop(),
            ...periodicTasks.map((each) => each.close()),
            ...workers.map((worker) => worker.stop()),
          ])
        },
      }
    },
    /** Starts the engine ahead of the first request. */
    startEngine: () => engine.instance(),
    enginePid: () => engine.current()?.pid,
    /** The number of running trainings. */
    runningTrainings: coreShare.count,
    beginStop: () => stopping.abort(),
    /** Ends the answers that are still in flight. */
    abortStreams: () => stopDeadline.abort(),
    async close() {
      await inference.close()
      await engine.stop()
      await usage.close()
      await db.destroy()
    },
  }
}
