// Grading of many answers by the same graders, for evaluations and for jobs that learn from graders: judges asked with
// a bound on concurrency and a budget, failures counted, latency measured.
import type { Logger } from 'pino'
import type { ChatResponse } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import {
  type Grader,
  type GraderFigures,
  type GraderResult,
  type GradingLimits,
  gradingDefaults,
} from '../../../contract/graders.ts'
import { createFairQueue } from '../../../lib/fair-queue.ts'
import { randomBase62 } from '../../../lib/ids.ts'
import { endOfDay } from '../../../lib/utc-day.ts'
import type { Limits } from '../../platform/limits/index.ts'
import { PostError } from '../../platform/outbound/post.ts'
import type { Endpoints, SignedRequest } from '../../platform/outbound/signed-post.ts'
import type { Turn } from '../../platform/queue/worker.ts'
import type { Accounts } from '../accounts/index.ts'
import { askInBackground, backgroundOperations, type Inference } from '../inference/index.ts'
import { addUsages, type Graded, type GradingTools, gradeAnswer } from './graders/grade.ts'
import type { AskJudge } from './graders/judges.ts'
import type { PythonGraders } from './graders/python/pool.ts'
import { GraderFailure, GradingStopped, type Values } from './graders/template.ts'
import { createGradingThread, type GradingThread } from './graders/thread.ts'
import { quantile } from './statistics.ts'

/** What judges took. `cost`: in the currency of the prices. */
export type JudgeSums = { requests: number; prompt_tokens: number; completion_tokens: number; cost: number }

/** The account has no requests left for today: its work is to be put off until `run_at`. */
export class DayUsedUp extends Error {
  readonly run_at: number
  constructor(run_at: number) {
    super('the requests of the day are used up')
    this.run_at = run_at
  }
}

export interface GradingReport {
  /** Answers that were graded, and of these the ones without a score because a grader failed. */
  answers: number
  failed: number
  graders: Record<string, GraderFigures>
  judges: JudgeSums
}

/** What is known of a run when it resumes: `failed` of `answers` have no score, and what judges took. */
export type GradingSoFar = Pick<GradingReport, 'answers' | 'failed' | 'judges'>

export type GradedSample = Values & { given?: Record<string, GraderResult> }

export interface GradingRun {
  /**
   * Scores one answer; `given` are scores of something else, which count like those of graders. Throws GradingStopped
   * (too many failed, or the budget is spent), GraderError (a grader that is too slow to grade any answer), DayUsedUp,
   * TurnOver, or the signal's reason.
   */
  grade(values: Values, signal: AbortSignal, given?: Record<string, GraderResult>): Promise<Graded>
  /**
   * Scores answers at once and resolves in their order. Throws what `grade` throws. `graded` gets each result as it
   * comes; what it has already is not graded again, so that a call after DayUsedUp continues.
   */
  gradeSamples(
    samples: readonly GradedSample[],
    options: { signal: AbortSignal; graded?: (Graded | undefined)[] },
  ): Promise<Graded[]>
  /** Counts from what is known of the same work, in place of what this run has counted. */
  continueFrom(soFar: GradingSoFar): void
  /** Throws GradingStopped if all answers, however few, are without a score. */
  requireScores(): void
  report(): GradingReport
  close(): Promise<void>
}

export interface NewGradingRun {
  account_id: string
  /** The key that judges are metered on; null: none. */
  key_id: string | null
  /** Begins the ids of the requests to judges. */
  id: string
  graders: readonly Grader[]
  limits?: GradingLimits
  soFar?: GradingSoFar | undefined
  /** The turn of the queue worker that grades. By default other servers may be asked at once. */
  turn?: Turn | undefined
}

interface Options {
  inference: Pick<Inference, 'answer' | 'isElsewhere' | 'isolation' | 'pricesOf'>
  accounts: Pick<Accounts, 'tierOf'>
  limits: Pick<Limits, 'countBatchRequest'>
  python: Pick<PythonGraders, 'grade'>
  endpoints: Pick<Endpoints, 'post'>
  log: Logger
  now(): number
}

/** Judges of a run that are asked at once, and answers that are graded at once. */
const judgesAtOnce = 8
const answersAtOnce = 32
/** Answers before the share of failures says something. */
const answersBeforeShare = 10
/** Latencies of a grader that are kept for its 95th percentile: the latest. */
const latenciesMax = 10_000

/** For work that has no turn of a queue: nobody waits behind it. */
const noTurn: Turn = {
  interrupted: new AbortController().signal,
  suspended: new AbortController().signal,
  yield: () => true,
  hasYielded: true,
}

