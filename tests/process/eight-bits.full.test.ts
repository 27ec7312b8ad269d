// A base in 16 bits with a trained adapter, of another family than the packaged one: the eight-bit form that is served
// answers as the original does, and as the trainer computed.
import assert from 'node:assert/strict'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { readEightBits } from '../../lib/eight-bits.ts'
import { until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { modelsDir, runPython, tiny } from '../support/tiny.ts'
import { startEngine } from './engine/engine-process.ts'

/** Qwen3's architecture, and more than the 32 MB from which on a copy pays. */
const shape = { hidden_size: 384, intermediate_size: 768, num_attention_heads: 6, num_key_value_heads: 3, head_dim: 64 }
const program =
  'import json, pathlib, sys; from trainer.tests.make_tiny import make_tiny; ' +
  'make_tiny(pathlib.Path(sys.argv[1]), family="Qwen3", **json.loads(sys.argv[2]))'
const models = mkdtempSync(path.join(os.tmpdir(), 'tunery-eight-bits-'))
const file = path.join(models, tiny, 'model.gguf')
const bounds = { nats: 0.1, divergence: 0.01, same_top: 0.95 }
let app: TestApp
let tuned: string
before(async () => {
  const text = JSON.stringify(shape)
  cpSync(
    modelsDir(tiny, 'trainer/tests/make_tiny.py', `Qwen3 ${text}`, (checkpoint) =>
      runPython('-c', program, checkpoint, text),
    ),
    models,
    { recursive: true },
  )
  app = await startApp({ TUNERY_MODELS_DIR: models })
  tuned = await app.trainColourModel()
})
after(async () => {
  await app?.stop()
  rmSync(models, { recursive: true })
})

const ask = (body: object) => app.api('POST', '/completions', { model: tuned, ...body })
const prompt = '<|im_start|>user\ncode of blue?<|im_end|>\n<|im_start|>assistant\nblue-2<|im_end|>\n'
const logprobsRequest = { prompt, echo: true, logprobs: 1, max_tokens: 1, temperature: 0 }

test('the eight-bit form of a model is measured, near the original, and compared with the trainer', async () => {
  await until('the eight-bit form to answer', async () => {
    const { headers } = await ask({ prompt: 'blue', max_tokens: 1 })
    return headers.get('x-weights')?.includes('; eight_bits=1')
  })
  const { distance } = readEightBits(file)!
  assert.ok(distance.divergence < bounds.divergence && distance.same_top > bounds.same_top, JSON.stringify(distance))
  assert.deepEqual((await app.api('GET', `/hub/models/${tiny}`)).body.weights.eight_bits.distance, distance)

  const eight: number[] = (await ask(logprobsRequest)).body.choices[0].logprobs.token_logprobs.slice(1, -1)
  const adapter = path.join(app.dataDir, 'models', tuned, 'adapter.gguf')
  const engine = await startEngine([
    '--no-eight-bits',
    '--model',
    `${tiny}=${file}`,
    '--adapter',
    `${tuned}=${adapter}`,
  ])
  try {
    const { headers, json } = await engine.ask('POST', '/v1/completions', { model: tuned, ...logprobsRequest })
    assert.ok(!String(headers['x-weights']).includes('eight_bits'))
    const original: number[] = json.choices[0].logprobs.token_logprobs.slice(1, -1)
    assert.equal(original.length, eight.length)
    const apart = original.reduce((sum, one, index) => sum + Math.abs(one - eight[index]!), 0) / original.length
    assert.ok(apart > 0 && apart < bounds.nats, `${apart} nats apart on average`)
  } finally {
    await engine.stop()
  }

  const deployed = await app.api('POST', '/deployments', { name: 'colours', model: tuned })
  assert.equal(deployed.status, 201, JSON.stringify(deployed.body))
  const compared = await until('the comparison with the form that is served', async () => {
    const { comparison } = (await app.api('GET', `/fine-tuning/models/${tuned}`)).body
    return comparison?.eight_bits ? comparison : undefined
  })
  assert.ok(compared.agrees && compared.difference < bounds.nats, JSON.stringify(compared))
  assert.ok(compared.change > 5 * bounds.nats, `training changed too little to tell: ${JSON.stringify(compared)}`)
})
