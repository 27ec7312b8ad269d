// Models that judge: `label_model` and `score_model`. The engine constrains the judge's answer to a form, so that no
// text has to be searched.
import { contentText, type JudgeUsage, type SimpleGrader } from '../../../../contract/graders.ts'
import type { Score } from './local.ts'
import { fill, GraderFailure, type Values } from './template.ts'

export type JudgeGrader = Extract<SimpleGrader, { type: 'label_model' | 'score_model' }>
type Judge<T extends JudgeGrader['type']> = Extract<JudgeGrader, { type: T }>

/**
 * Asks a model. `ms`: without the wait for its turn. Throws GraderFailure if it does not answer, or GradingStopped if
 * the budget is spent.
 */
export type AskJudge = (request: Record<string, unknown>) => Promise<{ text: string; usage: JudgeUsage; ms: number }>

/** Longest answer of a judge, in tokens: a label or a number in a form. */
const judgeTokens = 64

export async function gradeByJudge(
  grader: JudgeGrader,
  values: Values,
  ask: AskJudge,
): Promise<Score & { judge: JudgeUsage; latency_ms: number }> {
  const isLabel = grader.type === 'label_model'
  const { text, usage, ms } = await ask(isLabel ? labelRequest(grader, values) : scoreRequest(grader, values))
  try {
    return { ...(isLabel ? labelOf(grader, text) : scoreOf(grader, text)), judge: usage, latency_ms: Math.round(ms) }
  } catch (error) {
    throw error instanceof GraderFailure ? new GraderFailure(error.kind, error.message, usage) : error
  }
}

const request = ({ model, input }: JudgeGrader, values: Values, result: object) => ({
  model,
  messages: input.map(({ role, content }) => ({ role, content: fill(contentText(content), values) })),
  temperature: 0,
  max_tokens: judgeTokens,
  response_format: {
    type: 'json_schema',
    json_schema: {
      name: 'result',
      strict: true,
      schema: { type: 'object', properties: { result }, required: ['result'], additionalProperties: false },
    },
  },
})

const labelRequest = (grader: Judge<'label_model'>, values: Values) => request(grader, values, { enum: grader.labels })

function scoreRequest(grader: Judge<'score_model'>, values: Values) {
  const { temperature, top_p, seed, max_completions_tokens } = grader.sampling_params ?? {}
  return {
    ...request(grader, values, { type: 'number' }),
    ...(temperature != null && { temperature }),
    ...(top_p != null && { top_p }),
    ...(seed != null && { seed }),
    ...(max_completions_tokens != null && { max_tokens: Math.max(judgeTokens, max_completions_tokens) }),
  }
}

function resultOf(text: string): unknown {
  try {
    return (JSON.parse(text) as { result: unknown }).result
  } catch {
    throw new GraderFailure('form', 'The judge gave no result in the form that it was asked for.')
  }
}

function labelOf(grader: Judge<'label_model'>, text: string): Score {
  const label = resultOf(text)
  if (typeof label !== 'string' || !grader.labels.includes(label))
    throw new GraderFailure('form', 'The judge gave none of the labels.')
  const passed = grader.passing_labels.includes(label)
  return { score: passed ? 1 : 0, passed, label }
}

function scoreOf({ range: [low, high], pass_threshold }: Judge<'score_model'>, text: string): Score {
  const judged = resultOf(text)
  if (typeof judged !== 'number' || !Number.isFinite(judged))
    throw new GraderFailure('form', 'The judge gave no number.')
  const score = Math.min(high, Math.max(low, judged))
  return { score: (score - low) / (high - low), passed: score >= (pass_threshold ?? (low + high) / 2) }
}
