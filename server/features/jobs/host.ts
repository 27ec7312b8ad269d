// Where attempts at jobs train: as a child of this process (local-host.ts), or in a cluster (ray/).
import type { Trx } from '../../platform/db/open.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import type { TrainerEvent, TrainerExit } from '../../platform/trainer/trainer.ts'
import type { Slowdown } from './core-share.ts'
import type { Place } from './devices/index.ts'
import type { JobRow } from './store.ts'

/** What a user requested of a running job. */
export type StopRequest = 'cancel' | 'pause'

/** Why a run stops before its end: its turn goes to another account, or its own account is suspended. */
export type TurnOver = 'passed' | 'suspended'

export interface TrainerHost {
  /** Whether a run waits for a machine first. It then reports itself when it begins. */
  readonly queues: boolean
  /**
   * Takes the devices of this machine that an attempt at a job needs. `waits`: why it must wait, and whether devices
   * were given back since. `refused`: why it can never run here. Not there where jobs train on other machines.
   */
  takePlace?(
    job: JobRow,
    signal: AbortSignal,
  ): Promise<Place | { waits: string; outdated(): boolean } | { refused: string }>
  /** Trains until the trainer ends, or attaches to the run that an earlier attempt started. */
  train(claim: Claim, job: JobRow, run: Run): Promise<TrainerEnd>
  /** Whether a job has a run that continues without this process. */
  hasRun(job_id: string): Promise<boolean>
  /** Why a job's run was stopped, by this worker or by one before it. */
  whyStopped(job_id: string): Promise<'paused' | 'passed' | undefined>
  /** Accepts nothing more from a job's run, and ends it where it continues. */
  endRun(job_id: string): Promise<void>
}

/** How a trainer ended for the worker that watched it. */
export type TrainerEnd =
  | { how: 'exited'; exit: TrainerExit }
  /** It ended, or did not begin, because the disk has too little space. */
  | { how: 'full' }
  /** It ended because the service stops. */
  | { how: 'interrupted'; exit: TrainerExit }
  | { how: 'lost'; message: string }
  /** It continues without this worker. */
  | { how: 'detached' }

/**
 * Takes an event of the trainer of an attempt, by default of this one. `within` runs in the transaction of its record.
 */
export type Report = (event: TrainerEvent, attempt?: number, within?: (trx: Trx) => Promise<void>) => void

/** One attempt at a job, as its host sees it. */
export interface Run {
  /** The server stops. */
  stopping: AbortSignal
  /** A user cancels or pauses the job: `reason` is a StopRequest. */
  stopRequested: AbortSignal
  /** The account's turn is over: `reason` is a TurnOver. */
  turnOver: AbortSignal
  /** A write failed. */
  failed: AbortSignal
  /** The devices that it has; undefined where they are not this machine's. */
  place: Place | undefined
  /** Added to the trainer's environment. */
  env: Record<string, string>
  log_fields: Record<string, string | number>
  onEvent: Report
  /** The run began to report, or stopped to: the job is running, or waits. */
  onRunning(attempt: number): void
  onWaiting(message: string, data: { code: string }): void
  /** Tells the job's readers something that does not change its status. */
  onNote(message: string, data: { code: string }): void
  /** Something started or stopped slowing the trainer. */
  onSlowed(slowdown: Slowdown): void
}
