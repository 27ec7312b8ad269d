// An attempt at a job that learns from graders: the engine samples answers with the weights of the step, graders score
// them, and the trainer updates the weights (docs/decisions/055-reinforcement.md).
import { CommandError, CommandTrainer, TrainerEnded } from '../../../platform/trainer/command-trainer.ts'
import { stoppedStatus, type TrainerExit } from '../../../platform/trainer/trainer.ts'
import { GraderError, GradingStopped } from '../../evaluations/index.ts'
import type { StopRequest } from '../host.ts'
import { type AttemptOptions, attempt } from './attempt.ts'

export interface ReinforcementRun extends AttemptOptions {
  python: string
  env: Record<string, string>
  log_fields: Record<string, string | number>
  /** How long a command of the trainer may take once the run is to stop. */
  grace_ms: number
  onStarted(pid: number): () => void
}

/** Trains to the end, or until the signal aborts: then a checkpoint is written. Resolves with how the trainer ended. */
export async function runReinforcement(run: ReinforcementRun): Promise<TrainerExit> {
  const kill = new AbortController()
  const onAbort = () => {
    // Nothing of a cancelled job is kept: it need not end what it computes.
    if ((run.signal.reason as StopRequest | undefined) === 'cancel') kill.abort()
    else setTimeout(() => kill.abort(), run.grace_ms).unref()
  }
  if (run.signal.aborted) onAbort()
  else run.signal.addEventListener('abort', onAbort, { once: true })
  const { job_id, base, method, lora, threads, converters, parse_control_tokens } = run.spec
  const trainer = await CommandTrainer.start({
    run_dir: run.run_dir,
    spec: { job_id, base, method, lora, start: null, threads, converters, parse_control_tokens },
    python: run.python,
    env: run.env,
    log_fields: run.log_fields,
    onStarted: run.onStarted,
    signal: kill.signal,
  })
  try {
    const finished = await attempt(run, trainer)
    await trainer.end()
    return { status: finished ? 0 : stoppedStatus, signal: null, log: '' }
  } catch (error) {
    if (error instanceof TrainerEnded) return error.exit
    const { log } = await trainer.end()
    const failure = failureOf(error)
    if (!failure) throw error
    run.onEvent({ type: 'error', message: failure.message, data: { code: failure.code, ...failure.data } })
    return { status: 1, signal: null, log }
  } finally {
    run.signal.removeEventListener('abort', onAbort)
  }
}

/** What the job's owner can act on; undefined for what may be tried again. */
function failureOf(error: unknown): { code: string; message: string; data?: Record<string, unknown> } | undefined {
  if (error instanceof CommandError) return error
  if (error instanceof GradingStopped) return { code: error.code, message: error.message }
  if (error instanceof GraderError) return { code: 'dataset_invalid', message: error.message }
  return undefined
}
