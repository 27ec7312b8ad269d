// Scores one answer by all its graders.
import {
  type Grader,
  type GraderResult,
  type JudgeUsage,
  type SimpleGrader,
  scoreMax,
} from '../../../../contract/graders.ts'
import { type AskEndpoint, gradeByEndpoint } from './endpoint.ts'
import { compileFormula } from './formula.ts'
import { type AskJudge, gradeByJudge } from './judges.ts'
import type { Score } from './local.ts'
import { type FailureKind, GraderError, GraderFailure, GradingStopped, type Values } from './template.ts'
import { GraderTooSlow, type GradingBounds, type GradingThread } from './thread.ts'

/** What all graders gave to an answer. */
export interface Graded {
  /** Mean of the graders; null if one of them failed, which is no score of 0. */
  score: number | null
  /** Whether it passes each of them. */
  passed: boolean
  graders: Record<string, GraderResult>
  /** Says which grader failed, and why; null if none did. */
  error: string | null
}

type PythonGrader = Extract<SimpleGrader, { type: 'python' }>

export interface GradingTools {
  thread: GradingThread
  ask: AskJudge
  /** `ms`: without the wait for its turn. Throws GraderFailure. */
  python(grader: PythonGrader, values: Values, signal: AbortSignal): Promise<{ score: number; ms: number }>
  endpoint: AskEndpoint
  signal: AbortSignal
}

/** Time of all graders of one answer in the thread, which the answers of an evaluation share. */
const answer_ms = 10_000

type Timed = GraderResult & { latency_ms: number }
type BoundTools = GradingTools & { bounds: GradingBounds }

/**
 * The graders run at once. `given`: what else scored the answer, which counts like a grader; where that failed, no
 * grader is asked. Throws GraderError if one is too slow to grade any answer, GradingStopped, or the signal's reason.
 */
export async function gradeAnswer(
  graders: readonly Grader[],
  values: Values,
  tools: GradingTools,
  given: Record<string, GraderResult> = {},
): Promise<Graded> {
  const others = Object.entries(given)
  if (others.some(([, { failure }]) => failure !== undefined)) return gradedBy([], others)
  const bounds = { signal: tools.signal, left_ms: answer_ms }
  const settled = await Promise.allSettled(
    graders.map(async (grader) => [grader.name, await gradeOne(grader, values, { ...tools, bounds })] as const),
  )
  tools.signal.throwIfAborted()
  const thrown = settled.find((result) => result.status === 'rejected')
  if (thrown) throw thrown.reason
  const results = settled.map((result) => (result as PromiseFulfilledResult<readonly [string, GraderResult]>).value)
  return gradedBy(results, others)
}

type Named = readonly [string, GraderResult]

function gradedBy(byGraders: readonly Named[], others: readonly Named[]): Graded {
  const results = [...byGraders, ...others]
  const failed = results.find(([, { failure }]) => failure !== undefined)
  return {
    score: failed ? null : results.reduce((sum, [, { score }]) => sum + score!, 0) / results.length,
    passed: results.every(([, { passed }]) => passed),
    graders: Object.fromEntries(results),
    error: !failed
      ? null
      : others.includes(failed)
        ? (failed[1].error ?? null)
        : `The grader '${failed[0]}' failed: ${failed[1].error}`,
  }
}

async function gradeOne(grader: Grader, values: Values, tools: BoundTools): Promise<Timed> {
  if (grader.type !== 'multi') return gradeSimple(grader.name, grader, values, tools)
  const began = performance.now()
  const parts = await Promise.all(
    Object.entries(grader.graders).map(
      async ([name, part]) => [name, await gradeSimple(`${grader.name}.${name}`, part, values, tools)] as const,
    ),
  )
  const usages = parts.flatMap(([, { judge }]) => judge ?? [])
  const common = {
    latency_ms: latencySince(began),
    parts: Object.fromEntries(parts.map(([name, { score }]) => [name, score])),
    ...(usages.length > 0 && { judge: addUsages(usages) }),
  }
  const failed = parts.find(([, { failure }]) => failure !== undefined)
  if (failed) return { ...notScored(failed[1].failure!, `${failed[0]}: ${failed[1].error}`), ...common }
  const scores = Object.fromEntries(parts.map(([name, { score }]) => [name, score!]))
  const score = compileFormula(grader.calculate_output, Object.keys(scores))(scores)
  if (!isScore(score)) return { ...notScored('runtime', `calculate_output gives ${outOfBounds(score)}.`), ...common }
  const error = parts.find((part) => part[1].error !== undefined)
  return {
    score,
    passed: score >= grader.pass_threshold,
    ...(error && { error: `${error[0]}: ${error[1].error}` }),
    ...common,
  }
}

/** `name`: in messages. Never throws GraderFailure. */
async function gradeSimple(name: string, grader: SimpleGrader, values: Values, tools: BoundTools): Promise<Timed> {
  const began = performance.now()
  try {
    const result = await scoreOf(grader, values, tools)
    const { judge } = result
    if (!isScore(result.score)) throw new GraderFailure('form', `It gives ${outOfBounds(result.score)}.`, judge)
    return { ...result, latency_ms: result.latency_ms ?? latencySince(began) }
  } catch (error) {
    const latency_ms = latencySince(began)
    // It would take hours over all answers.
    if (error instanceof GraderTooSlow) throw new GraderError(`The grader '${name}' ${error.message}. Simplify it.`)
    if (error instanceof GradingStopped || !(error instanceof GraderError)) throw error
    if (!(error instanceof GraderFailure)) return { score: 0, passed: false, error: error.message, latency_ms }
    return { ...notScored(error.kind, error.message), latency_ms, ...(error.judge && { judge: error.judge }) }
  }
}

async function scoreOf(
  grader: SimpleGrader,
  values: Values,
  { thread, ask, python, endpoint, signal, bounds }: BoundTools,
): Promise<Score & { judge?: JudgeUsage; latency_ms?: number }> {
  switch (grader.type) {
    case 'label_model':
    case 'score_model':
      return gradeByJudge(grader, values, ask)
    case 'python': {
      const { score, ms } = await python(grader, values, signal)
      return { score, passed: score >= grader.pass_threshold, latency_ms: rounded(ms) }
    }
    case 'endpoint':
      return gradeByEndpoint(grader, values, endpoint, signal)
    default:
      return thread.grade(grader, values, bounds)
  }
}

/** Whether a score can be averaged and compared with others. */
export const isScore = (score: number) => Math.abs(score) <= scoreMax
/** What a score is that is none, in a message. */
export const outOfBounds = (score: number) =>
  Number.isFinite(score)
    ? `${score}, and a score is from -${scoreMax.toLocaleString('en')} to ${scoreMax.toLocaleString('en')}`
    : 'no finite number here'

const notScored = (failure: FailureKind, error: string) => ({ score: null, passed: false, error, failure })

/** To tenths of a millisecond. */
const rounded = (ms: number) => Math.round(10 * ms) / 10
const latencySince = (began: number) => rounded(performance.now() - began)

export const addUsages = (usages: readonly JudgeUsage[]): JudgeUsage => ({
  prompt_tokens: usages.reduce((sum, usage) => sum + usage.prompt_tokens, 0),
  completion_tokens: usages.reduce((sum, usage) => sum + usage.completion_tokens, 0),
  cost: usages.reduce((sum, usage) => sum + usage.cost, 0),
})
