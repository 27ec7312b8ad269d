// vLLM as a child of the engine (TUNERY_ENGINE=vllm): the guarantees of our own engine hold with it.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { trainAdapter } from '../../bench/support/adapters.ts'
import { startService } from '../../bench/support/service.ts'
import { root } from '../../lib/root.ts'
import { client } from '../support/client.ts'
import { metricsOver } from '../support/socket-metrics.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { answersWholeAndStreamed, clientOf, hangUpStopsGeneration } from './shared.ts'
import { base, until } from './upstreams.ts'

type Service = Awaited<ReturnType<typeof startService>>

const settings = {
  TUNERY_ENGINE: 'vllm',
  TUNERY_VLLM_PYTHON: path.join(root, '.local/vllm/bin/python'),
  TUNERY_ENGINE_OPTIONS: '--cache-mb 500',
  TUNERY_TRAINING_PRIORITY: 'normal',
}
const user = (content: string) => [{ role: 'user' as const, content }]
const triage = [
  { role: 'system' as const, content: 'Triage the ticket.' },
  { role: 'user' as const, content: 'I lost the recovery codes for Mail and am shut out. Low priority, no rush.' },
]

/** The API with an operator's key. */
function operatorOf({ dataDir, url }: Service) {
  const args = ['cli/main.ts', 'keys', 'create', '--name', 'op', '--scopes', 'operator', '--json']
  const env = { ...process.env, TUNERY_DATA_DIR: dataDir }
  const { key } = JSON.parse(execFileSync(process.execPath, args, { cwd: root, env, encoding: 'utf8' }))
  return async (method: string, route: string, body?: unknown) => (await client(url, key).api(method, route, body)).body
}

/** Where the service's vLLM listens: its folder is the only one. */
let tmp: string
let service: Service
let tuned: string
before(async () => {
  tmp = mkdtempSync(path.join(os.tmpdir(), 'vllm-'))
  service = await startService({ ...settings, TMPDIR: tmp })
  tuned = await trainAdapter(service.api, 0)
  await service.api('POST', '/deployments', { model: tuned, name: 'triage' })
})
after(async () => {
  await service?.stop()
  rmSync(tmp, { recursive: true, force: true })
})

const sockets = () =>
  readdirSync(tmp)
    .filter((name) => name.startsWith('tunery-vllm-'))
    .map((name) => path.join(tmp, name, 'v.sock'))

/** A figure of vLLM itself, whose metrics need no key. */
async function vllmMetric(name: string): Promise<number> {
  const values = [...(await metricsOver(sockets()[0]!)).matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, 'gm'))]
  assert.ok(values.length > 0, `vLLM has the metric ${name}`)
  return values.reduce((sum, [, value]) => sum + Number(value), 0)
}

/** The processes that have this text in their command line: the leader of vLLM's has the socket's folder there. */
function pidsOf(words: string): number[] {
  const read = (pid: string) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
    } catch {
      return ''
    }
  }
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && read(name).includes(words))
    .map(Number)
}

test('vLLM answers for the base, whole and streamed, and is metered', async () => {
  const generated = () => vllmMetric('vllm:generation_tokens_total')
  const tokens = await generated()
  await answersWholeAndStreamed(service, base)
  await until('vLLM has counted them', async () => (await generated()) > tokens)
  const { engine } = await operatorOf(service)('GET', '/operator/machine')
  assert.equal(engine.chosen, 'vllm')
  assert.equal(engine.models.find(({ id }: { id: string }) => id === base).server, 'vllm')
})

test('an adapter is compared with its training there, answers by name, and leaves the base as it is', async () => {
  const client = clientOf(service)
  const ask = async (model: string) => {
    const asked = { model, messages: triage, max_tokens: 40, temperature: 0 }
    const { data, response } = await client.chat.completions.create(asked).withResponse()
    assert.match(response.headers.get('x-weights')!, /server=vllm/)
    return data.choices[0]!.message.content!
  }
  const { comparison } = await service.api('GET', `/fine-tuning/models/${tuned}`)
  assert.equal(comparison?.agrees, true, JSON.stringify(comparison))
  const [plain, adapted, again] = [await ask(base), await ask('triage'), await ask(base)]
  assert.notEqual(adapted, plain)
  assert.equal(again, plain, 'the base is as it was')
  await answersWholeAndStreamed(service, 'triage')
})

test('control tokens in users’ texts stay text, as in training', async () => {
  const client = clientOf(service)
  const lengthOf = async (content: string) =>
    (await client.chat.completions.create({ model: base, messages: user(content), max_tokens: 1 })).usage!.prompt_tokens
  assert.ok((await lengthOf('a<|im_end|>b')) >= (await lengthOf('ab')) + 3, 'the mark has several tokens')
})

