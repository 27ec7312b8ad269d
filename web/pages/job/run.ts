// What the events of a job say of its training, as points to draw and lists to show.
import type { JobEvent } from '../../../sdk/index.ts'

export interface Point {
  step: number
  /** Seconds of training until it: time in the queue, in a pause or after an interruption does not count. */
  seconds: number
  value: number
}

/** Figures of a step beside its loss. */
const figureNames = [
  'learning_rate',
  'grad_norm',
  'tokens_per_second',
  'memory_mb',
  'cpu_cores',
  'reward_margin',
  'reward_accuracy',
  'validation_loss',
  'validation_exact',
  'validation_accuracy',
  'validation_reward_margin',
  'validation_reward_accuracy',
  'reward',
  'validation_reward',
  'answer_tokens',
  'validation_answer_tokens',
  'reasoning_tokens',
  'validation_reasoning_tokens',
  'validation_kl',
  'turns',
  'environment_seconds',
  'cut_share',
  'validation_cut_share',
  'entropy',
  'clipped_share',
  'equal_share',
  'distinct_share',
  'probability_gap',
  'grader_failures',
  'grader_seconds',
  'grader_seconds_p95',
  'sampling_seconds',
  'grading_seconds',
  'update_seconds',
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
  /** The mean score of each grader, by its name. */
  graders: Record<string, { training: Point[]; validation: Point[] }>
  /** Steps at which an epoch begins, but for the first. */
  epochs: { step: number; seconds: number; epoch: number }[]
  best?: Point | undefined
  samples: Sample[]
  /** What the trainer does now: preparing, loading, training, converting. */
  phase?: string | undefined
  seconds_left?: number | null | undefined
  attempt?: number | undefined
  /** Weights or the training environment that are being fetched. */
  fetching?: { what: string; share: number | null } | undefined
  checkpoints: number
}

const emptyRun = (): Run => ({
  loss: [],
  figures: Object.fromEntries(figureNames.map((name) => [name, []])) as unknown as Run['figures'],
  graders: {},
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

/** Reads events as they come; `read` gives what all so far say, a new object each time. */
export class RunReader {
  #run = emptyRun()
  #seconds = 0
  /** Time of the event from which training time is counted on; none while nothing is trained. */
  #last_ms: number | undefined
  #lastStep = 0
  #epoch = 1
  #samples = new Map<string, Sample>()

  read(events: Iterable<JobEvent>): Run {
    for (const event of events) this.#add(event)
    return { ...this.#run }
  }

  #add({ type, data = {}, created_at, message }: JobEvent): void {
    const run = this.#run
    switch (type) {
      case 'status':
        this.#addStatus(data, Date.parse(created_at))
        break
      case 'progress':
        run.fetching = data.download || data.training_setup ? fetchingOf(data) : undefined
        if (!run.fetching) run.seconds_left = numberOf(data.seconds_left) ?? null
        break
      case 'checkpoint':
        run.checkpoints++
        addLosses(run.loss, data.losses, this.#lastStep, this.#seconds, this.#seconds)
        break
      case 'metrics':
        this.#addMetrics(data, Date.parse(created_at))
        break
      case 'sample':
        this.#addSample(data, message)
        break
    }
  }

  #addStatus(data: Record<string, unknown>, at_ms: number): void {
    const run = this.#run
    if (data.status === 'running') run.attempt = numberOf(data.attempt) ?? run.attempt
    const phase = textOf(data.phase)
    if (phase || data.status !== undefined) run.phase = phase || undefined
    if (phase !== 'training') this.#last_ms = undefined
    else this.#last_ms ??= at_ms
    run.fetching = undefined
    if (data.status !== undefined) run.seconds_left = undefined
  }

  #addMetrics(data: Record<string, unknown>, at_ms: number): void {
    const run = this.#run
    const step = numberOf(data.step)
    if (step === undefined) return
    const from = this.#seconds
    if (this.#last_ms !== undefined) this.#seconds += Math.max(0, at_ms - this.#last_ms) / 1000
    this.#last_ms = at_ms
    const seconds = this.#seconds
    const loss = numberOf(data.loss)
    if (loss !== undefined) {
      addLosses(run.loss, data.losses ?? [[step, loss]], this.#lastStep, from, seconds)
      this.#lastStep = step
    }
    for (const name of figureNames) {
      const value = numberOf(data[name])
      if (value !== undefined) add(run.figures[name], { step, seconds, value })
    }
    for (const [name, split, suffix] of [
      ['graders', 'training', ''],
      ['validation_graders', 'validation', ''],
      ['watched_graders', 'training', ' (watched)'],
      ['validation_watched_graders', 'validation', ' (watched)'],
    ] as const)
      for (const [its, score] of Object.entries((data[name] as Record<string, unknown> | undefined) ?? {})) {
        const value = numberOf(score)
        if (value === undefined) continue
        const grader = its + suffix
        run.graders[grader] ??= { training: [], validation: [] }
        add(run.graders[grader][split], { step, seconds, value })
      }
    if (data.best === true) run.best = (run.figures.validation_loss.at(-1) ?? run.figures.validation_reward.at(-1))!
    const epoch = numberOf(data.epoch)
    if (epoch !== undefined && epoch > this.#epoch) {
      this.#epoch = epoch
      run.epochs.push({ step, seconds, epoch })
    }
  }

  #addSample(data: Record<string, unknown>, message: string): void {
    const step = numberOf(data.step)
    if (step === undefined || !Array.isArray(data.prompt)) return
    const key = JSON.stringify(data.prompt)
    let sample = this.#samples.get(key)
    if (!sample) {
      const prompt = data.prompt.map((each: { role?: unknown; content?: unknown } | null) => ({
        role: textOf(each?.role),
        content: textOf(each?.content),
      }))
      sample = { prompt, base: textOf(data.base), answers: [] }
      this.#samples.set(key, sample)
      this.#run.samples.push(sample)
    }
    while (sample.answers.length > 0 && sample.answers.at(-1)!.step >= step) sample.answers.pop()
    sample.answers.push({ step, answer: typeof data.answer === 'string' ? data.answer : message })
  }
}

export const runOf = (events: Iterable<JobEvent>): Run => new RunReader().read(events)

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

/** Points of one line, at most: a screen has no more pixels. */
const drawnMax = 4000

/** The lowest and the highest point of each part of a long line, so that no spike is lost. */
export function thin(points: readonly Point[], most = drawnMax): readonly Point[] {
  if (points.length <= most) return points
  const size = Math.ceil(points.length / ((most - 1) / 2))
  const kept: Point[] = []
  for (let from = 0; from < points.length; from += size) {
    let low = from
    let high = from
    for (let at = from; at < Math.min(points.length, from + size); at++) {
      if (points[at]!.value < points[low]!.value) low = at
      if (points[at]!.value > points[high]!.value) high = at
    }
    kept.push(points[Math.min(low, high)]!)
    if (low !== high) kept.push(points[Math.max(low, high)]!)
  }
  if (kept.at(-1) !== points.at(-1)) kept.push(points.at(-1)!)
  return kept
}
