// What the events of a job say of its training, as points to draw and lists to show.
import type { JobEvent } from '../../../sdk/index.ts'

export interface Point {
  step: number
  /** Seconds of training until it: time in the queue, in a pause or after an interruption does not count. */
  seconds: number
  value: number
}

/** Figures of a step beside its loss. */
export const figureNames = [
  'learning_rate',
  'grad_norm',
  'tokens_per_second',
  'reward_margin',
  'reward_accuracy',
  'validation_loss',
  'validation_exact',
  'validation_accuracy',
  'validation_reward_margin',
  'validation_reward_accuracy',
] as const
export type FigureName = (typeof figureNames)[number]

export interface Sample {
  prompt: { role: string; content: string }[]
  base: string
  /** By step, ascending. */
  answers: { step: number; answer: string }[]
}

export interface Run {
  loss: Point[]
  figures: Record<FigureName, Point[]>
  /** Steps at which an epoch begins, but for the first. */
  epochs: { step: number; seconds: number; epoch: number }[]
  best?: Point
  samples: Sample[]
  /** Of the trainer now: preparing, loading, training, converting. */
  phase?: string
  seconds_left?: number | null
  attempt?: number
  /** Weights or the training environment that are being fetched. */
  fetching?: { what: string; share: number | null }
  checkpoints: number
}

export const emptyRun = (): Run => ({
  loss: [],
  figures: Object.fromEntries(figureNames.map((name) => [name, []])) as unknown as Run['figures'],
  epochs: [],
  samples: [],
  checkpoints: 0,
})

const numberOf = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) ? value : undefined
const textOf = (value: unknown): string => (typeof value === 'string' ? value : '')

/** Steps after a resumed one are trained again: what was drawn of them goes. */
function add(points: Point[], point: Point): void {
  while (points.length > 0 && points.at(-1)!.step >= point.step) points.pop()
  points.push(point)
}

export function runOf(events: readonly JobEvent[]): Run {
  const run = emptyRun()
  let seconds = 0
  // The event from which training time is counted on; none while nothing is trained.
  let last_ms: number | undefined
  let lastStep = 0
  let epoch = 1
  for (const event of events) {
    const data = event.data ?? {}
    const at_ms = Date.parse(event.created_at)
    switch (event.type) {
      case 'status': {
        if (data.status === 'running') run.attempt = numberOf(data.attempt) ?? run.attempt
        const phase = textOf(data.phase)
        if (phase || data.status !== undefined) run.phase = phase || undefined
        if (phase !== 'training') last_ms = undefined
        else last_ms ??= at_ms
        run.fetching = undefined
        if (data.status !== undefined) run.seconds_left = undefined
        break
      }
      case 'progress': {
        if (data.download || data.training_setup) run.fetching = fetchingOf(data)
        else {
          run.fetching = undefined
          run.seconds_left = numberOf(data.seconds_left) ?? null
        }
        break
      }
      case 'checkpoint':
        run.checkpoints++
        addLosses(run.loss, data.losses, lastStep, seconds, seconds)
        break
      case 'metrics': {
        const step = numberOf(data.step)
        if (step === undefined) break
        const from = seconds
        if (last_ms !== undefined) seconds += Math.max(0, at_ms - last_ms) / 1000
        last_ms = at_ms
        const loss = numberOf(data.loss)
        if (loss !== undefined) {
          addLosses(run.loss, data.losses ?? [[step, loss]], lastStep, from, seconds)
          lastStep = step
        }
        for (const name of figureNames) {
          const value = numberOf(data[name])
          if (value !== undefined) add(run.figures[name], { step, seconds, value })
        }
        if (data.best === true) run.best = run.figures.validation_loss.at(-1)
        const now = numberOf(data.epoch)
        if (now !== undefined && now > epoch) {
          epoch = now
          run.epochs.push({ step, seconds, epoch })
        }
        break
      }
      case 'sample':
        addSample(run.samples, data, event.message)
        break
    }
  }
  return run
}

/** Losses of several steps came together: their times are spread evenly over the time since those before. */
function addLosses(points: Point[], losses: unknown, lastStep: number, from: number, to: number): void {
  if (!Array.isArray(losses)) return
  const end = numberOf((losses.at(-1) as unknown[] | undefined)?.[0]) ?? 0
  for (const pair of losses) {
    const [step, value] = Array.isArray(pair) ? pair.map(numberOf) : []
    if (step === undefined || value === undefined) continue
    const share = end > lastStep ? Math.min(1, Math.max(0, (step - lastStep) / (end - lastStep))) : 1
    add(points, { step, seconds: from + share * (to - from), value })
  }
}

function addSample(samples: Sample[], data: Record<string, unknown>, message: string): void {
  const step = numberOf(data.step)
  if (step === undefined || !Array.isArray(data.prompt)) return
  const prompt = data.prompt.map((each: { role?: unknown; content?: unknown }) => ({
    role: textOf(each?.role),
    content: textOf(each?.content),
  }))
  const key = JSON.stringify(prompt)
  let sample = samples.find((each) => JSON.stringify(each.prompt) === key)
  if (!sample) {
    sample = { prompt, base: textOf(data.base), answers: [] }
    samples.push(sample)
  }
  while (sample.answers.length > 0 && sample.answers.at(-1)!.step >= step) sample.answers.pop()
  sample.answers.push({ step, answer: typeof data.answer === 'string' ? data.answer : message })
}

function fetchingOf(data: Record<string, unknown>): Run['fetching'] {
  const download = data.download as { progress?: unknown } | undefined
  if (download)
    return { what: 'The weights of the base are being downloaded', share: numberOf(download.progress) ?? null }
  const setup = data.training_setup as { ready?: boolean; done?: unknown; of?: unknown } | undefined
  if (!setup || setup.ready) return undefined
  const [done, of] = [numberOf(setup.done), numberOf(setup.of)]
  return {
    what: 'The training environment is being installed, once after the first start',
    share: done !== undefined && of ? done / of : null,
  }
}

/**
 * An exponential moving average, corrected for its start as Adam's is. `weight` of 0 to below 1: how much of the past
 * stays. 0 changes nothing.
 */
export function smooth(values: readonly number[], weight: number): number[] {
  if (weight <= 0) return [...values]
  let mean = 0
  let correction = 1
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value
    correction *= weight
    return mean / (1 - correction)
  })
}
