// The result of an evaluation, from the figures of its answers.
import type { Evaluation, Side } from '../../contract/evaluations.ts'
import type { Score } from './graders/local.ts'
import { meanInterval, quantile, test } from './statistics.ts'
import type { Figures, SideName } from './store.ts'

export type Result = NonNullable<Evaluation['result']>

/** Null while nothing is scored. */
export function resultOf(figures: Figures[], model: string | null, baseline: string | null): Result | null {
  if (figures.length === 0) return null
  const of = (side: SideName) => figures.filter((each) => each.side === side)
  const compared = differences(figures)
  const interval = meanInterval(compared.map(({ difference }) => difference))
  const count = (matches: (difference: number) => boolean) =>
    compared.filter(({ difference }) => matches(difference)).length
  return {
    model: sideOf(model, of('model')),
    baseline: baseline === null ? null : sideOf(baseline, of('baseline')),
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

function sideOf(model: string | null, figures: Figures[]): Side {
  const byGrader = new Map<string, { score: number; passed: number }>()
  for (const { graders_json } of figures)
    for (const [name, { score, passed }] of Object.entries(JSON.parse(graders_json) as Record<string, Score>)) {
      const sums = byGrader.get(name) ?? { score: 0, passed: 0 }
      byGrader.set(name, { score: sums.score + score, passed: sums.passed + (passed ? 1 : 0) })
    }
  const latencies = figures.flatMap(({ latency_ms }) => latency_ms ?? []).sort((a, b) => a - b)
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0)
  const passed = sum(figures.map((each) => each.passed))
  return {
    model,
    score: meanInterval(figures.map(({ score }) => score)),
    rows: figures.length,
    passed,
    pass_rate: figures.length === 0 ? null : passed / figures.length,
    // Of a row without an answer no grader has a score: it counts as 0.
    graders: Object.fromEntries([...byGrader].map(([name, { score }]) => [name, score / figures.length])),
    passed_by_grader: Object.fromEntries([...byGrader].map(([name, sums]) => [name, sums.passed])),
    errors: figures.filter(({ error_json }) => error_json !== null).length,
    latency_ms: latencies.length === 0 ? null : { p50: quantile(latencies, 0.5), p95: quantile(latencies, 0.95) },
    prompt_tokens: sum(figures.map(({ prompt_tokens }) => prompt_tokens)),
    cached_tokens: sum(figures.map(({ cached_tokens }) => cached_tokens)),
    completion_tokens: sum(figures.map(({ completion_tokens }) => completion_tokens)),
  }
}
