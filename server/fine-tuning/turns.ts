// The time slice of a training: when a run gives its turn to a job of another account.
import { runPeriodically } from '../../lib/periodic.ts'
import type { Claim } from '../queue/queue.ts'
import type { TrainerEvent } from './trainer.ts'
import type { FineTuningWork } from './work.ts'

/** Between looks at who waits. */
const check_ms = 1000

export interface TurnWatch {
  /** Aborts when the turn is over, the run has trained a step, and another account waits with nothing running. */
  over: AbortSignal
  /** What the trainer reports. */
  event(event: TrainerEvent): void
  end(): Promise<void>
}

/** A run passes its turn only once it has trained a step: the checkpoint at which it stops is a new one. */
export function watchTurn(
  { queue, now, turn_seconds, log }: Pick<FineTuningWork, 'queue' | 'now' | 'turn_seconds' | 'log'>,
  claim: Claim,
): TurnWatch {
  const over = new AbortController()
  let trained = false
  const checks = runPeriodically(check_ms, async () => {
    if (!trained || over.signal.aborted || turn_seconds === 0 || now() < claim.turn_until) return
    try {
      if (await queue.idleAccountWaits(claim)) over.abort()
    } catch (error) {
      log.warn({ err: error, job: claim.ref }, 'the jobs of other accounts could not be looked up')
    }
  })
  return {
    over: over.signal,
    event({ type, data }) {
      trained ||= type === 'checkpoint' || (type === 'metrics' && typeof data?.loss === 'number')
    },
    end: () => checks.close(),
  }
}
