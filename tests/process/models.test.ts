// The models of an account: the engine serves what was trained, adapters are imported, models in use are not deleted.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import Database from 'better-sqlite3'
import { root } from '../../lib/root.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { makeTiny, modelsDir, tiny, tinyModelsDir } from '../support/tiny.ts'

let app: TestApp
let dataset: string
let zips: string
let bases: string
/** The same as tiny, as if the engine could not serve adapters of it. */
const merging = 'test/merging'
/** Its template asks for thoughts only on request. */
const thinking = 'test/thinking'
const thinkingTemplate = `{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}\
{{ '<think>' + message.reasoning_content if enable_thinking and message.reasoning_content }}</think>{% endif %}\
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{{ '<think>' if enable_thinking else 'Without any thought: </think>' }}{% endif %}`
let trained: string
before(async () => {
  bases = mkdtempSync(path.join(os.tmpdir(), 'tunery-bases-'))
  for (const id of [tiny, merging]) cpSync(path.join(tinyModelsDir(), tiny), path.join(bases, id), { recursive: true })
  const made = modelsDir(thinking, 'trainer/tests/make_tiny.py', thinkingTemplate, (checkpoint) => {
    makeTiny(checkpoint)
    writeFileSync(path.join(checkpoint, 'chat_template.jinja'), thinkingTemplate)
  })
  cpSync(path.join(made, thinking), path.join(bases, thinking), { recursive: true })
  const description = path.join(bases, merging, 'model.json')
  const described = JSON.parse(readFileSync(description, 'utf8'))
  writeFileSync(description, JSON.stringify({ ...described, id: merging, merges_adapters: true }))
  app = await startApp({ TUNERY_MAX_ADAPTER_MB: '40', TUNERY_MODELS_DIR: bases, TUNERY_SHARE_LINKS: 'on' })
  dataset = (await app.upload(colourRows(16))).body.id
  trained = await app.colourModel()
  zips = mkdtempSync(path.join(os.tmpdir(), 'tunery-zips-'))
  execFileSync(
    path.join(root, '.local/python/bin/python'),
    ['-m', 'tests.support.adapter_zips', folderOf(trained, 'adapter'), zips],
    { cwd: root },
  )
})
after(async () => {
  await app.stop()
  for (const folder of [zips, bases]) rmSync(folder, { recursive: true, force: true })
})

const folderOf = (model: string, name: string) => path.join(app.dataDir, 'models', model, name)
async function train(method: string, more: object = {}): Promise<string> {
  const learning_rate = method === 'full' ? 0.003 : 0.02
  const config = { method, training_config: { epochs: 12, batch_size: 4, learning_rate } }
  const { body } = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config, ...more })
  const job = await app.untilEnded(body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  return job.model!
}
async function importZip(name: string, fields: Record<string, string> = {}) {
  const form = new FormData()
  for (const [field, value] of Object.entries(fields)) form.set(field, value)
  form.set('file', new Blob([new Uint8Array(readFileSync(path.join(zips, `${name}.zip`)))]), `${name}.zip`)
  return app.api('POST', '/fine-tuning/models', form)
}
const model = async (id: string) => (await app.api('GET', `/fine-tuning/models/${id}`)).body
const deploy = (id: string, name: string) => app.api('POST', '/deployments', { model: id, name })
const answerOf = async (id: string) => {
  const { body } = await app.api('POST', '/chat/completions', {
    model: id,
    messages: [{ role: 'user', content: 'code of blue?' }],
    temperature: 0,
    max_tokens: 8,
  })
  return body.choices?.[0].message.content ?? body
}
/** Replaces the file that the engine serves and clears the stored comparison. */
function replaceServedFile(id: string, gguf: string, other: string) {
  copyFileSync(folderOf(other, gguf), folderOf(id, gguf))
  const db = new Database(path.join(app.dataDir, 'tunery.db'))
  db.prepare('update models set comparison_json = null where id = ?').run(id)
  db.close()
}

