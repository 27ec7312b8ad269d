// Scores one answer by all graders of an evaluation.
import { contentText, type Grader, type SimpleGrader } from '../../../../contract/graders.ts'
import { compileFormula } from './formula.ts'
import type { Score } from './local.ts'
import { fill, GraderError, type Values } from './template.ts'
import { GraderTooSlow, type GradingBounds, type GradingThread } from './thread.ts'

/** Asks a model of the service; resolves with its text. */
type AskJudge = (request: Record<string, unknown>) => Promise<string>

export interface Graded {
  score: number
  passed: boolean
  graders: Record<string, Score>
}

interface Tools {
  thread: GradingThread
  ask: AskJudge
  signal: AbortSignal
}

/** Time of all graders of one answer in the thread, which the answers of an evaluation share. */
const answer_ms = 10_000

const failed = (error: unknown): Score => {
  if (!(error instanceof GraderError)) throw error
  return { score: 0, passed: false, error: error.message }
}

/** The score of a row is the mean of its graders; it passes if it passes each of them. */
export async function gradeAnswer(graders: readonly Grader[], values: Values, tools: Tools): Promise<Graded> {
  const scores: Record<string, Score> = {}
  const bounds = { signal: tools.signal, left_ms: answer_ms }
  for (const grader of graders) {
    scores[grader.name] = await gradeOne(grader, values, { ...tools, bounds }).catch((error) => {
      // It would take hours over all rows.
      if (error instanceof GraderTooSlow)
        throw new GraderError(`The grader '${grader.name}' ${error.message}. Simplify it.`)
      return failed(error)
    })
  }
  const all = Object.values(scores)
  return {
    score: all.reduce((sum, { score }) => sum + score, 0) / all.length,
    passed: all.every(({ passed }) => passed),
    graders: scores,
  }
}

type BoundTools = Tools & { bounds: GradingBounds }

async function gradeOne(grader: Grader, values: Values, tools: BoundTools): Promise<Score> {
  if (grader.type !== 'multi') return gradeSimple(grader, values, tools)
  const scores: Record<string, number> = {}
  for (const [name, part] of Object.entries(grader.graders))
    scores[name] = (await gradeSimple(part, values, tools)).score
  const score = compileFormula(grader.calculate_output, Object.keys(scores))(scores)
  if (!Number.isFinite(score)) throw new GraderError('calculate_output gives no finite number here.')
  return { score, passed: score >= grader.pass_threshold }
}

function gradeSimple(grader: SimpleGrader, values: Values, { thread, ask, bounds }: BoundTools): Promise<Score> {
  if (grader.type === 'label_model') return gradeByLabel(grader, values, ask)
  if (grader.type === 'score_model') return gradeByScore(grader, values, ask)
  return thread.grade(grader, values, bounds)
}

type Judge<T extends 'label_model' | 'score_model'> = Extract<SimpleGrader, { type: T }>

/** Longest answer of a judge, in tokens: a label or a number in a form. */
const judgeTokens = 64

/** The engine constrains the judge's answer to the form, so that no text has to be searched. */
const judgeRequest = ({ model, input }: Judge<'label_model' | 'score_model'>, values: Values, result: object) => ({
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

function resultOf(text: string): unknown {
  try {
    return (JSON.parse(text) as { result: unknown }).result
  } catch {
    throw new GraderError('The judge gave no result in the form that it was asked for.')
  }
}

async function gradeByLabel(grader: Judge<'label_model'>, values: Values, ask: AskJudge): Promise<Score> {
  const label = resultOf(await ask(judgeRequest(grader, values, { enum: grader.labels })))
  if (typeof label !== 'string' || !grader.labels.includes(label))
    throw new GraderError('The judge gave none of the labels.')
  const passed = grader.passing_labels.includes(label)
  return { score: passed ? 1 : 0, passed, label }
}

async function gradeByScore(grader: Judge<'score_model'>, values: Values, ask: AskJudge): Promise<Score> {
  const [low, high] = grader.range
  const { temperature, top_p, seed, max_completions_tokens } = grader.sampling_params ?? {}
  const request = {
    ...judgeRequest(grader, values, { type: 'number' }),
    ...(temperature != null && { temperature }),
    ...(top_p != null && { top_p }),
    ...(seed != null && { seed }),
    ...(max_completions_tokens != null && { max_tokens: Math.max(judgeTokens, max_completions_tokens) }),
  }
  const judged = resultOf(await ask(request))
  if (typeof judged !== 'number' || !Number.isFinite(judged)) throw new GraderError('The judge gave no number.')
  const score = Math.min(high, Math.max(low, judged))
  return { score: (score - low) / (high - low), passed: score >= (grader.pass_threshold ?? (low + high) / 2) }
}
