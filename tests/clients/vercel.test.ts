// Vercel's AI SDK with its OpenAI-compatible provider, installed by set-up in its own folder.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'
import { embeddingModel, key, model as modelId, url } from './support/service.ts'

const resolve = createRequire(path.resolve(import.meta.dirname, '../../.local/peers/clients-node/package.json')).resolve
const [ai, { createOpenAICompatible }, { z }] = await Promise.all(
  ['ai', '@ai-sdk/openai-compatible', 'zod'].map((name) => import(resolve(name))),
)

const provider = createOpenAICompatible({
  name: 'tunery',
  baseURL: url,
  apiKey: key,
  includeUsage: true,
  supportsStructuredOutputs: true,
})
const model = provider(modelId)
const prompt = 'Say something about cats.'
const Cat = z.object({ name: z.enum(['Tom', 'Kitty']), lives: z.int().min(1).max(9), tame: z.boolean() })

test('generateText', async () => {
  const { text, usage, finishReason } = await ai.generateText({
    model,
    prompt,
    maxOutputTokens: 10,
    temperature: 0,
    maxRetries: 0,
  })
  assert.equal(typeof text, 'string')
  assert.ok(['stop', 'length'].includes(finishReason))
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0)
})

test('streamText', async () => {
  const result = ai.streamText({ model, prompt, maxOutputTokens: 10, temperature: 0, maxRetries: 0 })
  let text = ''
  for await (const part of result.textStream) text += part
  assert.equal(text, await result.text)
  assert.ok((await result.usage).outputTokens > 0)
  assert.ok(['stop', 'length'].includes(await result.finishReason))
})

test('generateObject and streamObject', async () => {
  const { object } = await ai.generateObject({
    model,
    prompt,
    schema: Cat,
    maxOutputTokens: 200,
    temperature: 0,
    maxRetries: 0,
  })
  Cat.parse(object)
  const streamed = ai.streamObject({ model, prompt, schema: Cat, maxOutputTokens: 200, temperature: 0, maxRetries: 0 })
  let parts = 0
  for await (const _ of streamed.partialObjectStream) parts++
  assert.ok(parts >= 1)
  Cat.parse(await streamed.object)
})

test('Output.object in generateText and streamText', async () => {
  const request = {
    model,
    prompt,
    output: ai.Output.object({ schema: Cat }),
    maxOutputTokens: 200,
    temperature: 0,
    maxRetries: 0,
  }
  Cat.parse((await ai.generateText(request)).output)
  const result = ai.streamText(request)
  await result.consumeStream()
  Cat.parse(await result.output)
})

const tools = (inputs: unknown[]) => ({
  weather: ai.tool({
    description: 'Tells the weather of a city.',
    inputSchema: z.object({ city: z.enum(['Paris', 'Oslo']) }),
    execute: async (input: unknown) => {
      inputs.push(input)
      return 'sunny'
    },
  }),
})
/** The first step must call a tool; later ones may not, so that it ends. */
const prepareStep = ({ stepNumber }: { stepNumber: number }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' })
const steps = (inputs: unknown[]) => ({
  model,
  prompt: 'What is the weather in Oslo?',
  tools: tools(inputs),
  prepareStep,
  stopWhen: ai.stepCountIs(2),
  maxOutputTokens: 100,
  temperature: 0,
  maxRetries: 0,
})

test('tools over several steps: called, run, and their results used', async () => {
  const inputs: { city: string }[] = []
  const { steps: completedSteps } = await ai.generateText(steps(inputs))
  assert.equal(completedSteps.length, 2)
  assert.equal(completedSteps[0].finishReason, 'tool-calls')
  assert.ok(inputs.length >= 1 && inputs.every(({ city }) => ['Paris', 'Oslo'].includes(city)))
  assert.equal(completedSteps[0].toolResults[0].output, 'sunny')
  assert.equal(typeof completedSteps[1].text, 'string')
})

test('tools over several steps, streamed', async () => {
  const inputs: { city: string }[] = []
  const result = ai.streamText(steps(inputs))
  const kinds = new Set<string>()
  for await (const part of result.fullStream) kinds.add(part.type)
  assert.ok(kinds.has('tool-call') && kinds.has('tool-result'), [...kinds].join(' '))
  assert.ok(!kinds.has('error'))
  assert.equal((await result.steps).length, 2)
})

test('embed and embedMany', async () => {
  const embedder = provider.embeddingModel(embeddingModel)
  const one = await ai.embed({ model: embedder, value: 'a cat', maxRetries: 0 })
  assert.ok(one.embedding.length > 8 && one.embedding.every(Number.isFinite))
  const many = await ai.embedMany({ model: embedder, values: ['a cat', 'a dog', 'a train'], maxRetries: 0 })
  assert.equal(many.embeddings.length, 3)
  assert.equal(many.embeddings[0].length, one.embedding.length)
  assert.ok(many.usage.tokens > 0)
})

test('an error reaches the caller with its status and message', async () => {
  await assert.rejects(
    ai.generateText({ model: provider('nobody/nothing'), prompt, maxRetries: 2 }),
    (error: Error & { statusCode?: number; isRetryable?: boolean }) => {
      assert.equal(error.statusCode, 404)
      assert.equal(error.isRetryable, false)
      assert.match(error.message, /nobody\/nothing/)
      return true
    },
  )
})
