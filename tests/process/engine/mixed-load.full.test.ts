// A mixed load of requests that share prefixes, outgrow their slots, grow their runners and disconnect. Each answer
// must still depend on its own prompt only.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { type Engine, modelName, modelPath, startEngine, until } from './engine-process.ts'

let engine: Engine
let reference: Engine
before(async () => {
  engine = await startEngine(['--model', `${modelName}=${modelPath}`])
  reference = await startEngine(['--model', `${modelName}=${modelPath}`, '--no-speculation', '--slots', '1'])
})
after(() => Promise.all([engine.stop(), reference.stop()]))

const subjects = ['rivers', 'clocks', 'bread', 'glaciers', 'violins', 'harbours', 'bees', 'tunnels']
const prefixes = [0, 1, 2].map(
  (group) =>
    `Notes, volume ${group}. ` +
    subjects.map((subject, index) => `Chapter ${index + 1} tells of ${subject} and how they change. `).join(''),
)
const prompts = Array.from({ length: 36 }, (_, index) => {
  const prefix = prefixes[index % 3]!.repeat(index % 4 === 0 ? 4 : 1)
  return `${prefix}Question ${index}: what is said of ${subjects[index % 8]}? Answer: In chapter ${(index % 8) + 1}`
})

/**
 * Log-probability gap between each token of the answer and the likeliest token, by a reference engine that computes the
 * whole text at once and alone.
 */
async function gaps(prompt: string, answer: string): Promise<number[]> {
  const { json } = await reference.ask('POST', '/v1/completions', {
    model: modelName,
    prompt: prompt + answer,
    echo: true,
    max_tokens: 0,
    logprobs: 1,
    seed: 1,
  })
  const { token_logprobs, top_logprobs, text_offset } = json.choices[0].logprobs
  return token_logprobs.flatMap((logprob: number, position: number) =>
    text_offset[position] < prompt.length ? [] : [Math.max(...Object.values<number>(top_logprobs[position])) - logprob],
  )
}

test('under a mixed load, every greedy answer follows from its own prompt', async () => {
  const answers = await Promise.all(
    prompts.map(async (prompt, index) => {
      const body = { model: modelName, prompt, temperature: 0, max_tokens: index % 4 === 0 ? 150 : 60 }
      const headers = { 'x-tunery-account': `account-${index % 2}` }
      if (index % 5 === 4) {
        const stream = engine.stream('/v1/completions', { ...body, stream: true }, headers)
        let pieces = 0
        for await (const _ of stream.chunks) if (++pieces === 1 + (index % 7)) break
        stream.disconnect()
        return null
      }
      const { status, json, text } = await engine.ask('POST', '/v1/completions', body, headers)
      assert.equal(status, 200, text)
      return json.choices[0].text as string
    }),
  )
  await until(async () => (await engine.metric('sequences_running')) === 0, 'all have ended')
  let tokens = 0
  let unlikely = 0
  for (const [index, answer] of answers.entries()) {
    if (answer === null) continue
    const pauses = await gaps(prompts[index]!, answer)
    tokens += pauses.length
    // Small gaps are fine: batches of different sizes round differently, and the reference may tokenize the text
    // differently.
    unlikely += pauses.filter((gap) => gap > 1).length
  }
  assert.ok(tokens > 1000, `${tokens} tokens`)
  assert.ok(unlikely < tokens * 0.02, `${unlikely} of ${tokens} tokens do not follow from their prompts`)
})
