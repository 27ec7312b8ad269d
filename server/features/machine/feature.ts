import os from 'node:os'
import { getMachine, type Machine } from '../../../contract/machine.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Context, Feature } from '../feature.ts'
import { createDiskUsage } from './disk-usage.ts'
import { createEngineState, type ModelNames, type ReadableEngine } from './engine-state.ts'
import { createGpus } from './gpus.ts'
import { exportMachine } from './metrics.ts'

interface Needs {
  engine: ReadableEngine
  /** Servers of models, and requests that wait for them. */
  replicas(): Pick<Machine, 'replicas' | 'waiting'>
  runningTrainings(): number
  trainingDevices(): Promise<Machine['training_devices']>
  namesOf: ModelNames
  version: string
}

/** The operator's view of the machine. */
export function createMachineFeature(
  context: Context,
  { engine, replicas, runningTrainings, trainingDevices, namesOf, version }: Needs,
): Feature {
  const { config, queue, trainingSetup, dataDir, min_free_mb, log, stopping, now } = context
  const disk = createDiskUsage({ dataDir, modelsDir: config.models_dir, log, stopping, now })
  const gpus = createGpus()
  const engineState = createEngineState(engine, namesOf, now)
  exportMachine(context, engine)
  const started_at = now() - process.uptime() * 1000

  async function look(): Promise<Machine> {
    const [diskUsage, gpuList, engineNow, queues, devices] = await Promise.all([
      disk.read(),
      gpus(),
      engineState(),
      queue.counts(),
      trainingDevices(),
    ])
    const constrained = process.constrainedMemory()
    const total = os.totalmem()
    return {
      version,
      node: process.version,
      started_at: isoTime(Math.round(started_at)),
      uptime_seconds: Math.floor(process.uptime()),
      cores: usableCores(),
      load: os.loadavg().map((average) => Number(average.toFixed(2))),
      memory: {
        total_bytes: constrained > 0 ? Math.min(total, constrained) : total,
        available_bytes: process.availableMemory(),
        service_bytes: process.memoryUsage.rss(),
      },
      disk: { ...diskUsage, kept_free_bytes: min_free_mb * 1e6 },
      gpus: gpuList,
      engine: engineNow,
      trainings: runningTrainings(),
      training_devices: devices,
      queues: queues.map(({ oldest_at, ...each }) => ({ ...each, oldest_at: isoTime(oldest_at) })),
      ...replicas(),
      setup: trainingSetup.status({ operator: true }),
    }
  }

  return { mount: (app) => mount(app, getMachine, look), start: async () => [disk] }
}
