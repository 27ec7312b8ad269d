// Whether the evaluation of a new model lets it serve.
import type { Gate } from '../../../contract/deployments.ts'
import type { Evaluation } from '../../../contract/evaluations.ts'
import type { EndedEvaluation } from '../evaluations/index.ts'

/** The model that is to serve next. */
export interface Pending {
  model: string
  evaluation: string
  gate: Gate
}

const rounded = (score: number) => score.toFixed(3)

/** Whether the gate lets the model serve, and why. */
export function decide(
  gate: Gate,
  { status, error_json, result_json }: Pick<EndedEvaluation, 'status' | 'error_json' | 'result_json'>,
): { passes: boolean; reason: string } {
  if (status === 'cancelled') return { passes: false, reason: 'The evaluation was cancelled.' }
  if (status === 'failed') {
    const { message } = JSON.parse(error_json ?? '{"message":"no reason is known"}') as { message: string }
    return { passes: false, reason: `The evaluation failed: ${message}` }
  }
  const result = JSON.parse(result_json ?? 'null') as Evaluation['result']
  const score = result?.model.score?.mean
  if (score === undefined) return { passes: false, reason: 'No row was scored.' }
  if (gate.min_score !== undefined && score < gate.min_score)
    return { passes: false, reason: `Its score is ${rounded(score)}, below ${gate.min_score}.` }
  const difference = result?.difference
  if (gate.not_worse_than_current && difference) {
    const { mean, high, test } = difference
    // One row has no interval: then its difference decides.
    if ((high ?? mean) < 0)
      return { passes: false, reason: `It is worse than the current model by ${rounded(-mean)} (${test}).` }
  }
  const compared = difference
    ? `, ${difference.mean >= 0 ? '+' : ''}${rounded(difference.mean)} to the current model`
    : ''
  return { passes: true, reason: `Its score is ${rounded(score)}${compared}.` }
}
