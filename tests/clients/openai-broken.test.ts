// What clients see when a connection breaks or the engine dies during an answer.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { absentModel, client, enginePid, engineRests, key, model, url } from './support/service.ts'

const long = {
  model,
  messages: [{ role: 'user' as const, content: 'Write a very long story.' }],
  max_tokens: 4000,
  temperature: 1,
  // Forbid the end tokens, so that the answer does not end early.
  logit_bias: { '0': -100, '2': -100 },
  stream: true as const,
}

test('a client that closes its stream early stops the generation', async () => {
  await engineRests(20_000)
  let seen = 0
  for await (const _ of await client.chat.completions.create(long)) if (++seen === 3) break
  const took = await engineRests(5000)
  assert.ok(took < 1500, `the engine was at work for ${took} ms more`)
})

test('an abort stops the generation, also during prefill', async () => {
  const stop = new AbortController()
  const prompt = { ...long, messages: [{ role: 'user' as const, content: 'many words in here '.repeat(1500) }] }
  const request = client.chat.completions.create(prompt, { signal: stop.signal }).then(async (stream) => {
    for await (const _ of stream);
  })
  setTimeout(() => stop.abort(), 300)
  await request.catch((error) => assert.ok(error instanceof OpenAI.APIUserAbortError, String(error)))
  const took = await engineRests(5000)
  assert.ok(took < 1500, `the engine was at work for ${took} ms more`)
})

test('when the engine dies during a stream, the client raises an error, and the next request works', async () => {
  const chunks: string[] = []
  await assert.rejects(
    async () => {
      for await (const chunk of await client.chat.completions.create(long)) {
        chunks.push(chunk.choices[0]?.delta.content ?? '')
        if (chunks.length === 5) process.kill(enginePid(), 'SIGKILL')
      }
    },
    (error: Error) => {
      assert.ok(error instanceof OpenAI.APIError, `${error.constructor.name}: ${error.message}`)
      assert.match(error.message, /[a-z]{3}/)
      return true
    },
  )
  assert.ok(chunks.length >= 5)
  // With the client's default retries.
  const again = await new OpenAI().chat.completions.create({
    model,
    messages: [{ role: 'user', content: 'Hi' }],
    max_tokens: 2,
  })
  assert.equal(again.choices.length, 1)
})

test('the client retries 503, not before the time in Retry-After', async () => {
  const sentRequests: { at: number; retry_after_s: number }[] = []
  const counting = new OpenAI({
    apiKey: key,
    baseURL: url,
    maxRetries: 1,
    fetch: async (...args) => {
      const at = performance.now()
      const response = await fetch(...args)
      sentRequests.push({ at, retry_after_s: Number(response.headers.get('retry-after')) })
      assert.notEqual(response.headers.get('x-should-retry'), 'false')
      return response
    },
  })
  const request = counting.chat.completions.create({ model: absentModel, messages: [{ role: 'user', content: 'Hi' }] })
  await assert.rejects(request, (error: Error) => error instanceof OpenAI.InternalServerError && error.status === 503)
  assert.equal(sentRequests.length, 2, 'requests sent')
  const [first, second] = sentRequests
  assert.ok(first!.retry_after_s > 0, 'there is a Retry-After')
  assert.ok(second!.at - first!.at >= first!.retry_after_s * 1000)
})
