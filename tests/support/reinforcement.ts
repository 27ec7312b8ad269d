// Jobs that learn from graders on the tiny base, and a grader that can be held while it is asked.
import type { ServerResponse } from 'node:http'
import type { Grader } from '../../contract/graders.ts'
import type { Client } from './client.ts'
import { startReceiver } from './receiver.ts'
import { tiny } from './tiny.ts'

/** Settings of a service whose graders may be on this machine. */
export const localGraders = { TUNERY_WEBHOOK_ALLOW: '127.0.0.1/32' }

/** An answer with one of these letters is rewarded. */
export const rewarded = /[kvz]/i
export const letters: Grader = {
  type: 'regex',
  name: 'letters',
  input: '{{sample.output_text}}',
  pattern: '[kvz]',
  ignore_case: true,
  negate: false,
}

export const prompts = (count: number, fields: (index: number) => object = () => ({})) =>
  Array.from({ length: count }, (_, index) =>
    JSON.stringify({ messages: [{ role: 'user', content: `word ${index}?` }], ...fields(index) }),
  ).join('\n')

/** Creates a job of a few short answers to each prompt. Resolves with its id. */
export async function learn(
  { upload, api }: Pick<Client, 'upload' | 'api'>,
  rows: string,
  options: object,
  training: object,
  more: object = {},
): Promise<string> {
  const { body: dataset } = await upload(rows)
  const { status, body } = await api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset.id,
    config: {
      method_options: { objective: 'reinforcement', refill_rounds: 0, max_tokens: 1, group_size: 16, ...options },
      training_config: { batch_size: 4, learning_rate: 0.03, warmup_ratio: 0, seed: 1, ...training },
      ...more,
    },
  })
  if (status !== 201) throw new Error(JSON.stringify(body))
  return body.id
}

export type Step = Record<string, unknown>

/** The figures of the steps and evaluations of a job, in order, when it has ended. */
export async function figuresOf({ events }: Pick<Client, 'events'>, id: string): Promise<Step[]> {
  const steps: Step[] = []
  for await (const { type, data } of events(id)) if (type === 'metrics') steps.push(data!)
  return steps
}

/** Without what the machine's speed decides. */
export const withoutTimes = (steps: Step[]): Step[] =>
  steps.map((step) => Object.fromEntries(Object.entries(step).filter(([name]) => !/second/.test(name))))

/** An endpoint that rewards letters, and keeps answers back when it is told to. */
export async function startGrader() {
  const held: (() => void)[] = []
  let holdFrom = Number.POSITIVE_INFINITY
  let reached = Promise.withResolvers<void>()
  const receiver = await startReceiver(({ body }, response: ServerResponse) => {
    const score = Number(rewarded.test(JSON.parse(body).sample.output_text))
    const answer = () => {
      response.setHeader('content-type', 'application/json')
      response.end(JSON.stringify({ score }))
    }
    if (receiver.received.length < holdFrom) return answer()
    held.push(answer)
    reached.resolve()
  })
  return {
    grader: { type: 'endpoint', name: 'letters', url: receiver.url, timeout_seconds: 60 },
    /** Answers that it was asked to grade. */
    asked: () => receiver.received.length,
    /**
     * Gives the answers that it has kept back, and keeps those from the request of this number on, counted from 1.
     * Resolves when that one is there.
     */
    hold(from = Number.POSITIVE_INFINITY): Promise<void> {
      holdFrom = from
      reached = Promise.withResolvers()
      for (const answer of held.splice(0)) answer()
      return reached.promise
    },
    stop: receiver.stop,
  }
}
