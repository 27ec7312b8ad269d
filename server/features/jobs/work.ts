import type { Logger } from 'pino'
import type { Db } from '../../platform/db/open.ts'
import type { AcquireSlot } from '../../platform/queue/account-slots.ts'
import type { Claim, Queue } from '../../platform/queue/queue.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { PreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Files } from '../files/index.ts'
import type { Hub } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { CoreShare } from './core-share.ts'
import type { JobMeter } from './metering.ts'
import type { ObserveAttempt } from './observe.ts'
import type { RunEvents, RunOutcome } from './ray/train.ts'
import type { ResultEvaluations } from './service.ts'
import type { JobRow } from './store.ts'
import type { Tracking } from './tracking.ts'

/** What a user requested of a running job. */
export type StopRequest = 'cancel' | 'pause'

/** A cluster that trains instead of this machine. */
export interface Cluster {
  /** Runs an attempt, or attaches to the run that an earlier one submitted. */
  follow(claim: Claim, job: JobRow, events: RunEvents): Promise<RunOutcome>
  /** Whether a job has a run that goes on. */
  hasRun(job_id: string): Promise<boolean>
  /** Whether a job's run was told to stop as the account's turn is over, by this worker or one before it. */
  isTurnOver(job_id: string): Promise<boolean>
  /** From now on nothing is accepted from a job's run, and the cluster is told to end it. */
  endRun(job_id: string): Promise<void>
}

/** Dependencies of the background worker for fine-tuning jobs. */
export interface JobWork {
  installation: string
  db: Db
  queue: Queue
  hub: Hub
  models: TunedModels
  datasets: Datasets
  files: Files
  artifacts: Artifacts
  dataDir: string
  python: string
  converters: string
  checkpoint_seconds: number
  /** The time slice of an account while others wait; 0: a job trains to its end. */
  turn_seconds: number
  trainer_processes: number
  prepared: PreparedTrainer
  cores: CoreShare
  log: Logger
  /** Sends a job's loss curve to the operator's tracker. */
  track: Tracking
  meter: JobMeter
  observe: ObserveAttempt
  acquireSlot: AcquireSlot
  isSuspended(account_id: string): Promise<boolean>
  cluster?: Cluster | undefined
  /** Evaluates the results of jobs that name an evaluation. */
  resultEvaluations(): ResultEvaluations
  /** Wakes readers of a job's events. */
  notifyEvents(job_id: string): void
  /** Aborts when the job's trainer in this process must stop; its `reason` is a StopRequest. */
  stopSignal(job_id: string): AbortSignal
  /** Drops the job's stop signal when its attempt has ended. */
  clearStopRequest(job_id: string): void
  now(): number
}
