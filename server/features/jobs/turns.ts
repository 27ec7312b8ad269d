// The time slice of a training: when a run gives its turn to a job of another account, or stops as its own is suspended.
import { runPeriodically } from '../../../lib/periodic.ts'
import type { Claim } from '../../platform/queue/queue.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import type { JobWork } from './work.ts'

/** Between looks at who waits. */
const check_ms = 1000

/** Why a run stops before its end: its turn goes to another account, or its own account is suspended. */
export type TurnOver = 'passed' | 'suspended'

export interface TurnWatch {
  /**
   * Aborts when the turn is over, the run has trained long enough, and it is the one to give way to another account that
   * waits with nothing running; or at once, when its own account is suspended. Its reason says which.
   */
  over: AbortSignal
  /** What the trainer reports. */
  event(event: TrainerEvent): void
  end(): Promise<void>
}

/**
 * A run passes its turn only once it has trained for half of it, a step at least: the checkpoint at which it stops is a new
 * one, and a trainer that starts slowly gets further too.
 */
export function watchTurn(
  {
    queue,
    now,
    turn_seconds,
    isSuspended,
    log,
  }: Pick<JobWork, 'queue' | 'now' | 'turn_seconds' | 'isSuspended' | 'log'>,
  claim: Claim,
): TurnWatch {
  const over = new AbortController()
  let trainedSince: number | undefined
  const checks = runPeriodically(check_ms, async () => {
    if (over.signal.aborted) return
    try {
      if (await isSuspended(claim.account_id)) return over.abort('suspended' satisfies TurnOver)
      if (trainedSince === undefined || turn_seconds === 0) return
      if (now() < Math.max(claim.turn_until, trainedSince + turn_seconds * 500)) return
      if (await queue.giveWay(claim)) over.abort('passed' satisfies TurnOver)
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
