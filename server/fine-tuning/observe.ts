// The metrics of attempts at jobs: how they end, and how far the running ones are.
import type { ServerMetrics } from '../telemetry/metrics.ts'
import type { TrainerEvent } from './trainer.ts'

export type AttemptOutcome =
  | 'completed'
  | 'failed'
  | 'cancelled'
  | 'paused'
  | 'interrupted'
  | 'died'
  | 'waiting'
  | 'lost'

export interface AttemptObserver {
  event(event: TrainerEvent): void
  /** Only the first call counts. */
  end(outcome: AttemptOutcome): void
}

/** `attempt`: its number, from 1. */
export type ObserveAttempt = (attempt: number) => AttemptObserver

export function observeAttempts(metrics: ServerMetrics): ObserveAttempt {
  const running = new Set<{ progress: number; heard_at: number }>()
  metrics.onLook(() => {
    const all = [...running]
    metrics.trainings.set(all.length)
    const mean = all.reduce((sum, { progress }) => sum + progress, 0) / Math.max(1, all.length)
    metrics.trainingProgress.set(mean)
    const now = performance.now()
    metrics.trainingSilence.set(all.reduce((most, { heard_at }) => Math.max(most, now - heard_at), 0) / 1000)
  })
  return (attempt) => {
    const state = { progress: 0, heard_at: performance.now() }
    running.add(state)
    // The first count of a later attempt has what earlier ones had trained.
    let tokens = attempt === 1 ? 0 : undefined
    return {
      event({ type, data = {} }) {
        state.heard_at = performance.now()
        if (type === 'progress' && typeof data.progress === 'number') state.progress = data.progress
        if (type !== 'metrics' || typeof data.tokens !== 'number') return
        if (tokens !== undefined) metrics.trainedTokens.inc(Math.max(0, data.tokens - tokens))
        tokens = data.tokens
      },
      end(outcome) {
        if (running.delete(state)) metrics.jobAttempts.inc({ outcome })
      },
    }
  }
}
