// Adapters of a base, loaded and unloaded while requests run.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { full } from '../../support/full.ts'
import { chat, type Engine, modelName, modelPath, readEvents, root, startEngine, textOf } from './engine-process.ts'

let engine: Engine
const folder = mkdtempSync(join(tmpdir(), 'tunery-adapters-'))
const [first, second, foreign] = ['first', 'second', 'foreign'].map((name) => join(folder, `${name}.gguf`)) as [
  string,
  string,
  string,
]

before(async () => {
  const make = (...args: string[]) =>
    execFileSync(join(root, '.local/python/bin/python'), [
      join(import.meta.dirname, 'make-adapter.py'),
      join(root, '.local/llama/source/gguf-py'),
      ...args,
    ])
  make(first, '1')
  make(second, '2')
  make(foreign, '3', '512')
  engine = await startEngine()
})
after(async () => {
  await engine.stop()
  rmSync(folder, { recursive: true })
})

const load = (lora_name: string, lora_path: string, base_model_name = modelName) =>
  engine.ask('POST', '/v1/load_lora_adapter', { lora_name, lora_path, base_model_name })
const unload = (lora_name: string) => engine.ask('POST', '/v1/unload_lora_adapter', { lora_name })
// A seed disables the prefix cache: the kernels for adapters round a longer batch differently from a single token.
async function answer(model: string) {
  const { status, json } = await engine.ask(
    'POST',
    '/v1/chat/completions',
    chat('Tell me a story about a fox.', { model, max_tokens: 16, seed: 1 }),
  )
  assert.equal(status, 200, JSON.stringify(json))
  return json.choices[0].message.content as string
}

test('each adapter changes only answers under its own name, also concurrently', async () => {
  const base = await answer(modelName)
  assert.equal((await load('one', first)).status, 200)
  assert.equal((await load('two', second)).status, 200)
  assert.equal((await load('one', first)).status, 200)
  const [one, two, still] = await Promise.all([answer('one'), answer('two'), answer(modelName)])
  assert.equal(new Set([base, one, two]).size, 3)
  assert.equal(still, base)
  assert.deepEqual([await answer('one'), await answer('two')], [one, two])
  const list = (await engine.ask('GET', '/v1/models')).json.data
  assert.deepEqual(
    list.map((card: { id: string; parent: string | null }) => [card.id, card.parent]),
    [
      [modelName, null],
      ['one', modelName],
      ['two', modelName],
    ],
  )
  assert.equal((await unload('one')).status, 200)
  assert.equal((await engine.ask('POST', '/v1/chat/completions', chat('Hi', { model: 'one' }))).status, 404)
  assert.equal((await unload('one')).status, 404)
  assert.deepEqual([await answer(modelName), await answer('two')], [base, two])
  // The name is free again.
  assert.equal((await load('one', second)).status, 200)
  assert.equal(await answer('one'), two)
  await unload('one')
  await unload('two')
})

test('one of many adapters takes the context of another, and answers as in one of its own', async () => {
  const names = Array.from({ length: 20 }, (_, index) => `many-${index}`)
  const fileOf = (index: number) => (index % 2 === 0 ? first : second)
  for (const [index, name] of names.entries()) assert.equal((await load(name, fileOf(index))).status, 200)
  // Enough of them are idle from the 17th on.
  const answers: string[] = []
  for (const name of names) answers.push(await answer(name))
  const [one, two] = answers
  assert.notEqual(one, two)
  assert.deepEqual(
    answers,
    names.map((_, index) => (index % 2 === 0 ? one : two)),
  )
  assert.ok((await engine.metric('runners')) < names.length)
  // The first one's context went to another; now it gets one with another adapter's cache.
  assert.equal(await answer('many-0'), one)
  for (const name of names) await unload(name)
})

