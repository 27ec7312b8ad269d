// The trainer's commands for the one adapter that a run trains (trainer/policy/commands.py).
import type { CommandTrainer } from '../../../platform/trainer/command-trainer.ts'
import type { Datum, Text } from './rollouts.ts'

/** A folder with weights, moments and fields, and the hash of its manifest. */
export interface SavedState {
  path: string
  sha256: string
}

export interface LossOptions {
  /** Its name in trainer/policy/losses.py. */
  loss: string
  low: number
  high: number
  /** The most that a token weighs to correct the probability that it was sampled with. */
  truncation: number
}

/** What a pass over data gives, beside the gradients. */
export interface Computed {
  loss: number
  /** For each datum those of its trained tokens, before the update. */
  log_probabilities: number[][]
  clipped_share: number
  correction: number
}

const adapter = 'policy'
const max_grad_norm = 1

export class PolicyTrainer {
  private readonly trainer: Pick<CommandTrainer, 'call'>

  constructor(trainer: Pick<CommandTrainer, 'call'>) {
    this.trainer = trainer
  }

  async create(start: object | null, seed: number): Promise<void> {
    await this.call('create', { start, seed })
  }

  /** Forgets the adapter, if there is one. */
  async drop(): Promise<void> {
    await this.call('drop', {}).catch(() => {})
  }

  /** Resolves with the fields that were saved; null if the files are missing or damaged, and nothing has changed. */
  async loadState({ path, sha256 }: SavedState): Promise<object | null> {
    return (await this.call<{ fields: object | null }>('load_state', { path, sha256 })).fields
  }

  async saveState(path: string, fields: object): Promise<SavedState & { size_mb: number }> {
    return { path, ...(await this.call<{ sha256: string; size_mb: number }>('save_state', { path, fields })) }
  }

  /** Writes the adapter as the engine loads it. */
  saveWeights(path: string): Promise<{ gguf: string; sha256: string }> {
    return this.call('save_weights', { path })
  }

  /** For each datum those of its trained tokens; with `base` under the base, without the adapter. */
  async logProbabilities(data: Text[], base = false): Promise<number[][]> {
    return (await this.call<{ log_probabilities: number[][] }>('forward', { data, base })).log_probabilities
  }

  forwardBackward(data: Datum[], loss: LossOptions): Promise<Computed> {
    return this.call('forward_backward', { data, ...loss })
  }

  optimStep(learning_rate: number): Promise<{ grad_norm: number }> {
    return this.call('optim_step', { learning_rate, max_grad_norm })
  }

  /** Writes the artifact of the job, and resolves with its fields. */
  saveResult(path: string, prompts: object[][]): Promise<object> {
    return this.call('save_result', { path, prompts })
  }

  private async call<T>(command: string, fields: object): Promise<T> {
    return (await this.trainer.call(command, { adapter, ...fields })) as T
  }
}