for (const method of ['lora', 'qlora', 'full'])
  test(`${method}: the engine's probabilities match the training; a wrong file is not deployed`, full, async () => {
    const [model_id, other] = [
      await train(method),
      await train(method, { dataset_id: (await app.upload(colourRows(8).replaceAll('-', '+'))).body.id }),
    ]
    const { comparison } = await model(model_id)
    assert.equal(comparison.agrees, true, JSON.stringify(comparison))
    assert.ok(comparison.change > 0.2, JSON.stringify(comparison))
    assert.equal((await deploy(other, `good-${method}`)).body.status, 'ready')
    const gguf = method === 'full' ? 'model.gguf' : 'adapter.gguf'
    replaceServedFile(model_id, gguf, other)
    // Restart the engine, as it keeps a loaded file open.
    const pid = app.services.enginePid()!
    process.kill(pid, 'SIGKILL')
    await until('the end of the engine is known', () => app.services.enginePid() !== pid)
    const refused = await deploy(model_id, `bad-${method}`)
    assert.equal(refused.body.error?.code, 'model_disagrees', JSON.stringify(refused.body))
    assert.match(refused.body.error.message, /do not follow the training/)
    assert.equal(
      (await app.api('PUT', `/deployments/good-${method}`, { model: model_id })).body.error.code,
      'model_disagrees',
    )
    assert.equal((await app.api('GET', `/deployments/good-${method}`)).body.model, other)
  })

test('an imported adapter is served and deleted like one of a job', async () => {
  const imported = await importZip('good', { name: 'mine' })
  assert.equal(imported.status, 201, JSON.stringify(imported.body))
  const { id, name, job_id, base_model_id, comparison } = imported.body
  assert.deepEqual({ name, job_id, base_model_id }, { name: 'mine', job_id: null, base_model_id: tiny })
  assert.equal(comparison.agrees, true, JSON.stringify(comparison))
  assert.equal((await deploy(id, 'brought')).body.status, 'ready')
  assert.equal(await answerOf('brought'), await answerOf(trained))
  assert.equal((await app.other.api('GET', `/fine-tuning/models/${id}`)).body.error.code, 'model_not_found')
  assert.ok((await app.api('GET', '/fine-tuning/models?limit=1')).body.has_more)

  const needed = await app.api('DELETE', `/fine-tuning/models/${id}`)
  assert.equal(needed.body.error.code, 'in_use')
  assert.match(needed.body.error.message, /deployment brought/)
  await app.api('DELETE', '/deployments/brought')
  assert.equal((await app.other.api('DELETE', `/fine-tuning/models/${id}`)).status, 404)
  assert.deepEqual((await app.api('DELETE', `/fine-tuning/models/${id}`)).body, { id, deleted: true })
  assert.ok(!existsSync(folderOf(id, '')))
  assert.equal((await answerOf(id)).error.code, 'model_not_found')
})

test(
  'adapters that are not plain answer as PEFT computes them: converted where that is exact, else merged',
  full,
  async () => {
    execFileSync(
      path.join(root, '.local/python/bin/python'),
      ['-m', 'tests.support.foreign_adapters', path.join(tinyModelsDir(), tiny, 'hf'), zips],
      { cwd: root },
    )
    const expected = {
      empty: 'adapter',
      'peft-pissa': 'adapter',
      'peft-corda': 'adapter',
      'peft-rslora': 'adapter',
      'peft-dora': 'model',
      'peft-embeddings': 'adapter',
      'peft-head': 'model',
    }
    for (const [kind, becomes] of Object.entries(expected)) {
      const { status, body } = await importZip(kind, { base_model_id: tiny })
      assert.equal(status, 201, `${kind}: ${JSON.stringify(body)}`)
      assert.equal(body.kind, becomes, kind)
      assert.equal(body.comparison.agrees, true, `${kind}: ${JSON.stringify(body.comparison)}`)
      assert.ok(body.comparison.change > 0.02, `${kind}: ${JSON.stringify(body.comparison)}`)
      assert.equal((await deploy(body.id, `import-${kind}`)).body.status, 'ready')
      assert.equal(typeof (await answerOf(`import-${kind}`)), 'string')
      await app.api('DELETE', `/deployments/import-${kind}`)
      if (becomes === 'model') {
        const db = new Database(path.join(app.dataDir, 'tunery.db'))
        db.prepare('update models set comparison_json = null where id = ?').run(body.id)
        db.close()
        assert.equal((await deploy(body.id, 'again')).body.status, 'ready')
        assert.equal((await model(body.id)).comparison.agrees, true, 'compared with the base that it was merged into')
        await app.api('DELETE', '/deployments/again')
      }
      assert.equal((await app.api('DELETE', `/fine-tuning/models/${body.id}`)).status, 200)
    }
  },
)

