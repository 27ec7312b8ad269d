// Sends loss curves to the experiment tracker that the operator configured. It never fails or slows a job: problems
// only go to the log.
import type { ChildProcess } from 'node:child_process'
import path from 'node:path'
import type { Logger } from 'pino'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import { spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'
import type { TrainerEvent } from './trainer.ts'

export interface TrackingSettings {
  kind: 'none' | 'tensorboard' | 'mlflow' | 'wandb'
  /** A folder for TensorBoard, a URL for the others. */
  target: string
  project: string
}

/** The loss curve of one attempt at a job. */
export interface Track {
  record(event: TrainerEvent): void
  end(): void
}

interface TrackedJob {
  id: string
  model_id: string
  dataset_id: string
}

/** Metrics are dropped while more than this is waiting for a slow tracker, in bytes. */
const max_buffered_bytes = 4e6
const close_timeout_ms = 60_000
/** Exit status of a shell when the program does not exist. */
const command_not_found = 127

export type Tracking = (job: TrackedJob, config: ResolvedConfig) => Track

export function createTracking({ kind, target, project }: TrackingSettings, log: Logger): Tracking {
  if (kind === 'none') return () => ({ record() {}, end() {} })
  return (job, config) => {
    let child: ChildProcess | undefined
    const send = (message: object) => {
      child ??= start(job.id)
      if (child.stdin!.writable && child.stdin!.writableLength < max_buffered_bytes)
        child.stdin!.write(`${JSON.stringify(message)}\n`)
    }
    const start = (run: string) => {
      const python = path.join(root, '.local/tracking', kind, 'bin/python')
      const started = spawnChild(python, [path.join(root, 'trainer/cli/track.py'), kind, target, project, run], {
        cwd: root,
        env: trackerEnv(),
        stdio: ['pipe', 'ignore', 'pipe'],
      })
      let problem = ''
      started.stdin.on('error', () => {})
      started.stderr.on('data', (data) => {
        problem = (problem + data).slice(-2000)
      })
      const warn = (why: string) => log.warn({ job: run, why }, `the loss curve of a job could not be sent to ${kind}`)
      started.on('error', (error) => warn(error.message))
      started.on(
        'exit',
        (status) =>
          void (
            status &&
            warn(
              status === command_not_found ? `${problem.trim()}; run the set-up with TUNERY_TRACKING=${kind}` : problem,
            )
          ),
      )
      return started
    }
    return {
      record({ type, data }) {
        if (type !== 'metrics' || typeof data?.step !== 'number') return
        const { step, steps_total: _, ...values } = data
        const metrics = Object.fromEntries(Object.entries(values).filter(([, value]) => typeof value === 'number'))
        if (!child) send({ params: paramsOf(job, config) })
        send({ step, metrics })
      },
      end() {
        const tracker = child
        if (!tracker) return
        tracker.stdin!.end()
        const kill = setTimeout(() => tracker.kill('SIGKILL'), close_timeout_ms).unref()
        tracker.on('exit', () => clearTimeout(kill))
      },
    }
  }
}

function paramsOf(
  { model_id, dataset_id }: TrackedJob,
  { method, lora_config, training_config }: ResolvedConfig,
): Record<string, unknown> {
  const values = Object.entries({ method, ...lora_config, ...training_config }).map(([name, { value }]) => [
    name,
    Array.isArray(value) ? value.join(' ') : value,
  ])
  return { base: model_id, dataset: dataset_id, ...Object.fromEntries(values) }
}

// Passes the tracker's own settings (WANDB_API_KEY, MLFLOW_TRACKING_TOKEN), but none of the service.
function trackerEnv(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TUNERY_')))
}
