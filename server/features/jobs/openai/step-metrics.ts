// The metrics of each step of a job, from its events: the result file of OpenAI's API.
import { fromJson } from '../../../platform/db/json.ts'
import type { Db } from '../../../platform/db/open.ts'
import * as store from '../store.ts'

export interface StepMetrics {
  train_loss?: number
  valid_loss?: number
  valid_mean_token_accuracy?: number
  train_mean_reward?: number
  full_valid_mean_reward?: number
}

/** By step, in order. A resumed attempt repeats steps: the last one counts. */
export async function metricsByStep(db: Db, job_id: string): Promise<Map<number, StepMetrics>> {
  const byStep = new Map<number, StepMetrics>()
  const merge = (step: number, metrics: StepMetrics) => byStep.set(step, { ...byStep.get(step), ...metrics })
  for (const data of await store.lossEvents(db, job_id)) {
    for (const [step, train_loss] of data.losses ?? []) merge(step, { train_loss })
    if (data.step !== undefined && data.loss !== undefined) merge(data.step, { train_loss: data.loss })
    if (data.step !== undefined && data.reward !== undefined) merge(data.step, { train_mean_reward: data.reward })
  }
  for (const { step, data_json } of await store.evaluations(db, job_id)) {
    const { validation_loss, validation_accuracy, validation_reward } = fromJson(data_json)
    merge(step, {
      ...(validation_loss !== undefined && { valid_loss: validation_loss }),
      ...(validation_accuracy !== undefined && { valid_mean_token_accuracy: validation_accuracy }),
      ...(validation_reward !== undefined && { full_valid_mean_reward: validation_reward }),
    })
  }
  return new Map([...byStep].sort(([a], [b]) => a - b))
}

const columns = ['train_loss', 'train_accuracy', 'valid_loss', 'valid_mean_token_accuracy'] as const
const rewardColumns = ['train_mean_reward', 'full_valid_mean_reward'] as const

/**
 * The result file: CSV in base64, as that API has it, with rewards where there are some. The accuracy in training is
 * not measured.
 */
export function resultFileOf(metrics: Map<number, StepMetrics>): string {
  const hasRewards = [...metrics.values()].some((step) => rewardColumns.some((name) => step[name] !== undefined))
  const names = [...columns, ...(hasRewards ? rewardColumns : [])]
  const rows = [...metrics].map(([step, values]) => {
    const cells = names.map((name) => (name === 'train_accuracy' ? '' : (values[name]?.toFixed(5) ?? '')))
    return [step, ...cells].join(',')
  })
  return Buffer.from(`${[`step,${names}`, ...rows].join('\n')}\n`).toString('base64')
}
