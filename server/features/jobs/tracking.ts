// Sends loss curves to the experiment tracker that the operator configured. It never fails or slows a job: problems
// only go to the log.
import path from 'node:path'
import type { Logger } from 'pino'
import type { ResolvedConfig } from '../../../contract/fine-tuning.ts'
import { type Child, childEnv, spawnChild } from '../../../lib/child-process.ts'
import { root } from '../../../lib/root.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'
import { openaiRequestOf } from './openai/request.ts'
import type { JobRow } from './store.ts'

interface TrackingSettings {
  kind: 'none' | 'tensorboard' | 'mlflow' | 'wandb'
  /** A folder for TensorBoard, a URL for the others. */
  target: string
  project: string
}

/** The loss curve of one attempt at a job. */
interface Track {
  record(event: TrainerEvent): void
  end(): void
}

type TrackedJob = Pick<JobRow, 'id' | 'model_id' | 'dataset_id' | 'openai_json'>

/** Metrics are dropped while more than this is waiting for a slow tracker, in bytes. */
const max_buffered_bytes = 4e6
const close_timeout_ms = 60_000
/** The trackers' own settings and those of the clouds that they store in, which may be secrets (WANDB_API_KEY). */
const trackerSettings = /^(WANDB|MLFLOW|DATABRICKS|AWS|AZURE|GOOGLE)_/
/** Exit status of a shell when the program does not exist. */
const command_not_found = 127

export type Tracking = (job: TrackedJob, config: ResolvedConfig) => Track

export function createTracking({ kind, target, project }: TrackingSettings, log: Logger): Tracking {
  if (kind === 'none') return () => ({ record() {}, end() {} })
  return (job, config) => {
    let child: Child | undefined
    const send = (message: object) => {
      child ??= start(job.id)
      const { stdin } = child
      if (stdin?.writable && stdin.writableLength < max_buffered_bytes) stdin.write(`${JSON.stringify(message)}\n`)
    }
    /** What a job created through OpenAI's API says of its run: project, name and tags. */
    const wandb = kind === 'wandb' ? openaiRequestOf(job)?.integrations?.[0]?.wandb : undefined
    const start = (run: string) => {
      const python = path.join(root, '.local/tracking', kind, 'bin/python')
      const args = [
        path.join(root, 'trainer/cli/track.py'),
        kind,
        target,
        wandb?.project ?? project,
        run,
        JSON.stringify({ name: wandb?.name ?? undefined, tags: wandb?.tags ?? undefined }),
      ]
      const started = spawnChild(python, args, { env: childEnv(trackerSettings) })
      const warn = (why: string) => log.warn({ job: run, why }, `the loss curve of a job could not be sent to ${kind}`)
      started.ended.then(
        ({ status, stderr }) => {
          if (status === command_not_found) warn(`${stderr}; run the set-up with TUNERY_TRACKING=${kind}`)
          else if (status) warn(stderr)
        },
        (error: Error) => warn(error.message),
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
        child?.stdin?.end()
        child?.killAfter(close_timeout_ms)
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
