// Episodes: the model answers, an environment of the user answers that, in turns. The tokens of every answer of the
// model are trained on as they were sampled; those between them are context (docs/decisions/059-environments.md).
import { type Environment, EnvironmentReply } from '../../../../contract/environments.ts'
import type { GraderResult } from '../../../../contract/graders.ts'
import { randomBase62 } from '../../../../lib/ids.ts'
import { PostError } from '../../../platform/outbound/post.ts'
import type { Endpoints } from '../../../platform/outbound/signed-post.ts'
import { type EvaluationItem, isScore, outOfBounds, requestOf } from '../../evaluations/index.ts'
import type { Target } from '../../serving/index.ts'
import { seedOf } from './prompts.ts'
import { type Answer, PromptRefused, type SamplingOptions, sample } from './sampling.ts'

export interface EpisodeOptions {
  endpoints: Pick<Endpoints, 'post'>
  environments: readonly Environment[]
  sampling: SamplingOptions
}

/** Largest answer of an environment. */
const bytesMax = 262_144

/** The environment failed: the episode has no score. */
class EnvironmentFailure extends Error {
  readonly kind: 'unavailable' | 'form'
  constructor(kind: 'unavailable' | 'form', message: string) {
    super(message)
    this.kind = kind
  }
}

/** The environment of a row; null for a row without. Throws PromptRefused for a name that there is not. */
export function environmentOf(environments: readonly Environment[], { item }: EvaluationItem): Environment | null {
  const name = item.environment
  if (name === null || environments.length === 0) return null
  if (name === undefined) return environments[0]!
  const environment = environments.find((one) => one.name === name)
  if (!environment) throw new PromptRefused(`it names the environment ${JSON.stringify(name)}, which the job has not.`)
  return environment
}

interface Beginning {
  item: EvaluationItem
  prompt: number[]
  answer: Answer
  /** Tells the random numbers of this episode from those of others. */
  seed: string
  temperature: number
}

/** Plays an episode to its end from the first answer on. Throws what `sample` throws, but for a full context. */
export async function playEpisode(
  { endpoints, environments, sampling }: EpisodeOptions,
  target: Target,
  { item, prompt, answer, seed, temperature }: Beginning,
  signal: AbortSignal,
): Promise<Answer> {
  const environment = environmentOf(environments, item)
  if (!environment) return answer
  const episode = new Episode(environment, prompt, answer)
  const request = requestOf(item, undefined)
  const ask = (last: boolean) => episode.ask(endpoints, sampling.account_id, item, last, signal)
  try {
    for (let reply = await ask(episode.isLast()); !episode.endsWith(reply); reply = await ask(episode.isLast())) {
      episode.hear(reply)
      const body = {
        ...request,
        messages: reply.messages,
        continues: episode.soFar(),
        temperature,
        seed: seedOf(seed, episode.turn),
      }
      const next = await sample(sampling, target, body, signal).catch((error) => {
        if (error instanceof PromptRefused && error.isTooLong) return undefined
        throw error
      })
      if (next) episode.answer(next.prompt, next.answers[0]!)
      else {
        await ask(true)
        break
      }
    }
    episode.requireReward()
  } catch (error) {
    if (!(error instanceof EnvironmentFailure)) throw error
    return episode.toAnswer(error)
  }
  return episode.toAnswer()
}

class Episode {
  private readonly id = `ep_${randomBase62(22)}`
  private readonly environment: Environment
  private readonly prompt: number[]
  /** Behind the prompt. */
  private readonly tokens: number[] = []
  private readonly logprobs: number[] = []
  private readonly context: [number, number][] = []
  private readonly messages: unknown[] = []
  private readonly calls: unknown[] = []
  private latest!: Answer
  private thought_tokens = 0
  private environment_ms = 0
  private reward: number | undefined
  turn = 0

  constructor(environment: Environment, prompt: number[], first: Answer) {
    this.environment = environment
    this.prompt = prompt
    this.answer(prompt, first)
  }

