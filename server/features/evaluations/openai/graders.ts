// OpenAI's graders API: a grader tried on one answer.
import type { FastifyInstance } from 'fastify'
import { ApiError } from '../../../../contract/errors.ts'
import type { Grader, GraderResult } from '../../../../contract/graders.ts'
import {
  type GraderErrors,
  type GraderRun,
  getGraderSecret,
  type RunGrader,
  runGrader,
  validateGrader,
} from '../../../../contract/openai-graders.ts'
import { newId } from '../../../../lib/ids.ts'
import type { Caller } from '../../../platform/http/caller.ts'
import { mount } from '../../../platform/http/mount.ts'
import { presence } from '../../../platform/http/presence.ts'
import type { Endpoints } from '../../../platform/outbound/signed-post.ts'
import { judgesOf } from '../check.ts'
import { GraderError } from '../graders/template.ts'
import { DayUsedUp, sampleOf } from '../grading.ts'
import type { Evaluations } from '../service.ts'

const noErrors: GraderErrors = {
  formula_parse_error: false,
  invalid_variable_error: false,
  model_grader_parse_error: false,
  model_grader_refusal_error: false,
  model_grader_server_error: false,
  model_grader_server_error_details: null,
  other_error: false,
  python_grader_runtime_error: false,
  python_grader_runtime_error_details: null,
  python_grader_server_error: false,
  python_grader_server_error_type: null,
  sample_parse_error: false,
  truncated_observation_error: false,
  unresponsive_reward_error: false,
  details: null,
}

export function openaiGraderRoutes(
  app: FastifyInstance,
  evaluations: Pick<Evaluations, 'creation' | 'grading'>,
  endpoints: Pick<Endpoints, 'secret'>,
  stopping: AbortSignal,
): void {
  const check = ({ account_id }: Pick<Caller, 'account_id'>, grader: Grader) =>
    evaluations.creation.checkGraders(account_id, grader, 'grader')

  async function run(
    { account_id, key_id }: Pick<Caller, 'account_id' | 'key_id'>,
    { grader, model_sample, item }: RunGrader,
    signal: AbortSignal,
  ): Promise<GraderRun> {
    await check({ account_id }, grader)
    const began = performance.now()
    const run = evaluations.grading.open({ account_id, key_id, id: newId('grun'), graders: [grader] })
    try {
      const { graders } = await run.grade({ item: item ?? {}, sample: sampleOf(model_sample) }, signal)
      return toResponse(grader, graders[grader.name]!, (performance.now() - began) / 1000)
    } catch (error) {
      if (error instanceof DayUsedUp)
        throw new ApiError('rate_limit_exceeded', 'The account has used its requests of the day: no judge is asked.')
      if (error instanceof GraderError)
        throw new ApiError('evaluation_invalid', error.message, { param: 'grader', details: { field: 'grader' } })
      throw error
    } finally {
      await run.close()
    }
  }

  mount(app, runGrader, ({ caller, body, reply }) => run(caller, body, presence(reply, stopping)))
  mount(app, validateGrader, async ({ caller, body }) => {
    await check(caller, body.grader)
    return { grader: body.grader }
  })
  mount(app, getGraderSecret, async ({ caller, params: { name } }) => ({
    name,
    secret: endpoints.secret(caller.account_id, name),
  }))
}

function toResponse(grader: Grader, result: GraderResult, seconds: number): GraderRun {
  const { score, parts = {}, judge } = result
  const judges = judgesOf([grader])
  const usage = judge && {
    prompt_tokens: judge.prompt_tokens,
    completion_tokens: judge.completion_tokens,
    total_tokens: judge.prompt_tokens + judge.completion_tokens,
  }
  return {
    reward: score,
    sub_rewards: parts,
    metadata: {
      name: grader.name,
      type: grader.type,
      errors: errorsOf(grader, result),
      execution_time: seconds,
      scores: grader.type === 'multi' ? parts : { [grader.name]: score },
      token_usage: usage?.total_tokens ?? null,
      sampled_model_name: judges[0] ?? null,
    },
    // Judges of a multi are metered together.
    model_grader_token_usage_per_model: usage && judges.length > 0 ? { [judges.join(', ')]: usage } : {},
  }
}

function errorsOf(grader: Grader, { error, failure }: GraderResult): GraderErrors {
  if (error === undefined) return noErrors
  const named = { ...noErrors, details: error }
  const types = grader.type === 'multi' ? Object.values(grader.graders).map(({ type }) => type) : [grader.type]
  const hasPython = types.includes('python')
  const hasJudge = types.includes('label_model') || types.includes('score_model')
  switch (failure) {
    case undefined:
      return { ...named, sample_parse_error: true }
    case 'row':
      return { ...named, invalid_variable_error: true }
    case 'runtime':
      if (!hasPython) return { ...named, other_error: true }
      return { ...named, python_grader_runtime_error: true, python_grader_runtime_error_details: error }
    case 'form':
      if (hasJudge) return { ...named, model_grader_parse_error: true }
      return { ...named, unresponsive_reward_error: true }
    case 'timeout':
      return { ...named, python_grader_server_error: hasPython, python_grader_server_error_type: 'timeout' }
    case 'unavailable':
      if (hasJudge) return { ...named, model_grader_server_error: true, model_grader_server_error_details: error }
      if (hasPython) return { ...named, python_grader_server_error: true, python_grader_server_error_type: error }
      return { ...named, other_error: true }
  }
}
