// Creates the parts that all features share.
import path from 'node:path'
import type { Logger } from 'pino'
import { root } from '../lib/root.ts'
import { usableCores } from '../lib/usable-cores.ts'
import pkg from '../package.json' with { type: 'json' }
import type { Config } from './config.ts'
import { createEventBus } from './features/events.ts'
import type { Context } from './features/feature.ts'
import { ownedFiles, ownedKeys } from './maintenance/backup/files.ts'
import { openNotifications } from './platform/cluster/notifications.ts'
import { createServers } from './platform/cluster/servers.ts'
import { type Db, openThreadedDatabase } from './platform/db/open.ts'
import { createRunningRequests } from './platform/http/running-requests.ts'
import { readPlans } from './platform/plans.ts'
import { Queue } from './platform/queue/queue.ts'
import { createChanges } from './platform/redis/changes.ts'
import { openRedis } from './platform/redis/open.ts'
import { createWindowCounters } from './platform/redis/window-counter.ts'
import { TrainingSetup } from './platform/setup/index.ts'
import { createReserve } from './platform/storage/disk-reserve.ts'
import { storageAway } from './platform/storage/durable-files.ts'
import { admission, claimFolder, firstAccount } from './platform/storage/installation.ts'
import { createArtifacts, openObjectStore } from './platform/storage/objects/index.ts'
import { createOrphans } from './platform/storage/orphans.ts'
import { createStorageQuota } from './platform/storage/quota.ts'
import { openSecrets } from './platform/storage/secrets.ts'
import { createServerMetrics } from './platform/telemetry/metrics.ts'
import { createTracing } from './platform/telemetry/tracing.ts'

/** Machines of a cluster start in any order: how long a start waits for Postgres. */
const databaseWait_ms = 60_000

/** Opens the database unless given, and creates the parts. Starts no work. */
export async function createContext(config: Config, log: Logger, database?: Db) {
  const { data_dir: dataDir } = config
  const onAway = (error: Error) => log.warn(`${error.message}; waiting for it`)
  const { database_url } = config
  const opening = { database_url, wait_ms: databaseWait_ms, onAway, admit: admission(config) }
  const db = database ?? (await openThreadedDatabase(dataDir, opening))
  const shared = config.storage_url !== undefined
  const installation = await claimFolder(db, dataDir, { shared, files: () => ownedFiles(db) })
  const secrets = await openSecrets(config.secret_key_file ?? path.join(dataDir, 'secret.key'), db, log)
  const servers = createServers({
    db,
    dataDir,
    storage_url: config.storage_url,
    secret_key_id: secrets.keyId,
    version: pkg.version,
    log,
    now: Date.now,
  })
  const notifications = await openNotifications(db, log, config.database_url)
  const redis =
    config.redis_url === undefined ? undefined : await openRedis(config.redis_url, installation, servers, log)
  const stopping = new AbortController()
  const stopDeadline = new AbortController()
  const trainingSetup = new TrainingSetup({
    checkout: root,
    log,
    announce: console.log,
    stopping: stopping.signal,
    now: Date.now,
  })
  const artifacts = createArtifacts({
    dataDir,
    store: config.storage_url ? await openObjectStore(config.storage_url) : undefined,
    cache_mb: config.cache_mb,
    min_free_mb: config.min_free_disk_mb,
    redirect: config.storage_downloads === 'redirect',
    log,
  })
  const formerOwner = await firstAccount(db)
  const owner = { owner: installation, formerOwner, live: () => ownedKeys(db) }
  await artifacts.claim(owner).catch((error) => {
    // While it is away the service starts all the same, and the sweep looks again before it removes anything.
    if (error.code !== storageAway) throw error
    log.warn({ err: error }, 'the shared storage does not answer')
  })
  const metrics = createServerMetrics()
  const tracing = await createTracing({
    service: 'tunery',
    version: pkg.version,
    onSpans: (outcome, count) => metrics.spans.inc({ outcome }, count),
    onProblem: (message) => log.warn({ reason: message }, 'spans do not reach the collector'),
  })
  const changes = createChanges(notifications, redis)
  const running = createRunningRequests(changes, log)
  const plans = readPlans(config)
  const context: Context = {
    config,
    db,
    installation,
    queue: new Queue({ db, server: servers.id, notifications }),
    servers,
    notifications,
    redis,
    changes,
    events: createEventBus(),
    running,
    windowCounters: createWindowCounters(redis),
    log,
    metrics,
    tracing,
    reserve: createReserve(dataDir, log),
    dataDir,
    artifacts,
    orphans: createOrphans({ db, dataDir, log, now: Date.now }),
    min_free_mb: config.min_free_disk_mb,
    quota: createStorageQuota({ maxMbOf: (tier) => plans.tierOrTightest(tier).max_storage_mb, now: Date.now }),
    // More would wait for each other.
    threads: Math.min(config.threads, usableCores()),
    trainingSetup,
    python: path.join(root, '.local/python/bin/python'),
    converters: path.join(root, '.local/llama/source'),
    stopping: stopping.signal,
    stopDeadline: stopDeadline.signal,
    now: Date.now,
  }
  redis?.onAway((away) => metrics.redisAway.set(away ? 1 : 0))
  return { context, secrets, plans, stopping, stopDeadline, storageOwner: owner }
}
