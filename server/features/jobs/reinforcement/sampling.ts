// Answers to prompts, as tokens with the probabilities that the engine sampled them with.
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { ApiError } from '../../../../contract/errors.ts'
import type { GraderResult } from '../../../../contract/graders.ts'
import { type EvaluationItem, GraderError, requestOf, sampleOf } from '../../evaluations/index.ts'
import { type EngineClient, engineError, readAll, type Target } from '../../serving/index.ts'
import { seedOf } from './prompts.ts'

const Sampled = z.object({
  prompt: z.array(z.int()),
  choices: z.array(
    z.object({
      tokens: z.array(z.int()),
      logprobs: z.array(z.number()),
      message: z.looseObject({ content: z.string().nullable(), tool_calls: z.array(z.unknown()).optional() }),
      thought_tokens: z.int().default(0),
      finish_reason: z.string(),
    }),
  ),
})

export interface Answer {
  /** Behind the prompt: those of an episode with what its environment said. */
  tokens: number[]
  /** Natural logarithms of the probabilities of the sampled tokens under the sampled weights. */
  logprobs: number[]
  /** How many of the sampled tokens are thoughts. */
  thought_tokens: number
  text: string
  tool_calls: unknown[]
  /** As in chat; of an episode the last one. */
  message: Record<string, unknown>
  episode?: Episode
  /** Whether it ended at the limit of tokens. */
  cut: boolean
}

/** What an environment made of an answer. */
export interface Episode {
  /** Which of the tokens were not sampled: from and to. */
  context: [number, number][]
  /** All messages behind the prompt. */
  messages: unknown[]
  /** Answers of the model. */
  turns: number
  environment_ms: number
  /** Its reward, or how it failed. */
  given: Record<string, GraderResult>
}

/** The answers to one prompt. */
export interface Group {
  row: number
  prompt: number[]
  answers: Answer[]
}

export interface SamplingOptions {
  engine: Pick<EngineClient, 'post'>
  job_id: string
  account_id: string
  max_tokens: number
  fields: Record<string, unknown>
  /** Whether an answer to a prompt with tools has to call one. */
  tool_choice: 'auto' | 'required'
}

/** Failures of the engine in a row before the attempt ends. */
const failuresMax = 8
const retryMax_ms = 15_000
/** Prompts that are sent at once; the engine computes as many as it has room for. */
const promptsAtOnce = 32

/** A prompt that the model cannot be asked. */
export class PromptRefused extends Error {
  readonly isTooLong: boolean
  constructor(message: string, isTooLong = false) {
    super(message)
    this.isTooLong = isTooLong
  }
}

/** Plays the rest of an episode after its first answer. */
export type Play = (
  beginning: { item: EvaluationItem; prompt: number[]; answer: Answer; seed: string; temperature: number },
  signal: AbortSignal,
) => Promise<Answer>

/**
 * Samples answers to prompts, all in one continuous batch after all live requests. Prompts that the model cannot be
 * asked are left out, and `onRefused` learns why. `play` makes an episode of each answer.
 */
export async function sampleGroups(
  options: SamplingOptions,
  target: Target,
  items: readonly EvaluationItem[],
  { n, seed, temperature, play }: { n: number; seed: string; temperature: number; play: Play },
  signal: AbortSignal,
  onRefused: (row: number, why: string) => void,
): Promise<(Group & { item: EvaluationItem })[]> {
  const groups: ((Group & { item: EvaluationItem }) | undefined)[] = items.map(() => undefined)
  let next = 0
  const failure = new AbortController()
  const either = AbortSignal.any([signal, failure.signal])
  const work = async () => {
    while (next < items.length && !either.aborted) {
      const place = next++
      const item = items[place]!
      try {
        const body = { ...askedFor(item), n, temperature, seed: seedOf(seed, place) }
        const { prompt, answers } = await sample(options, target, body, either)
        const played = answers.map((answer, index) =>
          play({ item, prompt, answer, seed: `${seed} ${place} ${index}`, temperature }, either),
        )
        groups[place] = { prompt, answers: await Promise.all(played), row: item.row, item }
      } catch (error) {
        if (!(error instanceof PromptRefused)) throw error
        onRefused(item.row, error.message)
      }
    }
  }
  const atOnce = Math.min(promptsAtOnce, items.length)
  await Promise.all(Array.from({ length: atOnce }, () => work().catch((error) => failure.abort(error))))
  either.throwIfAborted()
  return groups.filter((group) => group !== undefined)
}

/** What the model is asked for a row. Throws PromptRefused for one that begins with its answer. */
export function askedFor(item: EvaluationItem) {
  try {
    return requestOf(item, undefined)
  } catch (error) {
    if (!(error instanceof GraderError)) throw error
    throw new PromptRefused('it has no message before its answer.')
  }
}

/** Samples answers to one prompt. Throws PromptRefused, or what the engine failed with. */
export async function sample(
  { engine, job_id, account_id, max_tokens, fields, tool_choice }: SamplingOptions,
  target: Target,
  body: Record<string, unknown>,
  signal: AbortSignal,
): Promise<Omit<Group, 'row'>> {
  const headers = { 'x-tunery-account': account_id, 'x-tunery-priority': 'background', 'x-request-id': `${job_id}.s` }
  const choice = Array.isArray(body.tools) && body.tools.length > 0 && { tool_choice }
  const payload = (model: string) => JSON.stringify({ ...fields, ...choice, ...body, model, max_tokens })
  for (let failures = 0; ; ) {
    try {
      const { response } = await engine.post(target, '/internal/sample', payload, headers, signal)
      const text = (await readAll(response)).toString('utf8')
      if (response.status !== 200) throw engineError(response.status, text)
      const { prompt, choices } = Sampled.parse(JSON.parse(text))
      return {
        prompt,
        answers: choices.map(({ tokens, logprobs, thought_tokens, message, finish_reason }) => ({
          tokens,
          logprobs,
          thought_tokens,
          message,
          text: message.content ?? '',
          tool_calls: message.tool_calls ?? [],
          cut: finish_reason === 'length',
        })),
      }
    } catch (error) {
      signal.throwIfAborted()
      const known = error instanceof ApiError ? error : undefined
      if (known && known.status < 500 && known.status !== 429 && known.code !== 'model_not_found')
        throw new PromptRefused(known.message, known.code === 'context_length_exceeded')
      // A full queue of live requests is no failure: this waits.
      if (known?.code !== 'overloaded' && ++failures >= failuresMax) throw error
      await sleep(Math.min(retryMax_ms, 250 * 2 ** failures), undefined, { signal })
    }
  }
}

/** What graders see of an answer. */
export const gradedValues = ({ item }: EvaluationItem, { text, tool_calls, episode }: Answer) => ({
  item,
  sample: { ...sampleOf(text, tool_calls), ...(episode && { messages: episode.messages }) },
  ...(episode && { given: episode.given }),
})
