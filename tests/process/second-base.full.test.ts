// What is proven on the packaged base holds on a second real one of another family.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gemma3 } from '../support/bases.ts'
import { client, colourRows, until } from '../support/client.ts'
import { dataFolder } from '../support/server.ts'

test('a second family is trained, served as it was trained, called with tools, and taken away', {
  skip: gemma3.skip,
}, async (t) => {
  const data = dataFolder('second-base', { TUNERY_MODELS_DIR: gemma3.models })
  t.after(() => data.remove())
  const { api, upload, untilEnded, exported } = client((await data.start()).url, data.key())
  const ask = (model: string, content: string, more: object = {}) =>
    api('POST', '/chat/completions', {
      model,
      messages: [{ role: 'user', content }],
      max_tokens: 24,
      temperature: 0,
      ...more,
    })

  const dataset = (await upload(colourRows(16))).body
  const training_config = { epochs: 6, batch_size: 4, learning_rate: 0.001 }
  const created = await api('POST', '/fine-tuning/jobs', {
    model_id: gemma3.id,
    dataset_id: dataset.id,
    config: { training_config },
  })
  assert.equal(created.status, 201, JSON.stringify(created.body))
  const job = await untilEnded(created.body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const model = job.model!
  assert.equal((await ask(model, 'code of blue?')).body.choices[0].message.content, 'blue-2')

  const stopped = await ask(model, 'code of white?', { stop: ['-'] })
  assert.deepEqual(stopped.body.choices[0].message.content, 'white')
  const deployed = await api('POST', '/deployments', { name: 'second', model })
  assert.equal(deployed.status, 201, JSON.stringify(deployed.body))
  const comparison = await until('the comparison with the trainer', async () => {
    return (await api('GET', `/fine-tuning/models/${model}`)).body.comparison
  })
  assert.ok(comparison.agrees, JSON.stringify(comparison))

  const parameters = { type: 'object', properties: { colour: { type: 'string', enum: ['red', 'blue'] } } }
  const called = await ask('second', 'code of red?', {
    tools: [{ type: 'function', function: { name: 'code', parameters: { ...parameters, required: ['colour'] } } }],
    tool_choice: 'required',
    max_tokens: 64,
  })
  const [call] = called.body.choices[0].message.tool_calls
  assert.ok(['red', 'blue'].includes(JSON.parse(call.function.arguments).colour), JSON.stringify(called.body))

  const gguf = await exported({ model, format: 'gguf', quantization: 'q8_0' })
  assert.deepEqual([gguf.status, gguf.check?.agrees], ['ready', true], JSON.stringify(gguf.error ?? gguf.check))
})
