// What clients see when a connection, or the engine itself, goes away in the middle.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { absentModel, client, enginePid, engineRests, key, model, url } from './support/service.ts'

const long = {
  model,
  messages: [{ role: 'user' as const, content: 'Write a very long story.' }],
  max_tokens: 4000,
  temperature: 1,
  // The end tokens are forbidden, so that the answer does not end by itself.
  logit_bias: { '0': -100, '2': -100 },
  stream: true as const,
}

test('a client that leaves its stream early stops the generation', async () => {
  await engineRests(20_000)
  let seen = 0
  for await (const _ of await client.chat.completions.create(long)) if (++seen === 3) break
  const took = await engineRests(5000)
  assert.ok(took < 1500, `the engine was at work for ${took} ms more`)
})

test('an abort stops the generation, while the prompt is read too', async () => {
  const stop = new AbortController()
  const prompt = { ...long, messages: [{ role: 'user' as const, content: 'many words in here '.repeat(1500) }] }
  const asked = client.chat.completions.create(prompt, { signal: stop.signal }).then(async (stream) => {
    for await (const _ of stream);
  })
  setTimeout(() => stop.abort(), 300)
  await asked.catch((error) => assert.ok(error instanceof OpenAI.APIUserAbortError, String(error)))
  const took = await engineRests(5000)
  assert.ok(took < 1500, `the engine was at work for ${took} ms more`)
})

test('an engine that dies in mid-stream is an error that the client raises, and the next request is answered', async () => {
  const heard: string[] = []
  await assert.rejects(
    async () => {
      for await (const chunk of await client.chat.completions.create(long)) {
        heard.push(chunk.choices[0]?.delta.content ?? '')
        if (heard.length === 5) process.kill(enginePid(), 'SIGKILL')
      }
    },
    (error: Error) => {
      assert.ok(error instanceof OpenAI.APIError, `${error.constructor.name}: ${error.message}`)
      assert.match(error.message, /[a-z]{3}/)
      return true
    },
  )
  assert.ok(heard.length >= 5)
  // With the client's own retries, as users have it.
  const again = await new OpenAI().chat.completions.create({
    model,
    messages: [{ role: 'user', content: 'Hi' }],
    max_tokens: 2,
  })
  assert.equal(again.choices.length, 1)
})

test('503 is tried again by the client, not before the time that Retry-After says', async () => {
  const asked: { at: number; retry_after_s: number }[] = []
  const counting = new OpenAI({
    apiKey: key,
    baseURL: url,
    maxRetries: 1,
    fetch: async (...args) => {
      const at = performance.now()
      const response = await fetch(...args)
      asked.push({ at, retry_after_s: Number(response.headers.get('retry-after')) })
      assert.notEqual(response.headers.get('x-should-retry'), 'false')
      return response
    },
  })
  const request = counting.chat.completions.create({ model: absentModel, messages: [{ role: 'user', content: 'Hi' }] })
  await assert.rejects(request, (error: Error) => error instanceof OpenAI.InternalServerError && error.status === 503)
  assert.equal(asked.length, 2, 'requests sent')
  const [first, second] = asked
  assert.ok(first!.retry_after_s > 0, 'there is a Retry-After')
  assert.ok(second!.at - first!.at >= first!.retry_after_s * 1000)
})
