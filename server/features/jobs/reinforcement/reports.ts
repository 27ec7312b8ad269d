// What the job's events say of a step.
import type { TrainerEvent } from '../../../platform/trainer/trainer.ts'
import { isKept, keptOf } from './kept.ts'
import {
  figuresOf,
  graderFailures,
  graderMeans,
  type Rollouts,
  tokensOf,
  unlessEmpty,
  watchedMeans,
} from './rollouts.ts'
import type { Schedule } from './schedule.ts'
import type { State } from './state.ts'
import type { Update } from './update.ts'

export type Emit = (type: TrainerEvent['type'], message: string, data: Record<string, unknown>) => void

export const round = (value: number, digits: number) => Number(value.toFixed(digits))

/** The reward in a message; undefined: graders failed on all answers. */
export const rewardWords = (reward: number | undefined) =>
  reward === undefined ? 'no answer could be graded' : `reward ${reward.toFixed(3)}`

/** Reports the steps of one attempt. */
export class StepReports {
  private readonly emit: Emit
  private readonly schedule: Schedule
  private readonly began_step: number
  private readonly began_ms = performance.now()

  constructor(emit: Emit, schedule: Schedule, began_step: number) {
    this.emit = emit
    this.schedule = schedule
    this.began_step = began_step
  }

  /** Reports the step that led to `state`. */
  step(
    state: State,
    rollouts: Rollouts,
    { tokens, ...measured }: Update,
    times: { sampled: number; whole: number; push: number },
  ) {
    const { steps_total } = this.schedule
    const position = { step: state.step, steps_total }
    const epoch = this.schedule.epochOf(state.step)
    const figures = figuresOf(rollouts)
    if (isKept(state.step, steps_total))
      this.emit('rollouts', '', { ...keptOf(state.step, 'training', rollouts.groups) })
    this.emit(
      'metrics',
      `Step ${state.step} of ${steps_total}: ${rewardWords(figures.reward)}, loss ${measured.loss.toFixed(4)}`,
      {
        ...position,
        epoch,
        ...measured,
        ...figures,
        graders: graderMeans(rollouts.groups),
        graders_failed: graderFailures(rollouts.groups),
        ...unlessEmpty('watched_graders', watchedMeans(rollouts.groups)),
        generated_tokens: state.generated_tokens,
        tokens: state.trained_tokens,
        tokens_per_second: round((tokens + tokensOf(rollouts.groups)) / Math.max(times.whole, 1e-3), 1),
        sampling_seconds: round(rollouts.seconds.sampling, 3),
        grading_seconds: round(rollouts.seconds.grading, 3),
        update_seconds: round(times.whole - times.sampled, 3),
        push_seconds: round(times.push, 3),
        losses: [[state.step, measured.loss]],
      },
    )
    const seconds_left = this.secondsLeft(state.step)
    const progress = state.step / (steps_total + 1)
    const left = seconds_left === null ? '' : `, about ${seconds_left} s left`
    this.emit('progress', `${Math.round(100 * progress)}% done${left}`, {
      ...position,
      progress,
      current_epoch: epoch,
      seconds_left,
    })
  }

  private secondsLeft(step: number): number | null {
    const steps = step - this.began_step
    if (steps < 2) return null
    const seconds = (performance.now() - this.began_ms) / 1000
    return Math.round((seconds / steps) * (this.schedule.steps_total - step))
  }
}
