// The time slice of a training: when a run gives its turn to a job of another account, or stops as its own is
// suspended.

import type { Logger } from 'pino'
import { runPeriodically } from '../../../lib/periodic.ts'
import type { Claim, Queue } from '../../platform/queue/queue.ts'
import type { Turn } from '../../platform/queue/worker.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import type { TurnOver } from './host.ts'

/** Between looks at who waits. */
const check_ms = 1000

interface Options {
  queue: Pick<Queue, 'giveWay'>
  /** The time slice of an account while others wait; 0: a job trains to its end. */
  turn_seconds: number
  /** Whether a job of another account waits for several devices at once, as this machine has them. */
  devicesWanted(account_id: string): boolean
  log: Logger
  now(): number
}

export type WatchTurn = (claim: Claim, turn: Pick<Turn, 'suspended'>) => TurnWatch

interface TurnWatch {
  /**
   * Aborts when the turn is over, the run has trained long enough, and it is the one to give way to another account
   * that waits with nothing running; or at once, when its own account is suspended. Its reason says which.
   */
  over: AbortSignal
  /** What the trainer reports. */
  event(event: TrainerEvent): void
  end(): Promise<void>
}

/**
 * A run passes its turn only once it has trained for half of it, a step at least: the checkpoint at which it stops is a
 * new one, and a trainer that starts slowly gets further too.
 */
export const createTurnWatch =
  ({ queue, turn_seconds, devicesWanted, log, now }: Options): WatchTurn =>
  (claim, { suspended }) => {
    const over = new AbortController()
    const onSuspended = () => over.abort('suspended' satisfies TurnOver)
    if (suspended.aborted) onSuspended()
    else suspended.addEventListener('abort', onSuspended)
    let trainedSince: number | undefined
    const checks = runPeriodically(check_ms, async () => {
      if (over.signal.aborted) return
      try {
        if (trainedSince === undefined || turn_seconds === 0) return
        if (now() < Math.max(claim.turn_until, trainedSince + turn_seconds * 500)) return
        if (devicesWanted(claim.account_id) || (await queue.giveWay(claim))) over.abort('passed' satisfies TurnOver)
      } catch (error) {
        log.warn({ err: error, job: claim.ref }, 'the accounts of the jobs could not be looked up')
      }
    })
    return {
      over: over.signal,
      event({ type, data }) {
        if (type === 'checkpoint' || (type === 'metrics' && typeof data?.loss === 'number')) trainedSince ??= now()
      },
      end: () => checks.close(),
    }
  }
