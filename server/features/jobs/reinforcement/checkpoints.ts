// The folders that a run resumes from: checkpoints of its weights with its state, and the weights of the best reward.
import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { PolicyTrainer } from './policy-trainer.ts'
import type { Emit } from './reports.ts'
import { removeRollouts } from './rollouts.ts'
import { initialState, type Spec, type State } from './state.ts'

interface Options {
  trainer: Pick<PolicyTrainer, 'create' | 'drop' | 'loadState' | 'saveState'>
  run_dir: string
  /** Where the answers of steps are stored. */
  rollouts_dir: string
  steps_total: number
  spec: Pick<Spec, 'start' | 'resume_from' | 'checkpoint'>
  /** Hash of the run: checkpoints of another one are not used. */
  fingerprint: string
  seed: number
  emit: Emit
}

const checkpointsKept = 2
const bestsKept = 3

export class Checkpoints {
  private readonly options: Options
  private saved_at = Date.now()
  private saved_step = -1
  private readonly kept: string[] = []
  private readonly bests: string[] = []

  constructor(options: Options) {
    this.options = options
  }

  /** Continues from the newest checkpoint that is whole and of this run, or begins. */
  async restore(): Promise<State> {
    const { trainer, spec, fingerprint, seed, emit } = this.options
    for (const { path: folder, sha256, step } of spec.resume_from) {
      const fields = (await trainer.loadState({ path: folder, sha256 })) as State | null
      if (fields?.fingerprint === fingerprint) {
        this.saved_step = step
        return fields
      }
      const why = fields ? 'it was made with another configuration' : 'its files are missing or damaged'
      emit('warning', `The checkpoint of step ${step} is not used: ${why}.`, {})
    }
    if (spec.resume_from.length > 0) {
      emit('warning', 'None of the checkpoints can be used; the training starts from the beginning.', {})
      await trainer.drop()
    }
    await trainer.create(spec.start, seed)
    return initialState(fingerprint)
  }

  /** Whether the state has steps that no checkpoint has. */
  isNew({ step }: State): boolean {
    return step > this.saved_step
  }

  isDue(state: State): boolean {
    const { every_seconds } = this.options.spec.checkpoint
    return this.isNew(state) && (every_seconds === null || Date.now() - this.saved_at >= every_seconds * 1000)
  }

  async save(state: State): Promise<void> {
    const { trainer, run_dir, rollouts_dir, steps_total, emit } = this.options
    const { step } = state
    const folder = path.join(run_dir, 'checkpoints', `step-${step}`)
    const { sha256, size_mb } = await trainer.saveState(folder, state)
    this.saved_at = Date.now()
    this.saved_step = step
    emit('checkpoint', `Checkpoint at step ${step} of ${steps_total}`, { step, path: folder, sha256, size_mb })
    await keepNewest(folder, checkpointsKept, this.kept)
    await removeRollouts(rollouts_dir, step)
  }

  /** Keeps the weights of a state whose reward on held-out prompts is the best. */
  async saveBest(state: State, reward: number): Promise<void> {
    const { trainer, run_dir } = this.options
    const folder = path.join(run_dir, 'best', `step-${state.step}`)
    const { sha256 } = await trainer.saveState(folder, {})
    state.best = { step: state.step, reward, path: folder, sha256 }
    state.without_better = 0
    await keepNewest(folder, bestsKept, this.bests)
  }
}

/** Remembers a folder of this attempt, and removes all but the newest. */
async function keepNewest(folder: string, count: number, kept: string[]): Promise<void> {
  if (!kept.includes(folder)) kept.push(folder)
  for (const old of kept.splice(0, Math.max(0, kept.length - count))) await rm(old, { recursive: true, force: true })
}
