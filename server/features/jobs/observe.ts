// Metrics, span and log fields of attempts at jobs.

import type { Claim } from '../../platform/queue/queue.ts'
import type { ServerMetrics } from '../../platform/telemetry/metrics.ts'
import type { Attributes, Span, Tracing } from '../../platform/telemetry/tracing.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import type { JobRow } from './store.ts'

export type AttemptOutcome =
  | 'completed'
  | 'failed'
  | 'cancelled'
  | 'paused'
  | 'passed'
  | 'interrupted'
  | 'died'
  | 'waiting'
  | 'lost'

export interface AttemptObserver {
  /** The fields of its log lines: job, attempt, and trace_id where it is traced. */
  log_fields: { job: string; attempt: number; trace_id?: string }
  /** The trace for the trainer's environment. */
  env: Record<string, string>
  event(event: TrainerEvent): void
  /** The trainer has ended; what follows is the service's own work. */
  trainerEnded(): void
  /** Only the first call counts. */
  end(outcome: AttemptOutcome): void
}

export type ObserveAttempt = (job: JobRow, claim: Claim) => AttemptObserver

const failures: ReadonlySet<AttemptOutcome> = new Set(['failed', 'died', 'lost'])

/**
 * Spans: one an attempt, in the trace of the request that created the job, with one for each phase that the trainer
 * reports, and checkpoints and evaluations as events.
 */
export function observeAttempts(
  metrics: ServerMetrics,
  tracing: Tracing | undefined,
  now: () => number,
): ObserveAttempt {
  const running = new Set<{ progress: number; heard_at: number }>()
  metrics.onLook(() => {
    const all = [...running]
    metrics.trainings.set(all.length)
    const mean = all.reduce((sum, { progress }) => sum + progress, 0) / Math.max(1, all.length)
    metrics.trainingProgress.set(mean)
    const time = performance.now()
    metrics.trainingSilence.set(all.reduce((most, { heard_at }) => Math.max(most, time - heard_at), 0) / 1000)
  })
  return (job, { attempt }) => {
    const state = { progress: 0, heard_at: performance.now() }
    running.add(state)
    // The first count of a later attempt has what earlier ones had trained.
    let tokens = attempt === 1 ? 0 : undefined
    const span = tracing?.start('work on job', {
      kind: 'consumer',
      ...(job.traceparent !== null && { parent: { traceparent: job.traceparent } }),
      attributes: {
        'tunery.job_id': job.id,
        'tunery.account_id': job.account_id,
        'tunery.attempt': attempt,
        'tunery.base_model': job.base_model_id,
        'tunery.job_age_seconds': Math.max(0, now() - job.created_at) / 1000,
      },
    })
    let phase: Span | undefined = span?.child('trainer: starting')
    return {
      log_fields: { job: job.id, attempt, ...(span && { trace_id: span.trace_id }) },
      env: Object.fromEntries(
        Object.entries(span?.headers() ?? {}).map(([name, value]) => [name.toUpperCase(), value]),
      ),
      event({ type, data = {} }) {
        state.heard_at = performance.now()
        if (type === 'progress' && typeof data.progress === 'number') state.progress = data.progress
        if (type === 'metrics' && typeof data.tokens === 'number') {
          if (tokens !== undefined) metrics.trainedTokens.inc(Math.max(0, data.tokens - tokens))
          tokens = data.tokens
        }
        if (!span) return
        if (type === 'status' && typeof data.phase === 'string') {
          phase?.end()
          phase = span.child(`trainer: ${data.phase}`)
        }
        const step: Attributes = typeof data.step === 'number' ? { step: data.step } : {}
        if (type === 'checkpoint') phase?.event('checkpoint', step)
        if (type === 'metrics' && typeof data.validation_loss === 'number')
          phase?.event('evaluation', { ...step, validation_loss: data.validation_loss })
        if (type === 'error') phase?.end({ error: { code: data.code ?? 'internal' } })
      },
      trainerEnded() {
        phase?.end()
        phase = span?.child('record result')
      },
      end(outcome) {
        if (!running.delete(state)) return
        metrics.jobAttempts.inc({ outcome })
        phase?.end()
        span?.set({ 'tunery.outcome': outcome })
        span?.end(failures.has(outcome) ? { error: { code: outcome } } : {})
      },
    }
  }
}
