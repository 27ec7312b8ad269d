// Calls in the form of Qwen3-Coder's template through a real engine, whole and streamed.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../../lib/root.ts'
import { tiny, tinyModelsDir } from '../../support/tiny.ts'
import { chat, type Engine, readEvents, startEngine } from './engine-process.ts'

const source = path.join(root, '.local/llama/source')
const template = path.join(source, 'models/templates/Qwen3-Coder.jinja')
const skip = existsSync(template) ? false : 'npm run setup unpacks the template'
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-learned-calls-'))
let engine: Engine
before(async () => {
  if (skip) return
  const model = path.join(folder, 'model.gguf')
  // The grammar holds it to calls, whatever it has learned.
  const base = path.join(tinyModelsDir(), tiny, 'model.gguf')
  const program = path.join(source, 'gguf-py/gguf/scripts/gguf_new_metadata.py')
  const python = path.join(root, '.local/python/bin/python')
  execFileSync(python, [program, '--chat-template-file', template, base, model], { stdio: 'pipe' })
  engine = await startEngine(['--model', `smol=${model}`])
})
after(async () => {
  await engine?.stop()
  rmSync(folder, { recursive: true, force: true })
})

const parameters = {
  type: 'object',
  properties: {
    // Long enough for several of the moments at which streams are written, whatever tokens the model takes.
    city: { type: 'string', minLength: 300, maxLength: 310 },
    days: { type: 'integer', minimum: 1, maximum: 7 },
    unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
  },
  required: ['city', 'days', 'unit'],
  additionalProperties: false,
}
const tools = [
  { type: 'function', function: { name: 'get_weather', description: 'The weather.', parameters, strict: true } },
]
const question = 'How is the weather in Paris this week? Answer in celsius.'
const body = { ...chat(question), max_tokens: 600, tools, tool_choice: 'required', parallel_tool_calls: false }

function assertCall(call: { name: string; arguments: string }): void {
  assert.equal(call.name, 'get_weather')
  const values = JSON.parse(call.arguments)
  assert.deepEqual(Object.keys(values), ['city', 'days', 'unit'])
  assert.equal(typeof values.city, 'string')
  assert.ok(Number.isInteger(values.days) && values.days >= 1 && values.days <= 7, call.arguments)
  assert.ok(['celsius', 'fahrenheit'].includes(values.unit), call.arguments)
}

test('a model is held to the calls of its template, and they arrive as JSON, whole and streamed', {
  skip,
}, async () => {
  const { status, json } = await engine.ask('POST', '/v1/chat/completions', body)
  assert.equal(status, 200, JSON.stringify(json))
  const [{ message, finish_reason }] = json.choices
  assert.equal(finish_reason, 'tool_calls')
  assert.equal(message.content, null)
  assertCall(message.tool_calls[0].function)
  const { data } = await readEvents(engine.stream('/v1/chat/completions', { ...body, stream: true }))
  const deltas = data.flatMap(({ choices: [choice] }) => choice?.delta.tool_calls ?? [])
  assert.deepEqual(
    { name: deltas[0].function.name, arguments: deltas.map((delta) => delta.function.arguments).join('') },
    message.tool_calls[0].function,
  )
  assert.ok(deltas.length > 3, 'the arguments arrive piece by piece')
})

test('the prompt of the next turn has the call and its result in the template’s form', { skip }, async () => {
  const call = {
    id: 'call_1',
    type: 'function',
    function: { name: 'get_weather', arguments: '{"city": "Paris", "days": 2, "unit": "celsius"}' },
  }
  const messages = [
    { role: 'user', content: question },
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'call_1', content: 'Sun' },
  ]
  const { status, json } = await engine.ask('POST', '/v1/chat/completions', {
    ...body,
    messages,
    tool_choice: 'auto',
    max_tokens: 4,
  })
  assert.equal(status, 200, JSON.stringify(json))
})
