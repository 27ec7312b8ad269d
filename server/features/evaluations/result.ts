// The result of an evaluation, from the figures of its answers.

import type { Evaluation, EvaluationSide } from '../../../contract/evaluations.ts'
import type { GraderResult, JudgeUsage } from '../../../contract/graders.ts'
import { fromJson } from '../../platform/db/json.ts'
import { type GradingSoFar, type JudgeSums, latencyOf } from './grading.ts'
import { meanInterval, quantile, test } from './statistics.ts'
import type { AnswerRow, Figures, SideName } from './store.ts'

export type Result = NonNullable<Evaluation['result']>

/** What a grader gave to the answers of one side. */
interface GraderSum {
  answers: number
  errors: number
  score: number
  passed: number
  latencies: number[]
  last_error: string | null
}
interface SideSums {
  graders: Map<string, GraderSum>
  judges: JudgeSums
}
type GraderSums = Record<SideName, SideSums>

const noJudges = () => ({ requests: 0, prompt_tokens: 0, completion_tokens: 0, cost: 0 })

/** Adds up what each grader says of each answer. */
export async function sumGraders(
  answers: AsyncIterable<Pick<AnswerRow, 'side' | 'graders_json'>>,
): Promise<GraderSums> {
  const sideSums = (): SideSums => ({ graders: new Map(), judges: noJudges() })
  const sides: GraderSums = { model: sideSums(), baseline: sideSums() }
  for await (const { side, graders_json } of answers) {
    const { graders, judges } = sides[side]
    for (const [name, result] of Object.entries(fromJson(graders_json))) {
      if (!graders.has(name))
        graders.set(name, { answers: 0, errors: 0, score: 0, passed: 0, latencies: [], last_error: null })
      addResult(graders.get(name)!, result)
      if (result.judge) addJudge(judges, result.judge)
    }
  }
  return sides
}

function addResult(sum: GraderSum, { score, passed, error, latency_ms }: GraderResult): void {
  sum.answers++
  sum.score += score ?? 0
  if (passed) sum.passed++
  if (latency_ms !== undefined) sum.latencies.push(latency_ms)
  if (score !== null) return
  sum.errors++
  sum.last_error = error ?? null
}

/** `requests`: how many graders asked, a `multi` with several judges once. */
function addJudge(sum: JudgeSums, judge: JudgeUsage): void {
  sum.requests++
  sum.prompt_tokens += judge.prompt_tokens
  sum.completion_tokens += judge.completion_tokens
  sum.cost += judge.cost
}

/** What grading has come to, of an evaluation that resumes. */
export async function gradingSoFar(
  answers: AsyncIterable<Pick<AnswerRow, 'side' | 'graders_json'>>,
): Promise<GradingSoFar> {
  const soFar = { answers: 0, failed: 0, judges: noJudges() }
  for await (const { graders_json } of answers) {
    const results = Object.values(fromJson(graders_json))
    // A model that gave no answer is no failure of its graders.
    if (results.length === 0) continue
    soFar.answers++
    if (results.some(({ score }) => score === null)) soFar.failed++
    for (const { judge } of results) if (judge) addJudge(soFar.judges, judge)
  }
  return soFar
}

/** Null while nothing is scored. */
export function resultOf(
  figures: Figures[],
  sums: GraderSums,
  model: string | null,
  baseline: string | null,
): Result | null {
  if (figures.length === 0) return null
  const of = (side: SideName) => figures.filter((figure) => figure.side === side)
  const compared = differences(figures)
  const interval = meanInterval(compared.map(({ difference }) => difference))
  const count = (matches: (difference: number) => boolean) =>
    compared.filter(({ difference }) => matches(difference)).length
  return {
    model: sideOf(model, of('model'), sums.model),
    baseline: baseline === null ? null : sideOf(baseline, of('baseline'), sums.baseline),
    difference: interval && {
      ...interval,
      test,
      better: count((difference) => difference > 0),
      worse: count((difference) => difference < 0),
      equal: count((difference) => difference === 0),
    },
  }
}

/** The rows on which both models have a score. */
export function differences(
  figures: Pick<Figures, 'row' | 'side' | 'score' | 'ungraded'>[],
): { row: number; difference: number }[] {
  const scored = figures.filter(({ ungraded }) => ungraded === 0)
  const baseline = new Map(scored.filter(({ side }) => side === 'baseline').map(({ row, score }) => [row, score]))
  return scored.flatMap(({ row, side, score }) => {
    const other = baseline.get(row)
    return side === 'model' && other !== undefined ? [{ row, difference: score - other }] : []
  })
}

function sideOf(model: string | null, figures: Figures[], { graders, judges }: SideSums): EvaluationSide {
  const latencies = figures.flatMap(({ latency_ms }) => latency_ms ?? []).sort((a, b) => a - b)
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0)
  const passed = sum(figures.map((figure) => figure.passed))
  const scored = figures.filter(({ ungraded }) => ungraded === 0)
  const byGrader = <T>(value: (sum: GraderSum) => T) =>
    Object.fromEntries([...graders].map(([name, sum]) => [name, value(sum)]))
  // Rows without an answer, which score 0.
  const unanswered = figures.filter(({ ungraded, errors }) => errors > 0 && ungraded === 0).length
  return {
    model,
    score: meanInterval(scored.map(({ score }) => score)),
    rows: figures.length,
    passed,
    pass_rate: figures.length === 0 ? null : passed / figures.length,
    graders: byGrader(({ score, answers, errors }) => score / Math.max(1, answers - errors + unanswered)),
    passed_by_grader: byGrader((sum) => sum.passed),
    grader_figures: byGrader(({ answers, errors, score, latencies, last_error }) => ({
      answers,
      errors,
      score: answers > errors ? score / (answers - errors) : null,
      latency_ms: latencyOf(latencies),
      last_error,
    })),
    judges,
    ungraded: figures.length - scored.length,
    errors: sum(figures.map(({ errors }) => errors)),
    latency_ms: latencies.length === 0 ? null : { p50: quantile(latencies, 0.5), p95: quantile(latencies, 0.95) },
    prompt_tokens: sum(figures.map(({ prompt_tokens }) => prompt_tokens)),
    cached_tokens: sum(figures.map(({ cached_tokens }) => cached_tokens)),
    completion_tokens: sum(figures.map(({ completion_tokens }) => completion_tokens)),
  }
}