test('a model that continued an imported adapter works after its deletion, and keeps its lineage', full, async () => {
  const { id } = (await importZip('good', { name: 'mine' })).body
  const own = (await app.upload(colourRows(8), { name: 'own' })).body
  const continued = await train('lora', { model_id: id, dataset_id: own.id })
  assert.equal((await app.api('DELETE', `/fine-tuning/models/${id}`)).status, 200)
  assert.ok(await answerOf(continued), 'it does not need what it continued')
  assert.equal((await app.api('DELETE', `/datasets/${own.id}`)).status, 200)
  const { lineage, parent_model_id, job_id } = await model(continued)
  assert.equal(parent_model_id, id)
  const [upload, last] = lineage.steps
  assert.deepEqual(
    [lineage.steps.length, upload.model_id, upload.name, upload.job_id, upload.dataset],
    [2, id, 'mine', null, null],
  )
  assert.match(upload.sha256, /^[0-9a-f]{64}$/)
  assert.deepEqual(
    [last.model_id, last.job_id, last.dataset],
    [continued, job_id, { id: own.id, name: 'own', sha256: own.sha256 }],
    'the lineage survives the deletion of model and dataset',
  )
})

test('a model that another model or an unfinished job needs is not deleted', full, async () => {
  const whole = await train('full')
  const onWhole = await train('lora', { model_id: whole })
  assert.match((await app.api('DELETE', `/fine-tuning/models/${whole}`)).body.error.message, new RegExp(onWhole))
  const { body } = await app.api('POST', '/fine-tuning/jobs', {
    model_id: onWhole,
    dataset_id: dataset,
    config: { training_config: { epochs: 50 } },
  })
  assert.match((await app.api('DELETE', `/fine-tuning/models/${onWhole}`)).body.error.message, new RegExp(body.id))
  await app.api('POST', `/fine-tuning/jobs/${body.id}/cancel`)
  const { job_id } = await model(whole)
  for (const id of [onWhole, whole]) assert.equal((await app.api('DELETE', `/fine-tuning/models/${id}`)).status, 200)
  assert.equal((await app.api('GET', `/fine-tuning/jobs/${job_id}/rows`)).body.error.code, 'model_not_found')
})

