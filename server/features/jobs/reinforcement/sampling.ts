// Answers to prompts, as tokens with the probabilities that the engine sampled them with.
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { ApiError } from '../../../../contract/errors.ts'
import { type EvaluationItem, requestOf, sampleOf } from '../../evaluations/index.ts'
import { type EngineClient, engineError, readAll, type Target } from '../../serving/index.ts'
import { seedOf } from './prompts.ts'

const Sampled = z.object({
  prompt: z.array(z.int()),
  choices: z.array(
    z.object({
      tokens: z.array(z.int()),
      logprobs: z.array(z.number()),
      message: z.object({ content: z.string().nullable(), tool_calls: z.array(z.unknown()).optional() }),
      finish_reason: z.string(),
    }),
  ),
})

export interface Answer {
  tokens: number[]
  /** Natural logarithms of the probabilities under the sampled weights. */
  logprobs: number[]
  text: string
  tool_calls: unknown[]
  /** Whether it ended at the limit of tokens. */
  cut: boolean
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
}

/** Failures of the engine in a row before the attempt ends. */
const failuresMax = 8
const retryMax_ms = 15_000
/** Prompts that are sent at once; the engine computes as many as it has room for. */
const promptsAtOnce = 32

/** A prompt that the model cannot be asked. */
export class PromptRefused extends Error {}

/**
 * Samples answers to prompts, all in one continuous batch after all live requests. Prompts that the model cannot be
 * asked are left out, and `onRefused` learns why.
 */
export async function sampleGroups(
  options: SamplingOptions,
  target: Target,
  items: readonly EvaluationItem[],
  { n, seed, temperature }: { n: number; seed: string; temperature: number },
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
        const body = { ...requestOf(item, undefined), n, temperature, seed: seedOf(seed, place) }
        groups[place] = { ...(await sample(options, target, body, either)), row: item.row, item }
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

async function sample(
  { engine, job_id, account_id, max_tokens, fields }: SamplingOptions,
  target: Target,
  body: Record<string, unknown>,
  signal: AbortSignal,
): Promise<Omit<Group, 'row'>> {
  const headers = { 'x-tunery-account': account_id, 'x-tunery-priority': 'background', 'x-request-id': `${job_id}.s` }
  const payload = (model: string) => JSON.stringify({ ...fields, ...body, model, max_tokens })
  for (let failures = 0; ; ) {
    try {
      const { response } = await engine.post(target, '/internal/sample', payload, headers, signal)
      const text = (await readAll(response)).toString('utf8')
      if (response.status !== 200) throw engineError(response.status, text)
      const { prompt, choices } = Sampled.parse(JSON.parse(text))
      return {
        prompt,
        answers: choices.map(({ tokens, logprobs, message, finish_reason }) => ({
          tokens,
          logprobs,
          text: message.content ?? '',
          tool_calls: message.tool_calls ?? [],
          cut: finish_reason === 'length',
        })),
      }
    } catch (error) {
      signal.throwIfAborted()
      const known = error instanceof ApiError ? error : undefined
      if (known && known.status < 500 && known.status !== 429 && known.code !== 'model_not_found')
        throw new PromptRefused(known.message)
      // A full queue of live requests is no failure: this waits.
      if (known?.code !== 'overloaded' && ++failures >= failuresMax) throw error
      await sleep(Math.min(retryMax_ms, 250 * 2 ** failures), undefined, { signal })
    }
  }
}

/** What graders see of an answer. */
export const gradedValues = ({ item }: EvaluationItem, { text, tool_calls }: Answer) => ({
  item,
  sample: sampleOf(text, tool_calls),
})
