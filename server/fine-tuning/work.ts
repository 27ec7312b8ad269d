import type { Logger } from 'pino'
import type { Datasets } from '../datasets/service.ts'
import type { Db } from '../db/open.ts'
import type { Hub } from '../hub/service.ts'
import type { Place } from '../queue/account-slots.ts'
import type { Queue } from '../queue/queue.ts'
import type { CoreShare } from './core-share.ts'
import type { JobMeter } from './metering.ts'
import type { TunedModels } from './models/registry.ts'
import type { Tracking } from './tracking.ts'

/** What a person asked of a running job. */
export type Asked = 'cancel' | 'pause'

/** What the background work of tuning works with. */
export interface TuningWork {
  db: Db
  queue: Queue
  hub: Hub
  models: TunedModels
  datasets: Datasets
  dataDir: string
  python: string
  converters: string
  checkpoint_seconds: number
  trainer_processes: number
  cores: CoreShare
  log: Logger
  /** Sends a job's loss curve to the operator's tracker. */
  track: Tracking
  meter: JobMeter
  place: Place
  /** Tells readers of a job's events that there are more. */
  changed(job_id: string): void
  /** Aborts when the job's trainer must stop, in this process; the reason is what was asked. */
  asked(job_id: string): AbortSignal
  /** The job's work here has ended. */
  forget(job_id: string): void
  now(): number
}