  /** Appends an answer of the model. `prompt`: all tokens before it. */
  answer(prompt: number[], answer: Answer): void {
    const from = this.prompt.length + this.tokens.length
    if (prompt.length > from) this.context.push([this.tokens.length, prompt.length - this.prompt.length])
    this.tokens.push(...prompt.slice(from), ...answer.tokens)
    this.logprobs.push(...answer.logprobs)
    this.thought_tokens += answer.thought_tokens
    this.messages.push(answer.message)
    this.calls.push(...answer.tool_calls)
    this.latest = answer
    this.turn++
  }

  /** Whether no answer can follow, whatever the environment says. */
  isLast(): boolean {
    const { turns_max, tokens_max } = this.environment
    return this.latest.cut || this.turn >= turns_max || this.tokens.length >= tokens_max
  }

  endsWith({ done, messages }: EnvironmentReply): boolean {
    return done || messages.length === 0 || this.isLast()
  }

  async ask(
    endpoints: Pick<Endpoints, 'post'>,
    account_id: string,
    { item }: EvaluationItem,
    last: boolean,
    signal: AbortSignal,
  ): Promise<EnvironmentReply> {
    const { url, secret_name, timeout_seconds, name } = this.environment
    const { id: episode, turn, messages } = this
    const body = { environment: name, episode, turn, last, item, messages }
    const began = performance.now()
    try {
      const reply = EnvironmentReply.safeParse(
        await endpoints.post(
          { account_id, url, secret_name, body, timeout_ms: 1000 * timeout_seconds, bytes_max: bytesMax },
          signal,
        ),
      )
      if (!reply.success) {
        const { path, message } = reply.error.issues[0]!
        throw new EnvironmentFailure('form', `its answer has a wrong field: '${path.join('.')}': ${message}.`)
      }
      const { reward } = reply.data
      if (reward != null) this.reward = (this.reward ?? 0) + reward
      return reply.data
    } catch (error) {
      if (!(error instanceof PostError)) throw error
      throw new EnvironmentFailure('unavailable', `it did not answer: ${error.message}.`)
    } finally {
      this.environment_ms += performance.now() - began
    }
  }

  /** Takes what the environment says. Throws EnvironmentFailure if that does not fit to the calls of the answer. */
  hear({ messages }: EnvironmentReply): void {
    const asked = (this.latest.tool_calls as { id: string }[]).map(({ id }) => id)
    const answered = messages.flatMap((message) => (message.role === 'tool' ? [message.tool_call_id] : []))
    const unknown = answered.find((id) => !asked.includes(id))
    if (unknown !== undefined)
      throw new EnvironmentFailure('form', `it answered the call '${unknown}', which the model did not make.`)
    const open = asked.find((id) => !answered.includes(id))
    if (open !== undefined) throw new EnvironmentFailure('form', `it left the call '${open}' without an answer.`)
    this.messages.push(...messages)
  }

  soFar() {
    const tool_calls = this.latest.tool_calls
    const tokens_max = this.prompt.length + this.environment.tokens_max
    return { tokens: [...this.prompt, ...this.tokens], tool_calls, tokens_max }
  }

  requireReward(): void {
    const { environment, reward } = this
    if (!environment.rewards) return
    if (reward === undefined) throw new EnvironmentFailure('form', 'it ended the episode without a reward.')
    if (!isScore(reward)) throw new EnvironmentFailure('form', `its rewards sum up to ${outOfBounds(reward)}.`)
  }

  toAnswer(failure?: EnvironmentFailure): Answer {
    const { environment, tokens, logprobs, context, messages, calls, thought_tokens, turn, environment_ms } = this
    const { name, rewards } = environment
    const given: Record<string, GraderResult> = failure
      ? { [name]: failed(name, failure) }
      : rewards
        ? { [name]: { score: this.reward!, passed: this.reward! > 0 } }
        : {}
    return {
      ...this.latest,
      tokens,
      logprobs,
      thought_tokens,
      tool_calls: calls,
      episode: { context, messages, turns: turn, environment_ms, given },
    }
  }
}

const failed = (name: string, { kind, message }: EnvironmentFailure): GraderResult => ({
  score: null,
  passed: false,
  error: `The environment '${name}' failed: ${message}`,
  failure: kind,
})