test('a missing file, not an adapter, one for another base, or a name in use is rejected with the reason', async () => {
  const rejected = async (...args: Parameters<typeof load>) => {
    const { status, json } = await load(...args)
    return [status, json.error.code, json.error.message]
  }
  const [status, code, message] = await rejected('x', join(folder, 'nothing.gguf'))
  assert.deepEqual([status, code], [400, 'invalid_request'])
  assert.match(message, /does not exist/)
  assert.match((await rejected('x', modelPath))[2], /expect general\.type to be 'adapter'/)
  assert.match((await rejected('x', import.meta.filename))[2], /can't be loaded as an adapter/)
  const foreignAnswer = await rejected('x', foreign)
  assert.equal(foreignAnswer[0], 400)
  assert.match(foreignAnswer[2], /incorrect shape|wrong base/)
  assert.deepEqual((await rejected('x', first, 'nobody')).slice(0, 2), [404, 'model_not_found'])
  await load('y', first)
  assert.deepEqual((await rejected('y', second)).slice(0, 2), [400, 'name_taken'])
  assert.equal((await engine.ask('POST', '/internal/unload_model', { name: modelName })).json.error.code, 'in_use')
  await unload('y')
})

test('a model has the drafts of its own file while it is loaded, and is served without a broken one', async () => {
  const drafts = join(folder, 'drafts.bin')
  const loadWith = (lora_name: string) =>
    engine.ask('POST', '/v1/load_lora_adapter', { lora_name, lora_path: first, base_model_name: modelName, drafts })
  const draftTokens = async () =>
    Object.fromEntries(
      (await engine.ask('GET', '/v1/models')).json.data.map((card: { id: string; draft_tokens: number }) => [
        card.id,
        card.draft_tokens,
      ]),
    )
  const header = Buffer.from('TNDRAFT1')
  writeFileSync(drafts, Buffer.concat([header, Buffer.from(Uint32Array.of(2, 9, 0xffffffff, 3, 1, 0).buffer)]))
  assert.equal((await loadWith('taught')).status, 200)
  await load('plain', second)
  assert.deepEqual(await draftTokens(), { [modelName]: 0, taught: 2, plain: 0 })
  await unload('taught')
  writeFileSync(drafts, header)
  assert.equal((await loadWith('taught')).status, 200)
  assert.deepEqual(await draftTokens(), { [modelName]: 0, taught: 0, plain: 0 })
  assert.match(engine.stderr(), /a draft file is ignored/)
  assert.equal((await engine.ask('POST', '/v1/chat/completions', chat('Hi', { model: 'taught' }))).status, 200)
  rmSync(drafts)
  await unload('taught')
  await unload('plain')
})

test('a stream continues to its end while its adapter is unloaded', async () => {
  await load('leaving', first)
  const stream = engine.stream(
    '/v1/chat/completions',
    chat('Tell me a story about a fox.', { model: 'leaving', max_tokens: 40, stream: true }),
  )
  await stream.headers
  const unloaded = unload('leaving')
  const events = await readEvents(stream)
  assert.ok(events.done)
  assert.ok(textOf(events).length > 0)
  assert.equal((await unloaded).status, 200)
})

test('a merged file gives the same log-probabilities as base and adapter together', full, async () => {
  const merged = join(folder, 'merged.gguf')
  // No pipe as stdin: its end would stop the merge.
  execFileSync(join(root, '.local/python/bin/python'), ['-m', 'trainer.cli.merge', modelPath, first, merged], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  assert.equal((await load('apart', first)).status, 200)
  assert.equal((await engine.ask('POST', '/internal/load_model', { name: 'merged', path: merged })).status, 200)
  const prompt =
    'The fox ran through the forest until it came to a river. It looked for a bridge, but there was none, so it ' +
    'sat down and waited for the rain to end. In the morning an old man came by, who had a boat, and asked what it ' +
    'was doing there all alone. I am waiting for the water to go, said the fox. Then you will wait for a long time, ' +
    'said the man, and laughed.'
  const score = async (model: string) => {
    const { status, json } = await engine.ask('POST', '/v1/completions', {
      model,
      prompt,
      echo: true,
      logprobs: 1,
      max_tokens: 1,
    })
    assert.equal(status, 200, JSON.stringify(json))
    return json.choices[0].logprobs.token_logprobs.slice(1) as number[]
  }
  const distance = (one: number[], other: number[]) =>
    one.reduce((sum, value, position) => sum + Math.abs(value - other[position]!), 0) / one.length
  const separate = await score('apart')
  const [fromBase, fromMerged] = [distance(separate, await score(modelName)), distance(separate, await score('merged'))]
  // 8-bit rounding of activations alone makes a distance of about 0.06.
  assert.ok(
    fromMerged < 0.1 && fromMerged < fromBase / 2,
    `${fromMerged} from the merged file, ${fromBase} from the base`,
  )
})
