// Graders that are watched: their scores are reported beside the reward and are no part of it. None that fails ends a
// training.
import type { Grader, GradingLimits, SimpleGrader } from '../../../../contract/graders.ts'
import {
  DayUsedUp,
  type Evaluations,
  GraderError,
  type GraderValues,
  type GradingRun,
  type GradingSoFar,
} from '../../evaluations/index.ts'

export type WatchedScores = Record<string, number | null>

interface Options {
  grading: Evaluations['grading']
  account_id: string
  key_id: string | null
  /** Begins the ids of the requests to judges. */
  id: string
  graders: readonly Grader[]
  limits: GradingLimits
  soFar: GradingSoFar | undefined
  onWarning(message: string): void
}

const costly: readonly SimpleGrader['type'][] = ['label_model', 'score_model', 'python', 'endpoint']

/** Whether a grader asks no model, no code of users and no endpoint. */
const isCheap = (grader: Grader): boolean =>
  grader.type === 'multi'
    ? Object.values(grader.graders).every(({ type }) => !costly.includes(type))
    : !costly.includes(grader.type)

export class WatchedGraders {
  private readonly options: Options
  /** Those of each step, and those of evaluations alone. */
  private cheap: GradingRun | undefined
  private others: GradingRun | undefined

  constructor(options: Options) {
    this.options = options
    this.cheap = this.open(options.graders.filter(isCheap))
    this.others = this.open(options.graders.filter((grader) => !isCheap(grader)))
  }

  private open(graders: readonly Grader[]): GradingRun | undefined {
    if (graders.length === 0) return undefined
    const { grading, account_id, key_id, id, limits, soFar } = this.options
    return grading.open({ account_id, key_id, id, graders, limits: { ...limits, error_share_max: 1 }, soFar })
  }

  /** The scores of each answer, by grader; in a step those of the cheap ones. */
  async grade(
    samples: readonly GraderValues[],
    during: 'step' | 'evaluation',
    signal: AbortSignal,
  ): Promise<WatchedScores[]> {
    const scores = samples.map((): WatchedScores => ({}))
    if (this.cheap && !(await this.gradeBy(this.cheap, samples, scores, signal))) this.cheap = undefined
    if (during === 'evaluation' && this.others && !(await this.gradeBy(this.others, samples, scores, signal)))
      this.others = undefined
    return scores
  }

  /** Resolves with whether they are watched further. */
  private async gradeBy(
    run: GradingRun,
    samples: readonly GraderValues[],
    scores: WatchedScores[],
    signal: AbortSignal,
  ): Promise<boolean> {
    try {
      for (const [index, { graders }] of (await run.gradeSamples(samples, { signal })).entries())
        for (const [name, { score }] of Object.entries(graders)) scores[index]![name] = score
      return true
    } catch (error) {
      signal.throwIfAborted()
      const { onWarning } = this.options
      if (error instanceof DayUsedUp) {
        onWarning('The requests of today are used up, which judges take too: this evaluation has no watched graders.')
        return true
      }
      if (!(error instanceof GraderError)) throw error
      onWarning(`Graders are no longer watched: ${error.message}`)
      await run.close()
      return false
    }
  }

  /** What its judges took, for a run that resumes. */
  report(): GradingSoFar | undefined {
    return this.others?.report()
  }

  async close(): Promise<void> {
    await this.cheap?.close()
    await this.others?.close()
  }
}
