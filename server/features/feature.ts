// The shape of a feature, and the parts of the service that all features share.
import type { FastifyInstance } from 'fastify'
import type { Logger } from 'pino'
import type { Config } from '../config.ts'
import type { Notifications, Running } from '../platform/cluster/notifications.ts'
import type { Servers } from '../platform/cluster/servers.ts'
import type { Db } from '../platform/db/open.ts'
import type { RunningRequests } from '../platform/http/running-requests.ts'
import type { Queue } from '../platform/queue/queue.ts'
import type { Changes } from '../platform/redis/changes.ts'
import type { Redis } from '../platform/redis/connection.ts'
import type { WindowCounters } from '../platform/redis/window-counter.ts'
import type { TrainingSetup } from '../platform/setup/index.ts'
import type { Reserve } from '../platform/storage/disk-reserve.ts'
import type { Artifacts } from '../platform/storage/objects/index.ts'
import type { Orphans, OwnedFolder } from '../platform/storage/orphans.ts'
import type { StorageQuota } from '../platform/storage/quota.ts'
import type { ServerMetrics } from '../platform/telemetry/metrics.ts'
import type { Tracing } from '../platform/telemetry/tracing.ts'
import type { EventBus } from './events.ts'

/** What each feature is created with. */
export interface Context {
  config: Config
  db: Db
  queue: Queue
  /** Names the installation in what it keeps outside of its database. */
  installation: string
  /** The other server processes of the installation, and what they tell each other. */
  servers: Servers
  notifications: Notifications
  /** The Redis that the installation's processes share, if it has one. */
  redis: Redis | undefined
  changes: Changes
  /** What features tell each other. */
  events: EventBus
  /** Requests that take long, which end with their key, session or link. */
  running: RunningRequests
  windowCounters: WindowCounters
  log: Logger
  metrics: ServerMetrics
  /** Undefined where no collector is set. */
  tracing: Tracing | undefined
  reserve: Reserve
  dataDir: string
  /** The files that rows name: in the data folder, or in the storage that machines share. */
  artifacts: Artifacts
  /** What a crash has left in the data folder. */
  orphans: Orphans
  min_free_mb: number
  /** What accounts may store. */
  quota: StorageQuota
  /** Threads of the engine, and of each trainer. */
  threads: number
  /** Whether what only training needs is installed. Python and the converters may not be there before. */
  trainingSetup: TrainingSetup
  /** The Python interpreter, and the folder of the converters of the llama.cpp library. */
  python: string
  converters: string
  /** Aborts when the service begins to stop: ends event streams, which would never end. */
  stopping: AbortSignal
  /** Aborts when the grace period of a stop is over: answers in flight end with an error event. */
  stopDeadline: AbortSignal
  now(): number
}

export type { Running }

export interface Feature {
  /** Mounts its routes. */
  mount?(app: FastifyInstance): void
  /** Its folders in the data folder. What no row names there is set aside (storage/orphans.ts). */
  owned?: readonly OwnedFolder[]
  /** Removes what work has left that has ended, as its row says. Called before requests are accepted. */
  sweep?(): Promise<void>
  /** Starts its queue workers and periodic tasks. Only for the process that holds the data folder's lock. */
  start?(): Promise<Running[]>
}
