// Checks that apply to every kind of upstream.
import assert from 'node:assert/strict'
import path from 'node:path'
import Database from 'better-sqlite3'
import OpenAI from 'openai'
import type { startService } from '../../bench/support/service.ts'
import { type Upstream, until } from './upstreams.ts'

type Service = Awaited<ReturnType<typeof startService>>
export const clientOf = (service: Service, maxRetries = 0) =>
  new OpenAI({ baseURL: service.url, apiKey: service.key, maxRetries })
const messages = [{ role: 'user' as const, content: 'Say hello.' }]
const long = {
  messages: [{ role: 'user' as const, content: 'Write a very long story about a river.' }],
  max_tokens: 1500,
  temperature: 1,
}

/** Metered requests and tokens of a model. */
function usageOf(service: Service, model: string) {
  const db = new Database(path.join(service.dataDir, 'tunery.db'), { readonly: true })
  try {
    const sums =
      'select count(*) as requests, coalesce(sum(prompt_tokens), 0) as prompt, ' +
      'coalesce(sum(completion_tokens), 0) as completion'
    return db.prepare(`${sums} from usage where model = ?`).get(model) as {
      requests: number
      prompt: number
      completion: number
    }
  } finally {
    db.close()
  }
}

export async function answersWholeAndStreamed(service: Service, model: string): Promise<void> {
  const client = clientOf(service)
  const before = usageOf(service, model)
  const whole = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 })
  assert.equal(whole.model, model, 'the answer has the name that was asked')
  assert.ok(whole.usage!.completion_tokens > 0)
  let text = ''
  let usage: OpenAI.CompletionUsage | undefined
  for await (const chunk of await client.chat.completions.create({
    model,
    messages,
    max_tokens: 12,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    assert.equal(chunk.model, model)
    text += chunk.choices[0]?.delta.content ?? ''
    usage = chunk.usage ?? usage
  }
  assert.equal(text, whole.choices[0]!.message.content)
  assert.equal(usage!.completion_tokens, whole.usage!.completion_tokens)
  // Without include_usage a stream shows no usage, but it is metered.
  for await (const chunk of await client.chat.completions.create({
    model,
    messages,
    max_tokens: 12,
    temperature: 0,
    stream: true,
  })) {
    assert.ok(!chunk.usage)
    assert.ok(chunk.choices.length > 0)
  }
  await until('the three are metered', async () => usageOf(service, model).requests === before.requests + 3)
  const after = usageOf(service, model)
  assert.equal(after.completion - before.completion, 3 * whole.usage!.completion_tokens)
  assert.equal(after.prompt - before.prompt, 3 * whole.usage!.prompt_tokens)
}

/** `running`: the number of requests that the upstream is processing. */
export async function hangUpStopsGeneration(
  service: Service,
  model: string,
  running: () => Promise<number>,
): Promise<void> {
  let seen = 0
  for await (const _ of await clientOf(service).chat.completions.create({ ...long, model, stream: true })) {
    if (++seen === 3) assert.equal(await running(), 1, 'the upstream is at work while the client listens')
    if (seen >= 4) break
  }
  await until('the upstream has nothing to do', async () => (await running()) === 0, 5)
}

export async function deathIsAnErrorEvent(service: Service, model: string, upstream: Upstream): Promise<void> {
  let seen = 0
  await assert.rejects(
    async () => {
      for await (const _ of await clientOf(service).chat.completions.create({ ...long, model, stream: true }))
        if (++seen === 4) await upstream.kill()
    },
    (error: Error) => {
      assert.ok(error instanceof OpenAI.APIError, `${error.constructor.name}: ${error.message}`)
      return true
    },
  )
  assert.ok(seen >= 4)
  const down = clientOf(service).chat.completions.create({ model, messages, max_tokens: 2 })
  await assert.rejects(down, (error: InstanceType<typeof OpenAI.APIError>) => {
    assert.equal(error.status, 503, error.message)
    return true
  })
  await upstream.restart()
  const answered = () =>
    clientOf(service)
      .chat.completions.create({ model, messages, max_tokens: 2 })
      .then(
        () => true,
        () => false,
      )
  await until('it is used again', answered, 60)
}
