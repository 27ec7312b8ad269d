// The result of an evaluation, from the figures of its answers.

import type { Evaluation, EvaluationSide } from '../../../contract/evaluations.ts'
import { fromJson } from '../../platform/db/json.ts'
import { meanInterval, quantile, test } from './statistics.ts'
import type { AnswerRow, Figures, SideName } from './store.ts'

export type Result = NonNullable<Evaluation['result']>

/** What each grader gave to the answers of one side. */
type SideSums = Map<string, { score: number; passed: number }>
type GraderSums = Record<SideName, SideSums>

/** Adds up what each grader says of each answer. */
export async function sumGraders(
  answers: AsyncIterable<Pick<AnswerRow, 'side' | 'graders_json'>>,
): Promise<GraderSums> {
  const sides: GraderSums = { model: new Map(), baseline: new Map() }
  for await (const { side, graders_json } of answers)
    for (const [name, { score, passed }] of Object.entries(fromJson(graders_json))) {
      const sums = sides[side].get(name) ?? { score: 0, passed: 0 }
      sides[side].set(name, { score: sums.score + score, passed: sums.passed + (passed ? 1 : 0) })
    }
  return sides
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

/** The rows that both models have answered. */
export function differences(figures: Pick<Figures, 'row' | 'side' | 'score'>[]): { row: number; difference: number }[] {
  const baseline = new Map(figures.filter(({ side }) => side === 'baseline').map(({ row, score }) => [row, score]))
  return figures.flatMap(({ row, side, score }) => {
    const other = baseline.get(row)
    return side === 'model' && other !== undefined ? [{ row, difference: score - other }] : []
  })
}

function sideOf(model: string | null, figures: Figures[], byGrader: SideSums): EvaluationSide {
  const latencies = figures.flatMap(({ latency_ms }) => latency_ms ?? []).sort((a, b) => a - b)
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0)
  const passed = sum(figures.map((figure) => figure.passed))
  return {
    model,
    score: meanInterval(figures.map(({ score }) => score)),
    rows: figures.length,
    passed,
    pass_rate: figures.length === 0 ? null : passed / figures.length,
    // A row without an answer scores 0.
    graders: Object.fromEntries([...byGrader].map(([name, { score }]) => [name, score / figures.length])),
    passed_by_grader: Object.fromEntries([...byGrader].map(([name, sums]) => [name, sums.passed])),
    errors: sum(figures.map(({ errors }) => errors)),
    latency_ms: latencies.length === 0 ? null : { p50: quantile(latencies, 0.5), p95: quantile(latencies, 0.95) },
    prompt_tokens: sum(figures.map(({ prompt_tokens }) => prompt_tokens)),
    cached_tokens: sum(figures.map(({ cached_tokens }) => cached_tokens)),
    completion_tokens: sum(figures.map(({ completion_tokens }) => completion_tokens)),
  }
}
