// Trains on this machine: the trainer is a child of this process.

import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { PreparedTrainer } from '../../platform/trainer/prepared-trainer.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { type ProgramRun, runTrainer } from '../../platform/trainer/trainer.ts'
import type { CoreShare } from './core-share.ts'
import type { TrainerHost } from './host.ts'
import { filesOfSpec, type Specs } from './spec.ts'

/**
 * Time for a stopping trainer to save its checkpoint. Longer than the shutdown grace of running answers, which may take
 * its CPU time.
 */
const stop_grace_ms = 40_000

interface Options {
  dataDir: string
  python: string
  processes: number
  specs: Pick<Specs, 'ofJob'>
  artifacts: Pick<Artifacts, 'hold'>
  prepared: PreparedTrainer
  cores: Pick<CoreShare, 'watch'>
}

export function createLocalHost({
  dataDir,
  python,
  processes,
  specs,
  artifacts,
  prepared,
  cores,
}: Options): TrainerHost {
  return {
    queues: false,
    async train(claim, job, { stopping, stopRequested, turnOver, failed, env, log_fields, onEvent, onSlowed }) {
      const spec = await specs.ofJob(job, claim)
      const hold = await artifacts.hold(filesOfSpec(spec))
      const onStarted: ProgramRun['onStarted'] = (pid) => cores.watch(pid, onSlowed)
      const exit = await runTrainer({
        run_dir: runDir(dataDir, job.id, claim.attempt),
        spec,
        python,
        prepared,
        processes,
        env,
        log_fields,
        grace_ms: stop_grace_ms,
        onStarted,
        signal: AbortSignal.any([stopping, stopRequested, turnOver, failed]),
        onEvent: (event) => onEvent(event),
      }).finally(hold.release)
      return { how: stopping.aborted ? 'interrupted' : 'exited', exit }
    },
    // A child ends with this process, and every later attempt starts another.
    hasRun: async () => false,
    whyStopped: async () => undefined,
    endRun: async () => {},
  }
}
