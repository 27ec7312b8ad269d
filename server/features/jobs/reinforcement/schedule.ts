// The learning rate of a step, as trainer/run/schedule.py has it for other objectives.

/** The rate of a step, from 0 on: a linear rise, then a cosine to 0 (Loshchilov and Hutter, 2016, arXiv 1608.03983). */
export function learningRate(step: number, steps_total: number, peak: number, warmup_ratio: number): number {
  const warmup = Math.ceil(steps_total * warmup_ratio)
  if (step < warmup) return (peak * (step + 1)) / (warmup + 1)
  const share = (step - warmup) / Math.max(1, steps_total - warmup)
  return peak * 0.5 * (1 + Math.cos(Math.PI * share))
}
