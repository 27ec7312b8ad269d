// Supervised training, then preference training, through the service.
import assert from 'node:assert/strict'
import type { Client } from './client.ts'

/** Trains on written answers, then on preferences; resolves with the share of good answers after each. */
export async function liftedScores(
  app: Pick<Client, 'api' | 'upload' | 'untilEnded'>,
  base: string,
  written: object[],
  chosen: object[],
  config: object,
  more: object,
  asked = chosen,
) {
  const prompts = asked as { prompt: string; chosen: string }[]
  const train = async (model_id: string, rows: object[], config: object) => {
    const { id } = (await app.upload(rows.map((row) => JSON.stringify(row)).join('\n'))).body
    const { body } = await app.api('POST', '/fine-tuning/jobs', { model_id, dataset_id: id, config })
    const job = await app.untilEnded(body.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    return job.model!
  }
  const score = async (model: string, isGood: (answer: string, chosen: string) => boolean) => {
    let good = 0
    for (const { prompt, chosen } of prompts) {
      const request = { model, messages: [{ role: 'user', content: prompt }], max_tokens: 48, temperature: 0 }
      const { body } = await app.api('POST', '/chat/completions', request)
      if (isGood(body.choices[0].message.content, chosen)) good++
    }
    return good / prompts.length
  }
  const first = await train(base, written, config)
  const second = await train(first, chosen, { method_options: { objective: 'dpo', sft_weight: 0.5 }, ...more })
  return async (isGood: (answer: string, chosen: string) => boolean) => [
    await score(first, isGood),
    await score(second, isGood),
  ]
}
