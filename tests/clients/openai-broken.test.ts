// What clients see when a connection, or the engine itself, goes away in the middle.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { client, enginePid, engineRests, model } from './support/service.ts'

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
  const again = await new OpenAI().chat.completions.create({ model, messages: [{ role: 'user', content: 'Hi' }], max_tokens: 2 })
  assert.equal(again.choices.length, 1)
})