export class Grading {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  /** Close it when everything is graded. */
  open(run: NewGradingRun): GradingRun {
    return new OpenGradingRun(this.options, run)
  }
}

class OpenGradingRun implements GradingRun {
  private readonly options: Options
  private readonly run: NewGradingRun
  private readonly limits: GradingLimits
  private readonly thread: GradingThread = createGradingThread()
  private readonly judgeInTurn = createFairQueue({ at_once: judgesAtOnce })
  private readonly figures = new Map<string, Figures>()
  private judges: JudgeSums = { requests: 0, prompt_tokens: 0, completion_tokens: 0, cost: 0 }
  private answers = 0
  private failed = 0
  private lastError = ''
  private calls = 0
  /** Tells the requests of a run that resumes from those before: usage is recorded once an id. */
  private readonly opened = randomBase62(6)

  constructor(options: Options, run: NewGradingRun) {
    this.options = options
    this.run = run
    this.limits = run.limits ?? gradingDefaults
    if (run.soFar) this.continueFrom(run.soFar)
    for (const { name } of run.graders) this.figures.set(name, new Figures())
  }

  async grade(values: Values, signal: AbortSignal, given?: Record<string, GraderResult>): Promise<Graded> {
    const ask: AskJudge = (request) => this.judgeInTurn('', () => this.ask(request, signal), signal)
    const { python, endpoints } = this.options
    const { account_id, graders } = this.run
    const tools = {
      thread: this.thread,
      ask,
      python: ({ source }, { sample, item }, signal) =>
        python.grade({ account_id, source }, { sample: withChoices(sample), item }, signal),
      endpoint: ({ url, secret_name, timeout_seconds }, body, signal) =>
        askEndpoint(endpoints, { account_id, url, secret_name, body, timeout_ms: 1000 * timeout_seconds }, signal),
      signal,
    } satisfies GradingTools
    const graded = await gradeAnswer(graders, values, tools, given)
    for (const [name, result] of Object.entries(graded.graders)) this.figuresOf(name).add(result)
    this.answers++
    if (graded.error !== null) {
      this.failed++
      this.lastError = graded.error
    }
    this.requireShare(graded.error)
    return graded
  }

  async gradeSamples(
    samples: readonly GradedSample[],
    { signal, graded = [] }: { signal: AbortSignal; graded?: (Graded | undefined)[] },
  ): Promise<Graded[]> {
    const failure = new AbortController()
    const either = AbortSignal.any([signal, failure.signal])
    let next = 0
    const work = async () => {
      while (next < samples.length && !either.aborted) {
        const index = next++
        const { given, ...values } = samples[index]!
        graded[index] ??= await this.grade(values, either, given)
      }
    }
    const atOnce = Math.min(answersAtOnce, samples.length)
    await Promise.all(Array.from({ length: atOnce }, () => work().catch((error) => failure.abort(error))))
    either.throwIfAborted()
    return graded as Graded[]
  }

  continueFrom({ answers, failed, judges }: GradingSoFar): void {
    this.answers = answers
    this.failed = failed
    this.judges = { ...judges }
  }

  private figuresOf(name: string): Figures {
    const figures = this.figures.get(name) ?? new Figures()
    this.figures.set(name, figures)
    return figures
  }

  report(): GradingReport {
    const { answers, failed, judges } = this
    const graders = Object.fromEntries([...this.figures].map(([name, figures]) => [name, figures.toResponse()]))
    return { answers, failed, graders, judges: { ...judges } }
  }

  close(): Promise<void> {
    return this.thread.close()
  }

  private async ask(request: Record<string, unknown>, signal: AbortSignal): ReturnType<AskJudge> {
    const { inference, accounts, limits, log, now } = this.options
    const { account_id, key_id, id, turn = noTurn } = this.run
    this.requireBudget()
    const tier = await accounts.tierOf(account_id)
    if (!(await limits.countBatchRequest({ account_id, tier }))) throw new DayUsedUp(endOfDay(now()))
    const asking = {
      caller: { account_id, key_id: key_id ?? '' },
      request_id: `${id}.${this.opened}.${this.calls++}`,
      body: request,
    }
    const prices = await inference.pricesOf(account_id, request.model as string).catch((error) => {
      throw error instanceof ApiError ? noAnswer(error) : error
    })
    const began = performance.now()
    const answered = await askInBackground({ inference, log, turn }, backgroundOperations.chat, asking, signal)
    if ('error' in answered) throw noAnswer(answered.error)
    const { prompt_tokens, completion_tokens } = answered.counts
    const cost =
      (prompt_tokens * prices.input_per_million_tokens + completion_tokens * prices.output_per_million_tokens) / 1e6
    const usage = { prompt_tokens, completion_tokens, cost }
    Object.assign(this.judges, addUsages([this.judges, usage]), { requests: this.judges.requests + 1 })
    const { choices } = JSON.parse(answered.bytes.toString('utf8')) as ChatResponse
    return { text: choices[0]!.message.content ?? '', usage, ms: performance.now() - began }
  }

