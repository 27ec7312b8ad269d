// Whether the evaluation of a new model lets it serve.
import type { Deployment, Gate } from '../../../contract/deployments.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Trx } from '../../platform/db/open.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import type { EndedEvaluation } from '../evaluations/index.ts'
import * as store from './store.ts'

/** The model that is to serve next. */
export type Pending = NonNullable<Deployment['pending']>

const rounded = (score: number) => score.toFixed(3)

/** Whether the gate lets the model serve, and why. */
export function decide(
  gate: Gate,
  { status, error_json, result_json }: Pick<EndedEvaluation, 'status' | 'error_json' | 'result_json'>,
): { passes: boolean; reason: string } {
  if (status === 'cancelled') return { passes: false, reason: 'The evaluation was cancelled.' }
  if (status === 'failed') {
    const message = fromJson(error_json)?.message ?? 'no reason is known'
    return { passes: false, reason: `The evaluation failed: ${message}` }
  }
  const result = fromJson(result_json)
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

/** When the evaluation of a gate ends: lets a worker switch the deployment, or records that the model was refused. */
export const createGateDecision =
  (queue: Queue, now: () => number) =>
  async (trx: Trx, evaluation: EndedEvaluation): Promise<void> => {
    const deployment = await store.findPending(trx, evaluation.account_id, evaluation.id)
    if (!deployment) return
    const { gate, model } = fromJson(deployment.pending_json!)
    const { passes, reason } = decide(gate, evaluation)
    if (passes) return await queue.enqueue(trx, store.queueKind, deployment.id, deployment.account_id)
    await store.update(trx, deployment.id, { pending_json: null, updated_at: now() })
    const refused = { evaluation_id: evaluation.id, reason }
    await store.recordChange(trx, deployment, 'gate_refused', model, now(), refused)
  }
