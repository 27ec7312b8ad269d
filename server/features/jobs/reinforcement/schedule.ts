// How many steps a run has, and the learning rate of each.

export class Schedule {
  readonly steps_per_epoch: number
  readonly steps_total: number
  private readonly epochs: number

  constructor({ prompts, batch_size, epochs }: { prompts: number; batch_size: number; epochs: number }) {
    this.epochs = epochs
    this.steps_per_epoch = Math.ceil(prompts / batch_size)
    this.steps_total = this.steps_per_epoch * epochs
  }

  /** The epoch, from 1 on, that a step of those from 1 on is in. */
  epochOf(step: number): number {
    return Math.min(Math.floor((step - 1) / this.steps_per_epoch) + 1, this.epochs)
  }
}

/**
 * The rate of a step, from 0 on, as trainer/run/schedule.py has it for other objectives: a linear rise, then a cosine
 * to 0 (Loshchilov and Hutter, 2016, arXiv 1608.03983).
 */
export function learningRate(step: number, steps_total: number, peak: number, warmup_ratio: number): number {
  const warmup = Math.ceil(steps_total * warmup_ratio)
  if (step < warmup) return (peak * (step + 1)) / (warmup + 1)
  const share = (step - warmup) / Math.max(1, steps_total - warmup)
  return peak * 0.5 * (1 + Math.cos(Math.PI * share))
}
