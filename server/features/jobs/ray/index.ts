// Training in a Ray cluster (TUNERY_RAY_ADDRESS). Loaded only where one is set.
import { EventEmitter } from 'node:events'
import type { FastifyInstance } from 'fastify'
import type { Logger } from 'pino'
import { runPeriodically } from '../../../../lib/periodic.ts'
import { day_ms } from '../../../../lib/utc-day.ts'
import type { Config } from '../../../config.ts'
import type { LeaseContext } from '../../../platform/queue/lease-writes.ts'
import { createRayClient, RayAway } from '../../../platform/ray/client.ts'
import { createPackageUpload } from '../../../platform/ray/package.ts'
import { listeningUrl } from '../../../platform/ray/service-url.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import type { Secrets } from '../../../platform/storage/secrets.ts'
import { rowsKey } from '../../datasets/index.ts'
import type { Running } from '../../feature.ts'
import { modelKey } from '../../models/index.ts'
import type { TrainerHost } from '../host.ts'
import type { Specs } from '../spec.ts'
import * as store from '../store.ts'
import { packTrainer } from './code-package.ts'
import { createRunInputs } from './inputs.ts'
import { gpuFor, predictGpuMemory, resourcesFor } from './resources.ts'
import { runRoutes } from './routes.ts'
import * as runs from './runs.ts'
import { followRun } from './train.ts'

const clear_ms = 15_000
/** How long the record of a run is kept that the cluster no longer has. */
const runRetention_ms = 30 * day_ms

interface Options {
  lease: LeaseContext
  installation: string
  dataDir: string
  python: string
  converters: string
  artifacts: Artifacts
  specs: Pick<Specs, 'ofJob'>
  config: Config
  secrets: Secrets
  log: Logger
  now(): number
}

interface RayHost extends TrainerHost {
  /** Mounts the routes of runs. */
  mount(app: FastifyInstance): void
  /** Starts to clear ended runs from the cluster. */
  start(): Running
}

export function createRayHost({
  lease,
  installation,
  dataDir,
  python,
  converters,
  artifacts,
  specs,
  config,
  secrets,
  log,
  now,
}: Options): RayHost {
  const { db } = lease
  const files = { artifacts, dataDir }
  const ray = createRayClient(config.ray_address!, config.ray_token)
  const reports = new EventEmitter()
  reports.setMaxListeners(0)
  const threads = config.ray_cpus ?? config.threads
  const describe = createRunInputs(specs, { models_dir: config.models_dir, threads })
  let app: FastifyInstance | undefined

  async function resources(job: store.JobRow, run: runs.Run) {
    const layout = { processes: config.trainer_processes, machines: config.ray_machines, threads }
    if (config.ray_gpus.length === 0) return resourcesFor(layout, undefined)
    const needed_mb = await predictGpuMemory(await specs.ofJob(job, run), python, AbortSignal.timeout(120_000))
    return resourcesFor(layout, gpuFor(needed_mb, config.ray_gpus))
  }

  const needs = {
    lease,
    files,
    installation,
    log,
    now,
    ray,
    secrets,
    resources,
    python: config.ray_python,
    codePackage: createPackageUpload(ray, () => packTrainer(converters)),
    serviceUrl: () => config.ray_service_url ?? config.public_url ?? listeningUrl(app!),
    waitForReport: (job_id: string, wait_ms: number, signal: AbortSignal) =>
      new Promise<void>((resolve) => {
        const done = () => {
          clearTimeout(timer)
          reports.off(job_id, done)
          signal.removeEventListener('abort', done)
          resolve()
        }
        const timer = setTimeout(done, wait_ms)
        reports.once(job_id, done)
        if (!signal.aborted) signal.addEventListener('abort', done, { once: true })
      }),
  }

  /** Ends runs whose job does not need them, and makes the cluster end and forget ended ones. */
  async function clear(): Promise<void> {
    for (const run of await runs.uncleared(db)) {
      const idle = run.status === null || !['queued', 'running'].includes(run.status) || run.paused === 1
      if (run.ended_at === null) {
        // The worker of a paused job waits for the trainer's checkpoint.
        if (!idle || (run.paused === 1 && run.status === 'running')) continue
        await runs.end(db, run, now())
      }
      // Also of a run whose submission nobody has heard of: the answer may have been lost.
      const job = await ray.job(run.submission_id)
      if (job && ['PENDING', 'RUNNING'].includes(job.status)) {
        await ray.stop(run.submission_id)
        continue
      }
      // The logs of a failed job are the operator's to read.
      if (job && run.status !== 'failed') await ray.forget(run.submission_id)
      await runs.update(db, run, { cleared_at: now() })
    }
    await runs.removeClearedBefore(db, now() - runRetention_ms)
  }
  const tryToClear = () =>
    clear().catch((error) => {
      if (!(error instanceof RayAway)) log.warn({ err: error }, 'runs could not be cleared from the Ray cluster')
    })

  return {
    mount(instance) {
      app = instance
      runRoutes(instance, {
        db,
        files,
        now,
        secrets,
        min_free_mb: config.min_free_disk_mb,
        describe,
        notify: (job_id) => void reports.emit(job_id),
      })
    },
    start: () => runPeriodically(clear_ms, tryToClear),
    queues: true,
    async train(claim, job, run) {
      // The machines of the cluster fetch them from here.
      const datasets = [job.dataset_id, ...(job.validation_dataset_id ? [job.validation_dataset_id] : [])].map((id) =>
        rowsKey(id),
      )
      const models = job.model_id.startsWith('mdl_') ? [modelKey(job.model_id)] : []
      const hold = await artifacts.hold([...datasets, ...models])
      return followRun(needs, claim, job, run).finally(hold.release)
    },
    hasRun: async (job_id) => (await runs.live(db, job_id)) !== undefined,
    async whyStopped(job_id) {
      if ((await store.findJobUnscoped(db, job_id))?.paused === 1) return 'paused'
      return (await runs.live(db, job_id))?.turn_over === 1 ? 'passed' : undefined
    },
    async endRun(job_id) {
      const run = await runs.live(db, job_id)
      if (!run) return
      await runs.end(db, run, now())
      void tryToClear()
    },
  }
}
