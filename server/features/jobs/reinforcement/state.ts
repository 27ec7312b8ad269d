// What a run has beside its weights, from which it resumes exactly.
import { createHash } from 'node:crypto'
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { GradingSoFar } from '../../evaluations/index.ts'
import type { Specs } from '../spec.ts'
import type { SavedState } from './policy-trainer.ts'

export type Spec = Awaited<ReturnType<Specs['ofJob']>>

/** What a checkpoint has beside the weights. */
export interface State {
  fingerprint: string
  step: number
  /** The place in the order of prompts. */
  cursor: number
  trained_tokens: number
  generated_tokens: number
  seconds: number
  losses: number
  grading: GradingSoFar | undefined
  /** What the judges among the watched graders took. */
  watched?: GradingSoFar | undefined
  best: (SavedState & { step: number; reward: number }) | null
  /** Evaluations since the best one. */
  without_better: number
  evaluated_step: number
}

export const initialState = (fingerprint: string): State => ({
  fingerprint,
  step: 0,
  cursor: 0,
  trained_tokens: 0,
  generated_tokens: 0,
  seconds: 0,
  losses: 0,
  grading: undefined,
  best: null,
  without_better: 0,
  evaluated_step: -1,
})

/** What decides the weights: a checkpoint with another fingerprint belongs to another run. */
export function fingerprintOf(spec: Spec, config: ResolvedConfig): string {
  const { base, dataset, method, lora, start, evaluation } = spec
  const deciding = [
    base.id,
    dataset.sha256,
    method,
    lora,
    start?.sha256 ?? null,
    evaluation.dataset ? evaluation.dataset.sha256 : null,
    config.method_options,
    config.training_config,
    config.evaluation_config,
  ]
  return createHash('sha256').update(JSON.stringify(deciding)).digest('hex')
}
