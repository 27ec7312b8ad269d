// Answers of the engine to prompts, with the scores of the graders.
import { setTimeout as sleep } from 'node:timers/promises'
import { CommandError } from '../../../platform/trainer/command-trainer.ts'
import {
  DayUsedUp,
  type EvaluationItem,
  type Graded,
  type GradingRun,
  type GradingSoFar,
} from '../../evaluations/index.ts'
import type { Target } from '../../serving/index.ts'
import type { Emit } from './reports.ts'
import type { GradedGroup } from './rollouts.ts'
import { gradedValues, type Play, PromptRefused, type SamplingOptions, sampleGroups } from './sampling.ts'
import type { WatchedGraders } from './watched.ts'

export interface GradedBatch {
  groups: GradedGroup[]
  seconds: { sampling: number; grading: number }
  /** Time of grading of each answer. */
  grader_ms: number[]
}

interface Options {
  sampling: SamplingOptions
  grading: GradingRun
  watched: Pick<WatchedGraders, 'grade'>
  /** Throws PromptRefused for a row that cannot be scored. */
  requireScore(item: EvaluationItem): void
  /** Makes episodes of the answers to rows with an environment. */
  play(target: Target): Play
  emit: Emit
  signal: AbortSignal
}

const temperature = 1

export class GradedAnswers {
  private readonly options: Options
  /** Rows whose refusal was reported. */
  private readonly refused = new Set<number>()
  private lastRefusal = ''

  constructor(options: Options) {
    this.options = options
  }

  /** Samples `n` answers to each prompt and grades them. Prompts that the model cannot be asked are left out. */
  async of(
    target: Target,
    items: readonly EvaluationItem[],
    { n, seed, during }: { n: number; seed: string; during: 'step' | 'evaluation' },
  ): Promise<GradedBatch> {
    const { sampling, signal, watched } = this.options
    const began = performance.now()
    const options = { n, seed, temperature, play: this.options.play(target) }
    const scored = items.filter((item) => this.canBeScored(item))
    const groups = await sampleGroups(sampling, target, scored, options, signal, (row, why) => this.refuse(row, why))
    const sampled = performance.now()
    const samples = groups.flatMap(({ item, answers }) => answers.map((answer) => gradedValues(item, answer)))
    const graded = await this.grade(samples)
    const beside = await watched.grade(samples, during, signal)
    const seconds = { sampling: (sampled - began) / 1000, grading: (performance.now() - sampled) / 1000 }
    let next = 0
    const grader_ms: number[] = []
    const gradedGroups = groups.map(({ row, prompt, answers }) => ({
      row,
      prompt,
      answers: answers.map((answer) => {
        const { score, graders, error } = graded[next]!
        grader_ms.push(Math.max(0, ...Object.values(graders).map(({ latency_ms = 0 }) => latency_ms)))
        return { ...answer, score, graders, error, watched: beside[next++]! }
      }),
    }))
    return { groups: gradedGroups, seconds, grader_ms }
  }

  /** What grading has taken since the job began. */
  soFar(): GradingSoFar {
    const { answers, failed, judges } = this.options.grading.report()
    return { answers, failed, judges }
  }

  /** Counts what an attempt before this one has graded. */
  continueFrom(soFar: GradingSoFar): void {
    this.options.grading.continueFrom(soFar)
  }

  /** Waits for tomorrow where judges have used up the requests of today. */
  private async grade(samples: Parameters<GradingRun['gradeSamples']>[0]) {
    const { grading, emit, signal } = this.options
    const graded: (Graded | undefined)[] = []
    for (;;) {
      try {
        return await grading.gradeSamples(samples, { signal, graded })
      } catch (error) {
        if (!(error instanceof DayUsedUp)) throw error
        const until = new Date(error.run_at).toISOString()
        emit('warning', `The requests of today are used up, which judges take too: the job waits until ${until}.`, {
          code: 'daily_limit_reached',
        })
        await sleep(Math.max(0, error.run_at - Date.now()), undefined, { signal })
      }
    }
  }

  private canBeScored(item: EvaluationItem): boolean {
    try {
      this.options.requireScore(item)
      return true
    } catch (error) {
      if (!(error instanceof PromptRefused)) throw error
      this.refuse(item.row, error.message)
      return false
    }
  }

  /** Throws if the model could be asked none of the prompts. */
  requireSome(groups: readonly GradedGroup[], prompts: string): void {
    if (groups.length > 0) return
    const message = `The model can be asked none of the ${prompts}. The last, ${this.lastRefusal}`
    throw new CommandError('dataset_invalid', message, {})
  }

  private refuse(row: number, why: string): void {
    this.lastRefusal = `row ${row}: ${why}`
    if (this.refused.has(row)) return
    this.refused.add(row)
    this.options.emit('warning', `Row ${row} is left out: ${why}`, { row })
  }
}