  /** Requests in flight may take more: up to `judgesAtOnce`. */
  private requireBudget(): void {
    const { judge_tokens_max, judge_cost_max } = this.limits
    const { prompt_tokens, completion_tokens, cost } = this.judges
    const tokens = prompt_tokens + completion_tokens
    const stop = (used: string, field: string) =>
      new GradingStopped(
        'judge_budget_spent',
        `The judges have used ${used}, the budget of ${field}. Raise it, take a cheaper judge, or grade fewer answers.`,
      )
    if (judge_tokens_max !== undefined && tokens >= judge_tokens_max) throw stop(`${tokens} tokens`, 'judge_tokens_max')
    if (judge_cost_max !== undefined && cost >= judge_cost_max)
      throw stop(`tokens for ${cost.toFixed(4)}`, 'judge_cost_max')
  }

  requireScores(): void {
    const { answers, failed, lastError } = this
    if (answers === 0 || failed < answers) return
    const last = lastError === '' ? '' : ` The last: ${lastError.slice(0, 500)}`
    throw new GradingStopped('graders_failed', `Graders failed on all ${answers} answers.${last}`)
  }

  private requireShare(error: string | null): void {
    const { answers, failed, limits } = this
    if (error === null || answers < answersBeforeShare || failed <= limits.error_share_max * answers) return
    const percent = Math.round(100 * limits.error_share_max)
    throw new GradingStopped(
      'graders_failed',
      `Graders failed on ${failed} of ${answers} answers, more than the ${percent} % of error_share_max. The last: ` +
        `${error.slice(0, 500)}`,
    )
  }
}

const noAnswer = ({ message }: ApiError) => new GraderFailure('unavailable', `The judge did not answer: ${message}`)

async function askEndpoint(
  endpoints: Options['endpoints'],
  request: SignedRequest,
  signal: AbortSignal,
): Promise<unknown> {
  try {
    return await endpoints.post(request, signal)
  } catch (error) {
    if (!(error instanceof PostError)) throw error
    throw new GraderFailure('unavailable', `The endpoint did not answer: ${error.message}.`)
  }
}

/** The answer as OpenAI's graders in Python also see it. */
function withChoices(sample: Values['sample']): Values['sample'] {
  if (!sample || typeof sample.output_text !== 'string' || 'choices' in sample) return sample
  const { output_text: content, output_tools } = sample
  const tools = Array.isArray(output_tools) && output_tools.length > 0 && { tool_calls: output_tools }
  return { ...sample, choices: [{ index: 0, message: { role: 'assistant', content, ...tools } }] }
}

class Figures {
  private answers = 0
  private errors = 0
  private sum = 0
  private last_error: string | null = null
  private readonly latencies: number[] = []

  add({ score, error, latency_ms }: Graded['graders'][string]): void {
    if (latency_ms !== undefined) this.latencies[this.answers % latenciesMax] = latency_ms
    this.answers++
    this.sum += score ?? 0
    if (score !== null) return
    this.errors++
    this.last_error = error ?? null
  }

  toResponse(): GraderFigures {
    const { answers, errors, sum, last_error, latencies } = this
    const scored = answers - errors
    return { answers, errors, score: scored > 0 ? sum / scored : null, latency_ms: latencyOf(latencies), last_error }
  }
}

/** Mean and 95th percentile. */
export function latencyOf(latencies: readonly number[]): GraderFigures['latency_ms'] {
  if (latencies.length === 0) return null
  const sorted = latencies.toSorted((a, b) => a - b)
  return { mean: sorted.reduce((sum, ms) => sum + ms, 0) / sorted.length, p95: quantile(sorted, 0.95) }
}

/** What graders see of an answer. */
export function sampleOf(output_text: string, output_tools: unknown[] = []): Record<string, unknown> {
  return { output_text, output_tools, ...jsonOf(output_text) }
}

export function jsonOf(text: string): { output_json?: unknown } {
  try {
    return { output_json: JSON.parse(text) }
  } catch {
    return {}
  }
}