test('broken, hostile and mismatched adapters are refused and leave no files', full, async () => {
  const before = readdirSync(path.join(app.dataDir, 'models')).length
  const expected: Record<string, RegExp> = {
    pickle: /may run code/,
    rank: /must be \[/,
    dora: /lacks|do not fit/,
    alora: /'alora_invocation_tokens' can be neither kept/,
    corda: /path_initial_model_for_weight_conversion/,
    layer: /no linear layer model\.layers\.99/,
    other: /not one of a plain LoRA adapter/,
    proto: /__proto__ is not one of a plain LoRA adapter/,
    nan: /not numbers/,
    huge: /computes no numbers/,
    cut: /cut off|not a whole/,
    header: /header is too long/,
    offsets: /cut off|size is not|does not begin/,
    bomb: /larger than 40 MB/,
    twice: /several files named/,
    json: /not a JSON object/,
    nothing: /no zip archive/,
  }
  for (const [name, pattern] of Object.entries(expected)) {
    const { status, body } = await importZip(name)
    assert.equal(status, 400, `${name}: ${JSON.stringify(body)}`)
    assert.equal(body.error.code, 'adapter_invalid', name)
    assert.match(body.error.message, pattern, name)
    assert.ok(!body.error.message.includes(app.dataDir), name)
  }
  assert.equal((await importZip('nobase')).body.error.code, 'model_not_found')
  assert.equal((await importZip('good', { base_model_id: 'no/such' })).body.error.code, 'model_not_found')
  assert.match((await importZip('good', { base_model_id: trained })).body.error.message, /itself an adapter/)
  assert.equal(
    (await importZip('nobase', { base_model_id: tiny })).status,
    201,
    'base_model_id overrides the configuration',
  )
  assert.equal((await importZip('good', { surprise: '1' })).body.error.code, 'unknown_field')
  assert.equal(readdirSync(path.join(app.dataDir, 'models')).length, before + 1)
  assert.deepEqual(
    readdirSync(path.join(app.dataDir, 'runs')).filter((name) => name.startsWith('imp_')),
    [],
  )
})

test('a model without rows to compare can be deployed; one that is deleted meanwhile cannot', full, async () => {
  const rows = Array.from({ length: 6 }, (_, i) =>
    JSON.stringify({ messages: [{ role: 'assistant', content: `Welcome ${i}.` }] }),
  ).join('\n')
  const greeting = await train('lora', { dataset_id: (await app.upload(rows)).body.id })
  assert.equal((await model(greeting)).comparison, null)
  assert.equal((await deploy(greeting, 'greeting')).body.status, 'ready')
  const gone = await app.colourModel()
  const [deployed, deleted] = await Promise.all([
    deploy(gone, 'gone'),
    app.api('DELETE', `/fine-tuning/models/${gone}`),
  ])
  assert.ok(
    deployed.status === 201
      ? deleted.body.error.code === 'in_use'
      : deployed.body.error.code === 'model_not_found' && deleted.status === 200,
  )
})

test('a base whose adapters the engine cannot serve: jobs and imports end with whole models', async () => {
  assert.equal((await app.api('GET', `/hub/models/${merging}`)).body.merges_adapters, true)
  const made = await model(await train('lora', { model_id: merging }))
  assert.deepEqual([made.kind, made.method, made.comparison.agrees], ['model', 'lora', true])
  assert.ok(made.comparison.change > 0.2, JSON.stringify(made.comparison))
  // What so small a model says after so few steps depends on the machine's arithmetic.
  assert.notEqual(await answerOf(made.id), await answerOf(merging))
  assert.ok(existsSync(folderOf(made.id, 'hf/config.json')) && !existsSync(folderOf(made.id, 'adapter')))
  const imported = (await importZip('good', { base_model_id: merging })).body
  assert.deepEqual([imported.kind, imported.comparison.agrees], ['model', true], JSON.stringify(imported))
})

test('answers to requests that differ from the training say so', async () => {
  const system = 'You know the codes.'
  const rows = colourRows(8)
    .split('\n')
    .map((row) => {
      const { messages } = JSON.parse(row)
      return JSON.stringify({ messages: [{ role: 'system', content: system }, ...messages] })
    })
  const dataset_id = (await app.upload(rows.join('\n'))).body.id
  const config = { training_config: { epochs: 1 } }
  const { body } = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })
  const { model: id } = await app.untilEnded(body.id)
  const { trained_with } = await model(id!)
  assert.match(trained_with.chat_template_sha256, /^[0-9a-f]{64}$/)
  assert.deepEqual(
    { ...trained_with, chat_template_sha256: '' },
    {
      system_prompt: 'same',
      system_prompt_text: system,
      tools: 'none',
      thoughts: null,
      thoughts_asked: false,
      chat_template_sha256: '',
    },
  )
  await deploy(id!, 'asked')
  const user = { role: 'user', content: 'code of blue?' }
  const say = (content: string) => ({ messages: [{ role: 'system', content }, user] })
  const tools = [{ type: 'function', function: { name: 'find' } }]
  const post = (path: string, body: object) =>
    fetch(`${app.url}${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  const warnings = async (body: object, path = '/chat/completions', status = 200) => {
    const answer = await post(path, { model: 'asked', max_tokens: 1, ...body })
    assert.equal(answer.status, status, await answer.clone().text())
    await answer.text()
    return answer.headers.get('x-warnings')
  }
  assert.equal(await warnings(say(system)), null)
  assert.equal(await warnings(say('You know nothing.')), 'system_prompt_differs')
  assert.equal(await warnings({ messages: [user], tools }), 'system_prompt_missing, tools_untrained')
  assert.equal(await warnings({ messages: [user], stream: true }), 'system_prompt_missing')
  assert.equal(await warnings({ prompt: 'code of blue?' }, '/completions'), 'template_missing')
  assert.equal(await warnings({ input: 'code of blue?', max_tokens: undefined }, '/responses'), 'system_prompt_missing')
  const both = [{ messages: [user] }, say(system)]
  assert.equal(await warnings({ requests: both }, '/chat/completions/batch'), 'system_prompt_missing')
  // It is there before the model answers, as a stream that waits for it begins with keepalives.
  const failed = await warnings({ messages: [user], logit_bias: { 1e6: 1 } }, '/chat/completions', 400)
  assert.equal(failed, 'system_prompt_missing')
  assert.equal(await warnings({ messages: [user], model: tiny }), null, 'a base has no training here')
  // Colours were trained without a system prompt.
  assert.equal(await warnings({ ...say(system), model: trained }), 'system_prompt_untrained')

  const { link } = (await app.api('POST', `/fine-tuning/models/${id}/shares`, {})).body
  const visitors = await post('/share/chat', { token: link.split('#')[1], messages: [user] })
  assert.deepEqual([visitors.status, visitors.headers.get('x-warnings')], [200, 'system_prompt_missing'])
  const requests = [{ messages: [user] }, say(system)].map((body, index) => ({
    custom_id: `${index}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'asked', max_tokens: 1, ...body },
  }))
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new File([requests.map((each) => JSON.stringify(each)).join('\n')], 'requests.jsonl'))
  const headers = { authorization: `Bearer ${app.key}` }
  const file = (await (await fetch(`${app.url}/files`, { method: 'POST', headers, body: form })).json()) as {
    id: string
  }
  const fields = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const { body: batch } = await app.api('POST', '/batches', fields)
  const output = await until(
    'the batch',
    async () => (await app.api('GET', `/batches/${batch.id}`)).body.output_file_id,
  )
  const results = await (await fetch(`${app.url}/files/${output}/content`, { headers })).text()
  const warned = new Map(
    results
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
      .map((line) => [line.custom_id, line.response.warnings]),
  )
  assert.deepEqual([warned.get('0'), warned.get('1')], [['system_prompt_missing'], undefined])

  const template = path.join(bases, tiny, 'hf/chat_template.jinja')
  writeFileSync(template, `${readFileSync(template, 'utf8')}{# later #}`)
  await until('the other template', async () => (await warnings(say(system))) === 'template_differs')
})

