// Sends the loss curves of jobs to the tracker that the operator set up. Nothing of it can fail a job or slow it: a
// tracker that cannot be reached is told in the service's log.
import type { ChildProcess } from 'node:child_process'
import path from 'node:path'
import type { Logger } from 'pino'
import type { ResolvedConfig } from '../../contract/tuning.ts'
import { spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'
import type { TrainerLine } from './trainer.ts'

export interface TrackingSettings {
  kind: 'none' | 'tensorboard' | 'mlflow' | 'wandb'
  /** A folder for TensorBoard, an address for the others. */
  target: string
  project: string
}

/** The curve of one attempt at a job. */
export interface Track {
  line(line: TrainerLine): void
  end(): void
}

interface TrackedJob {
  id: string
  model_id: string
  dataset_id: string
}

/** A tracker that reads slower than a job reports gets no more than this of it, in bytes. */
const most_waiting = 4e6
const ending_ms = 60_000
/** Exit status where there is no such program. */
const missing = 127

export type Tracking = (job: TrackedJob, config: ResolvedConfig) => Track

export function createTracking({ kind, target, project }: TrackingSettings, log: Logger): Tracking {
  if (kind === 'none') return () => ({ line() {}, end() {} })
  return (job, config) => {
    let child: ChildProcess | undefined
    const say = (told: object) => {
      child ??= start(job.id)
      if (child.stdin!.writable && child.stdin!.writableLength < most_waiting)
        child.stdin!.write(`${JSON.stringify(told)}\n`)
    }
    const start = (run: string) => {
      const python = path.join(root, '.local/tracking', kind, 'bin/python')
      const started = spawnChild(python, [path.join(root, 'trainer/cli/track.py'), kind, target, project, run], {
        cwd: root,
        env: env(),
        stdio: ['pipe', 'ignore', 'pipe'],
      })
      let problem = ''
      started.stdin.on('error', () => {})
      started.stderr.on('data', (data) => {
        problem = (problem + data).slice(-2000)
      })
      const failed = (why: string) =>
        log.warn({ job: run, why }, `the loss curve of a job could not be sent to ${kind}`)
      started.on('error', (error) => failed(error.message))
      started.on(
        'exit',
        (status) =>
          void (
            status &&
            failed(status === missing ? `${problem.trim()}; run the set-up with TUNERY_TRACKING=${kind}` : problem)
          ),
      )
      return started
    }
    return {
      line({ type, data }) {
        if (type !== 'metrics' || typeof data?.step !== 'number') return
        const { step, steps_total: _, ...values } = data
        const metrics = Object.fromEntries(Object.entries(values).filter(([, value]) => typeof value === 'number'))
        if (!child) say({ params: paramsOf(job, config) })
        say({ step, metrics })
      },
      end() {
        const ending = child
        if (!ending) return
        ending.stdin!.end()
        const kill = setTimeout(() => ending.kill('SIGKILL'), ending_ms).unref()
        ending.on('exit', () => clearTimeout(kill))
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

// The tracker's own settings (WANDB_API_KEY, MLFLOW_TRACKING_TOKEN) pass; those of the service do not.
function env(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TUNERY_')))
}
