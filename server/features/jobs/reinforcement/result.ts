// The result of a run: the state of the best reward on held-out prompts, or the last one.

import type { PolicyTrainer } from './policy-trainer.ts'
import type { Prompts } from './prompts.ts'
import { type Emit, round } from './reports.ts'
import type { Schedule } from './schedule.ts'
import type { State } from './state.ts'

interface Options {
  trainer: Pick<PolicyTrainer, 'loadState' | 'saveResult'>
  prompts: Pick<Prompts, 'take' | 'learned'>
  schedule: Schedule
  /** The artifact's folder. */
  folder: string
  emit: Emit
}

/** Prompts from which the trainer tells what they have in common. */
const promptsShown = 64

/** Loads the state to keep. Resolves with its step. */
export async function loadBest({ trainer, emit }: Pick<Options, 'trainer' | 'emit'>, state: State): Promise<number> {
  const { best, step } = state
  if (!best || best.step === step) return step
  if (await trainer.loadState(best)) return best.step
  emit('warning', `The weights of the best step, ${best.step}, are damaged; the last ones are used.`, {})
  return step
}

/** Saves the trainer's weights, those of `step`, as the result. */
export async function saveResult(options: Options, state: State, step: number): Promise<void> {
  const { trainer, prompts, schedule, folder, emit } = options
  const saved = await trainer.saveResult(folder, await systemPrompts(prompts))
  const { steps_total, steps_per_epoch } = schedule
  emit('progress', '100% done', { step: state.step, steps_total, progress: 1, seconds_left: 0 })
  emit('result', `Trained ${state.step} steps`, {
    ...saved,
    step,
    validation_loss: null,
    validation_exact: null,
    kept: [],
    rows: null,
    drafts: null,
    drafts_sha256: null,
    epochs: Math.ceil(state.step / steps_per_epoch),
    steps_total,
    train_loss: state.losses / Math.max(1, state.step),
    trained_tokens: state.trained_tokens,
    train_seconds: round(state.seconds, 3),
    tokens_per_second: round((state.trained_tokens + state.generated_tokens) / Math.max(state.seconds, 1e-3), 1),
    steps: state.step,
    predicted_seconds: null,
  })
}

async function systemPrompts(prompts: Options['prompts']): Promise<object[][]> {
  const items = await prompts.take(0, Math.min(promptsShown, prompts.learned.length))
  return items.flatMap(({ item: { messages } }) =>
    Array.isArray(messages) ? [messages.filter((message) => typeof message?.content === 'string')] : [],
  )
}