test('a JSON Schema, forced calls of tools, stop sequences and log-probabilities are those of our API', async () => {
  const client = clientOf(service)
  const properties = { name: { type: 'string', maxLength: 12 }, age: { type: 'integer', minimum: 1, maximum: 99 } }
  const schema = { type: 'object', properties, required: ['name', 'age'], additionalProperties: false }
  const asked = { model: 'triage', max_tokens: 80, temperature: 0.7 }
  const structured = await client.chat.completions.create({
    ...asked,
    messages: user('A person, please.'),
    response_format: { type: 'json_schema', json_schema: { name: 'person', strict: true, schema } },
  })
  assert.deepEqual(Object.keys(JSON.parse(structured.choices[0]!.message.content!)), ['name', 'age'])
  const called = await client.chat.completions.create({
    ...asked,
    messages: user('How old is Ada?'),
    tools: [{ type: 'function', function: { name: 'person', parameters: schema, strict: true } }],
    tool_choice: 'required',
  })
  const [call] = called.choices[0]!.message.tool_calls!
  assert.equal(called.choices[0]!.finish_reason, 'tool_calls')
  assert.ok(call?.type === 'function' && typeof JSON.parse(call.function.arguments).age === 'number')
  const whole = { model: base, messages: user('Count to ten.'), max_tokens: 20, temperature: 0 }
  const counted = await client.chat.completions.create({ ...whole, logprobs: true, top_logprobs: 3 })
  const { content } = counted.choices[0]!.logprobs!
  assert.equal(content!.length, counted.usage!.completion_tokens)
  for (const { token, top_logprobs } of content!) {
    assert.equal(top_logprobs.length, 3)
    assert.equal(top_logprobs[0]!.token, token, 'at temperature 0 the likeliest is taken')
  }
  const text = counted.choices[0]!.message.content!
  const stop = text.slice(5, 8)
  const stopped = await client.chat.completions.create({ ...whole, stop })
  assert.equal(stopped.choices[0]!.message.content, text.slice(0, text.indexOf(stop)))
  assert.equal(stopped.choices[0]!.finish_reason, 'stop')
})

test('a prompt that was computed before is cached, for its own account alone', async () => {
  const client = clientOf(service)
  const long = user(`Say yes. ${'The river runs to the sea. '.repeat(20)}`)
  const cached = async (caller: OpenAI) => {
    const { usage } = await caller.chat.completions.create({ model: base, messages: long, max_tokens: 2 })
    return usage!.prompt_tokens_details!.cached_tokens!
  }
  assert.equal(await cached(client), 0)
  assert.ok((await cached(client)) > 50)
  const account = { name: 'other', owner: { name: 'o' } }
  const { key } = await operatorOf(service)('POST', '/operator/accounts', account)
  assert.equal(await cached(new OpenAI({ baseURL: service.url, apiKey: key, maxRetries: 0 })), 0)
})

test('a client that disconnects stops vLLM’s generation', () =>
  hangUpStopsGeneration(service, 'triage', () => vllmMetric('vllm:num_requests_running')))

test('a killed vLLM: an error event, then it is started again with its adapters', async () => {
  const client = clientOf(service)
  const [socket] = sockets()
  const asked = { model: 'triage', messages: user('Write a long story about a river.'), max_tokens: 1500 }
  let seen = 0
  const read = async () => {
    for await (const _ of await client.chat.completions.create({ ...asked, temperature: 1, stream: true }))
      if (++seen === 4) for (const pid of pidsOf(path.dirname(socket!))) process.kill(pid, 'SIGKILL')
  }
  await assert.rejects(read, OpenAI.APIError)
  assert.ok(seen >= 4)
  const { choices } = await client.chat.completions.create({ model: 'triage', messages: triage, max_tokens: 5 })
  assert.ok(choices[0]!.message.content)
  assert.notEqual(sockets()[0], socket)
})

test('a vLLM that cannot serve a base leaves it to our own engine, which says why', async () => {
  const other = await startService({ ...settings, TUNERY_VLLM_OPTIONS: '--max-model-len never' })
  try {
    await answersWholeAndStreamed(other, base)
    const { engine } = await operatorOf(other)('GET', '/operator/machine')
    const [model] = engine.models
    assert.equal(model.server, 'engine')
    assert.match(model.server_problem, /vLLM could not be started: .*max-model-len/)
  } finally {
    await other.stop()
  }
})

test('a base that vLLM loads and cannot compute is served by our own engine', async () => {
  // vLLM's build for processors has no attention for heads of 16.
  const other = await startService({ ...settings, TUNERY_MODELS_DIR: tinyModelsDir() })
  try {
    await answersWholeAndStreamed(other, tiny)
    const { engine } = await operatorOf(other)('GET', '/operator/machine')
    assert.match(engine.models[0].server_problem, /could not compute with it: /)
  } finally {
    await other.stop()
  }
})

test('a killed service leaves no vLLM behind', async () => {
  const folder = path.dirname(sockets()[0]!)
  assert.ok(pidsOf(folder).length > 0)
  process.kill(service.pid, 'SIGKILL')
  await until('they have ended', async () => pidsOf(folder).length === 0, 30)
})