test('a model that was trained on thoughts is asked for them, unless a request says otherwise', async () => {
  const rows = colourRows(8)
    .split('\n')
    .map((row) => {
      const [user, answer] = JSON.parse(row).messages
      return JSON.stringify({ messages: [user, { ...answer, reasoning_content: 'It is a colour.' }] })
    })
  const dataset_id = (await app.upload(rows.join('\n'))).body.id
  const id = await train('lora', { model_id: thinking, dataset_id })
  const { thoughts, thoughts_asked } = (await model(id)).trained_with
  assert.deepEqual([thoughts, thoughts_asked], ['all', true])
  const ask = async (model: string, settings: object) => {
    const messages = [{ role: 'user', content: 'code of blue?' }]
    const response = await fetch(`${app.url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages, temperature: 0, max_tokens: 32, ...settings }),
    })
    const body = await response.text()
    assert.equal(response.status, 200, body)
    const { choices, usage } = JSON.parse(body)
    const thought = choices[0].message.reasoning_content !== undefined
    return [thought, usage.prompt_tokens, response.headers.get('x-warnings')]
  }
  const [, on] = await ask(thinking, { chat_template_kwargs: { enable_thinking: true } })
  const [, off] = await ask(thinking, {})
  assert.notEqual(on, off)
  for (const settings of [{}, { chat_template_kwargs: { other: 1 } }, { reasoning_effort: 'high' }])
    assert.deepEqual(await ask(id, settings), [true, on, null], JSON.stringify(settings))
  for (const settings of [
    { chat_template_kwargs: { enable_thinking: false } },
    { chat_template_kwargs: { reasoning: false } },
    { chat_template_kwargs: { thinking_budget: 0 } },
    { reasoning_effort: 'none' },
  ])
    assert.deepEqual(await ask(id, settings), [false, off, 'thoughts_off'], JSON.stringify(settings))
})

test('tokenizer, template and end token are recorded in the job and in its result', async () => {
  const { job_id } = await model(trained)
  const { tokenizer } = (await app.job(job_id)).resolved_config
  assert.match(tokenizer!.sha256!, /^[0-9a-f]{64}$/)
  assert.match(tokenizer!.chat_template_sha256, /^[0-9a-f]{64}$/)
  const described = JSON.parse(readFileSync(folderOf(trained, 'adapter/tunery.json'), 'utf8'))
  assert.deepEqual(described, { job_id, base_model_id: tiny, method: 'lora', tokenizer })
  const gguf = readFileSync(folderOf(trained, 'adapter.gguf'))
  assert.ok(
    gguf.includes(`tunery.tokenizer_sha256`) &&
      gguf.includes(tokenizer!.sha256!) &&
      gguf.includes('tokenizer.chat_template'),
  )
})
