// Trains on this machine: the trainer is a child of this process.

import { ApiError } from '../../../contract/errors.ts'
import type { Endpoints } from '../../platform/outbound/signed-post.ts'
import { writeWhileFree } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { PreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { type ProgramRun, runTrainer, type TrainerEvent } from '../../platform/trainer/trainer.ts'
import type { Evaluations } from '../evaluations/index.ts'
import { readResolvedConfig, servedBaseOf, type TunedModels } from '../models/index.ts'
import type { EngineClient } from '../serving/index.ts'
import type { CoreShare } from './core-share.ts'
import type { Devices } from './devices/index.ts'
import type { TrainerEnd, TrainerHost } from './host.ts'
import { runReinforcement } from './reinforcement/run.ts'
import { checkpointsKept } from './run-files.ts'
import { filesOfSpec, type Specs } from './spec.ts'
import type { JobRow } from './store.ts'

/**
 * Time for a stopping trainer to save its checkpoint. Longer than the shutdown grace of running answers, which may take
 * its CPU time.
 */
const stop_grace_ms = 40_000

interface Options {
  dataDir: string
  min_free_mb: number
  python: string
  devices: Devices
  specs: Pick<Specs, 'ofJob'>
  artifacts: Pick<Artifacts, 'hold'>
  prepared: PreparedTrainer
  cores: Pick<CoreShare, 'watch'>
  /** What a job that learns from graders needs: who answers, and who scores. */
  models: Pick<TunedModels, 'startingModel'>
  engine: Pick<EngineClient, 'post' | 'unload'>
  grading: Evaluations['grading']
  endpoints: Pick<Endpoints, 'post'>
}

export function createLocalHost({
  dataDir,
  min_free_mb,
  python,
  devices,
  specs,
  artifacts,
  prepared,
  cores,
  models,
  engine,
  grading,
  endpoints,
}: Options): TrainerHost {
  /** The weights that sample: those below the adapter that is trained. */
  async function samplingBase({ account_id, model_id }: JobRow) {
    const { base } = servedBaseOf({ ...(await models.startingModel(account_id, model_id)), adapter: undefined })
    return { base }
  }

  const learning = { engine, grading, endpoints }

  return {
    queues: false,
    takePlace: ({ id, account_id, base_model_id, resolved_config_json }, signal) =>
      devices.take(id, account_id, base_model_id, readResolvedConfig(resolved_config_json), signal),
    async train(claim, job, { stopping, stopRequested, turnOver, failed, place, env, log_fields, onEvent, onSlowed }) {
      const common = await specs.ofJob(job, claim)
      const spec = {
        ...common,
        sharded: place?.sharded ?? false,
        memory_mb: place?.memory_mb ?? null,
        checkpoint: { ...common.checkpoint, min_free_mb },
      }
      const hold = await artifacts.hold(filesOfSpec(spec))
      const onStarted: ProgramRun['onStarted'] = (pid) => cores.watch(pid, onSlowed)
      const asked = AbortSignal.any([stopping, stopRequested, turnOver, failed])
      // Another checkpoint has to find room beside those that are there.
      const needed_bytes = job.checkpoint_bytes / checkpointsKept
      const train = async (signal: AbortSignal): Promise<TrainerEnd> => {
        const run = {
          run_dir: runDir(dataDir, job.id, claim.attempt),
          python,
          env: { ...env, ...place?.env },
          log_fields,
          grace_ms: stop_grace_ms,
          onStarted,
          signal,
          onEvent: (event: TrainerEvent) => onEvent(event),
        }
        const config = readResolvedConfig(job.resolved_config_json)
        const exit =
          config.method_options.objective.value === 'reinforcement'
            ? await runReinforcement({ ...run, job, config, spec, ...(await samplingBase(job)), ...learning })
            : await runTrainer({ ...run, spec, prepared, processes: place?.processes ?? 1 })
        if (!asked.aborted && exit.status !== 0) signal.throwIfAborted()
        return { how: stopping.aborted ? 'interrupted' : 'exited', exit }
      }
      return await writeWhileFree({ folder: dataDir, min_free_mb, needed_bytes, signal: asked }, train)
        .catch((error): TrainerEnd => {
          if (error instanceof ApiError && error.code === 'storage_full') return { how: 'full' }
          throw error
        })
        .finally(hold.release)
    },
    // A child ends with this process, and every later attempt starts another.
    hasRun: async () => false,
    whyStopped: async () => undefined,
    endRun: async () => {},
  }
}
