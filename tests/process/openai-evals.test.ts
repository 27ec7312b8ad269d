// OpenAI's evals: graders with a name, and runs that are evaluations.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { mock, test } from 'node:test'
import { importOpenaiEvals } from '../../cli/remote/import-openai-evals.ts'
import { until } from '../support/client.ts'
import { evaluationEnded, same, uploadItems } from '../support/evaluations.ts'
import { appOfTests, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()

const item_schema = {
  type: 'object',
  properties: { question: { type: 'string' }, reference: { type: 'string' } },
  required: ['question', 'reference'],
}
const custom = { type: 'custom', item_schema, include_sample_schema: true }
const input_messages = { type: 'template', template: [{ role: 'user', content: '{{item.question}}' }] }
const items = ['red', 'green', 'blue'].map((colour) => ({ question: `code of ${colour}?`, reference: `${colour}-1` }))

async function newEval(more: object = {}): Promise<string> {
  const { status, body } = await app.api('POST', '/evals', {
    name: 'codes',
    data_source_config: custom,
    testing_criteria: [same],
    ...more,
  })
  assert.equal(status, 201, JSON.stringify(body))
  return body.id
}
const run = (eval_id: string, data_source: object) => app.api('POST', `/evals/${eval_id}/runs`, { data_source })
async function ended(eval_id: string, data_source: object) {
  const { status, body } = await run(eval_id, data_source)
  assert.equal(status, 201, JSON.stringify(body))
  await evaluationEnded(app, body.id)
  return (await app.api('GET', `/evals/${eval_id}/runs/${body.id}`)).body
}
const content = (rows: object[]) => ({ type: 'file_content', content: rows })

test('a run asks a model, and is an evaluation too', async () => {
  const eval_id = await newEval()
  const id = await uploadItems(app, items)
  const done = await ended(eval_id, {
    type: 'completions',
    model: tiny,
    input_messages,
    source: { type: 'file_id', id },
    sampling_params: { max_completion_tokens: 4, temperature: 0 },
  })
  assert.equal(done.status, 'completed', JSON.stringify(done.error))
  assert.deepEqual(
    [done.object, done.eval_id, done.result_counts.total, done.data_source.source.id],
    ['eval.run', eval_id, 3, id],
  )
  const { passed, failed, errored } = done.result_counts
  assert.deepEqual([passed + failed, errored], [3, 0])
  assert.deepEqual(done.per_testing_criteria_results, [{ testing_criteria: 'same', passed, failed }])
  const [usage] = done.per_model_usage
  assert.ok(usage.invocation_count === 3 && usage.completion_tokens > 0)
  const evaluation = (await app.api('GET', `/evaluations/${done.id}`)).body
  assert.deepEqual([evaluation.eval, evaluation.result.model.rows], [eval_id, 3])

  const list = (query = '') => app.api('GET', `/evals/${eval_id}/runs/${done.id}/output_items${query}`)
  const first = (await list('?limit=2')).body
  assert.deepEqual([first.data.length, first.has_more], [2, true])
  const rest = (await list(`?after=${first.last_id}`)).body
  assert.deepEqual([rest.data.length, rest.has_more, rest.data[0].datasource_item], [1, false, items[2]])
  const [item] = first.data
  assert.deepEqual(item.sample.input, [{ role: 'user', content: 'code of red?' }])
  assert.deepEqual([item.sample.output[0].role, item.sample.finish_reason], ['assistant', 'length'])
  assert.deepEqual([item.results[0].name, item.results[0].type], ['same', 'string_check'])
  assert.equal((await app.api('GET', `/evals/${eval_id}/runs/${done.id}/output_items/${item.id}`)).body.id, item.id)
  const row = {
    messages: [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: 'yes' },
    ],
    kind: 'a',
  }
  const dataset = (await app.upload(JSON.stringify(row))).body.id
  const any = await newEval({ data_source_config: { type: 'custom', item_schema: { additionalProperties: true } } })
  const source = { type: 'file_id', id: dataset }
  const shown = await ended(any, {
    type: 'completions',
    model: tiny,
    source,
    sampling_params: { max_completion_tokens: 1 },
  })
  const [known] = (await app.api('GET', `/evals/${any}/runs/${shown.id}/output_items`)).body.data
  assert.deepEqual(known.datasource_item, row, 'as it was given, without the reference that is made of it')
  assert.deepEqual(known.sample.input, [row.messages[0]])
  assert.equal((await list('?order=desc&limit=1')).body.data[0].datasource_item_id, 3)
  assert.equal((await list('?status=pass')).body.data.length, passed)
})

test('a run grades the answers that its rows bring, without a model', async () => {
  const eval_id = await newEval()
  const answers = ['red-1', 'wrong', 'blue-1']
  const done = await ended(eval_id, {
    type: 'jsonl',
    source: content(items.map((item, index) => ({ item, sample: { output_text: answers[index] } }))),
  })
  assert.deepEqual(done.result_counts, { total: 3, passed: 2, failed: 1, errored: 0 })
  assert.deepEqual([done.model, done.per_model_usage], [null, []])
  const { id } = done.data_source.source
  assert.equal((await app.api('GET', `/files/${id}`)).body.purpose, 'evals', 'inline rows become a file')
  const { data } = (await app.api('GET', `/evals/${eval_id}/runs/${done.id}/output_items?status=fail`)).body
  assert.deepEqual([data.length, data[0].sample.output[0].content], [1, 'wrong'])
  const empty = await ended(eval_id, { type: 'jsonl', source: content([{ item: items[0]! }]) })
  assert.deepEqual(empty.result_counts, { total: 1, passed: 0, failed: 1, errored: 0 })
})

test('a row that the schema of the eval does not allow fails the run before anything is asked', async () => {
  const eval_id = await newEval()
  const source = content([{ item: items[0]! }, { item: { question: 7, reference: 'x' } }])
  const done = await ended(eval_id, { type: 'completions', model: tiny, input_messages, source })
  assert.equal(done.status, 'failed')
  assert.match(done.error.message, /^Row 2 does not satisfy the item_schema/)
  assert.equal(done.result_counts.passed + done.result_counts.failed, 0)
})

test('rows and schemas that graders cannot read cost a failure of their own, and not the service', async () => {
  const schema = (schema: object) => ({ type: 'json_schema', name: 'form', schema })
  const any = { data_source_config: { type: 'custom', item_schema: {} } }
  const rows = [
    { item: { reference_calls: 5 }, sample: { output_text: '{}', output_tools: 'abc' } },
    { item: { reference_calls: [{}] }, sample: { output_text: '{}', output_tools: [null] } },
  ]
  const refused = async (field: string, more: object) => {
    const { status, body } = await app.api('POST', '/evals', { ...any, testing_criteria: [same], ...more })
    assert.deepEqual([status, body.error.param], [400, field], JSON.stringify(body))
  }
  for (const unusable of [{ $ref: '#/nowhere' }, { type: 'string', pattern: '(' }]) {
    await refused('testing_criteria.0.schema', { testing_criteria: [schema(unusable)] })
    await refused('data_source_config.item_schema', { data_source_config: { type: 'custom', item_schema: unusable } })
  }
  const call = await newEval({ ...any, testing_criteria: [{ type: 'tool_call', name: 'call' }] })
  const graded = await ended(call, { type: 'jsonl', source: content(rows) })
  assert.deepEqual([graded.status, graded.result_counts.errored], ['completed', 2], JSON.stringify(graded.error))

  const eval_id = await newEval(any)
  const done = await ended(eval_id, {
    type: 'completions',
    model: tiny,
    input_messages: { type: 'item_reference', item_reference: 'input' },
    source: content([{ item: { input: [null] } }, { item: { input: [5, 'abc', [1]] } }]),
  })
  assert.deepEqual([done.status, done.result_counts.errored], ['completed', 2])
  const { data } = (await app.api('GET', `/evals/${eval_id}/runs/${done.id}/output_items`)).body
  assert.deepEqual([data.length, data[0].status, data[0].sample.input], [2, 'error', []])
})

test('a run of a deleted eval is refused, and one that a gate repeats shows the answers of its model', async () => {
  const eval_id = await newEval()
  const rows = Array.from({ length: 500 }, () => ({ item: items[0]! }))
  const creating = run(eval_id, { type: 'jsonl', source: content(rows) })
  const [created, deleted] = await Promise.all([creating, app.api('DELETE', `/evals/${eval_id}`)])
  assert.ok([201, 404].includes(created.status), JSON.stringify(created.body))
  assert.ok([200, 400].includes(deleted.status), JSON.stringify(deleted.body))

  const kept = await newEval()
  const asked = { type: 'completions', model: tiny, input_messages, source: content([{ item: items[0]! }]) }
  const evaluation = (await ended(kept, { ...asked, sampling_params: { max_completion_tokens: 4 } })).id
  const tuned = await app.colourModel()
  await app.api('POST', '/deployments', { name: 'graded', model: tiny })
  const { body } = await app.api('PUT', '/deployments/graded', { model: tuned, gate: { evaluation } })
  await evaluationEnded(app, body.pending.evaluation)
  const path = `/evals/${kept}/runs/${body.pending.evaluation}/output_items`
  const [item] = (await app.api('GET', path)).body.data
  const one = (await app.api('GET', `${path}/${item.id}`)).body
  assert.deepEqual([one.sample.model, one.sample.output], [tuned, item.sample.output])
  const inline = await ended(kept, { type: 'jsonl', source: content([{ item: items[0]! }]) })
  const refused = await app.api('PUT', '/deployments/graded', { model: tiny, gate: { evaluation: inline.id } })
  assert.match(refused.body.error.message, /bring their answers|waits for the evaluation/)
})

test('messages come from a field of the row; the Responses form of tools and formats is taken', async () => {
  const eval_id = await newEval({
    data_source_config: { type: 'custom', item_schema: { type: 'object' } },
    testing_criteria: [{ type: 'json_schema', name: 'form', schema: { type: 'object', required: ['code'] } }],
  })
  const schema = {
    type: 'object',
    properties: { code: { enum: [1] } },
    required: ['code'],
    additionalProperties: false,
  }
  const done = await ended(eval_id, {
    type: 'responses',
    model: tiny,
    input_messages: { type: 'item_reference', item_reference: 'item.conversation' },
    source: content([{ item: { conversation: [{ role: 'user', content: 'hello' }] } }]),
    sampling_params: { text: { format: { type: 'json_schema', name: 'code', schema } } },
  })
  assert.deepEqual(done.result_counts, { total: 1, passed: 1, failed: 0, errored: 0 }, JSON.stringify(done.error))
})

test('evals and runs are listed, renamed, cancelled and deleted; a running one holds its eval', async () => {
  const eval_id = await newEval({ name: 'first', metadata: { team: 'paint' } })
  const other = await newEval({ name: 'second' })
  const renamed = (await app.api('POST', `/evals/${eval_id}`, { name: 'renamed' })).body
  assert.deepEqual([renamed.name, renamed.metadata], ['renamed', { team: 'paint' }])
  const latest = async (by: string) =>
    (await app.api('GET', `/evals?order=desc&limit=1&order_by=${by}`)).body.data[0].id as string
  assert.deepEqual([await latest('created_at'), await latest('updated_at')], [other, eval_id])
  const rows = Array.from({ length: 200 }, (_, index) => ({ item: { ...items[0]!, question: `code ${index}` } }))
  const source = { type: 'completions', model: tiny, input_messages, source: content(rows) }
  const long = { ...source, sampling_params: { max_completion_tokens: 64, temperature: 2 } }
  const { body } = await run(eval_id, long)
  await until('an answer', async () => {
    const { result_counts } = (await app.api('GET', `/evals/${eval_id}/runs/${body.id}`)).body
    return result_counts.passed + result_counts.failed > 0
  })
  assert.equal((await app.api('DELETE', `/evals/${eval_id}`)).body.error.code, 'in_use')
  assert.equal((await app.api('GET', `/evals/${other}/runs/${body.id}`)).status, 404, 'a run of another eval')
  assert.equal((await app.api('POST', `/evals/${eval_id}/runs/${body.id}/cancel`)).body.status, 'canceled')
  const listed = async (status: string) => (await app.api('GET', `/evals/${eval_id}/runs?status=${status}`)).body.data
  assert.deepEqual([(await listed('canceled')).length, (await listed('completed')).length], [1, 0])
  assert.equal((await app.api('DELETE', `/evals/${eval_id}`)).body.object, 'eval.deleted')
  assert.equal((await app.api('GET', `/evaluations/${body.id}`)).status, 404)
  assert.equal((await app.api('GET', `/evals/${eval_id}`)).status, 404)
})

test('what could never run is refused with its field', async () => {
  const refused = async (request: ReturnType<TestApp['api']>, param: RegExp) => {
    const { status, body } = await request
    assert.ok(status === 400 || status === 404, JSON.stringify(body))
    assert.match(body.error.param, param, JSON.stringify(body))
  }
  const create = (more: object) =>
    app.api('POST', '/evals', { data_source_config: custom, testing_criteria: [same], ...more })
  const python = { type: 'python', name: 'x', source: 'def score(sample, item): return 1' }
  await refused(create({ testing_criteria: [python] }), /^testing_criteria\.0\.source$/)
  await refused(create({ testing_criteria: [{ ...python, type: 'shell' }] }), /^testing_criteria\.0\.type$/)
  await refused(create({ testing_criteria: [{ ...same, input: '{{env.HOME}}' }] }), /^testing_criteria\.0\.input$/)
  await refused(create({ data_source_config: { type: 'custom', item_schema: { type: 7 } } }), /item_schema/)
  const eval_id = await newEval()
  const asked = { type: 'completions', input_messages, source: content([{ item: items[0]! }]) }
  await refused(run(eval_id, asked), /^data_source\.model$/)
  await refused(run(eval_id, { ...asked, model: 'nobody/none' }), /^data_source\.model$/)
  const files = (await app.api('GET', '/files?purpose=evals')).body.data.length
  assert.equal((await run(eval_id, { ...asked, model: 'nobody/none' })).status, 404)
  assert.equal((await app.api('GET', '/files?purpose=evals')).body.data.length, files, 'nothing is left of it')
  await refused(
    run(eval_id, { ...asked, model: tiny, source: { type: 'file_id', id: 'file-none' } }),
    /^data_source\.source\.id$/,
  )
  const deep = (levels: number) => JSON.parse(`${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}`)
  await refused(create({ data_source_config: { ...custom, item_schema: deep(1000) } }), /item_schema/)
  await refused(create({ data_source_config: { ...custom, item_schema: { $async: true } } }), /item_schema/)
  await refused(create({ testing_criteria: [{ ...same, name: '__proto__' }] }), /testing_criteria/)
  await refused(create({ testing_criteria: [{ ...same, name: 'constructor' }] }), /testing_criteria/)
  await refused(run(eval_id, { type: 'jsonl', source: content([{ item: deep(1000) }]) }), /content/)
  const far = { type: 'item_reference', item_reference: `${'a.'.repeat(100_000)}a` }
  await refused(run(eval_id, { ...asked, model: tiny, input_messages: far }), /item_reference/)
  const stored = { type: 'responses', model: tiny, source: { type: 'responses' } }
  await refused(run(eval_id, stored), /data_source\.source\.type/)
})

test('exported evals are imported, and the answers of their runs are graded here', async (t) => {
  process.env.TUNERY_URL = app.url
  process.env.TUNERY_KEY = app.key
  // Other files may run in this process.
  t.after(() => {
    delete process.env.TUNERY_URL
    delete process.env.TUNERY_KEY
  })
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-evals-'))
  const file = path.join(folder, 'eval.json')
  // As the client for Python dumps what that API returns: unset fields are null, and `schema` is `schema_`.
  const judge = {
    type: 'label_model',
    name: 'judge-1f',
    model: 'gpt-4.1',
    input: [{ role: 'user', content: { type: 'input_text', text: '{{sample.output_text}}' }, type: 'message' }],
    labels: ['yes', 'no'],
    passing_labels: ['yes', 'no'],
  }
  const answers = ['red-1', 'wrong', 'blue-1']
  const exported = {
    eval: {
      id: 'eval_68abc',
      object: 'eval',
      created_at: 1_750_000_000,
      name: 'support',
      metadata: { team: 'paint' },
      data_source_config: {
        type: 'custom',
        schema_: { type: 'object', properties: { item: item_schema, sample: {} }, required: ['item', 'sample'] },
      },
      testing_criteria: [{ ...same, id: 'same-77', pass_threshold: null }, judge],
    },
    rows: items,
    runs: [
      {
        run: {
          id: 'evalrun_1',
          name: 'first',
          model: 'gpt-4.1',
          status: 'completed',
          result_counts: { total: 3, passed: 2, failed: 1, errored: 0 },
          data_source: {
            type: 'completions',
            input_messages,
            source: { type: 'file_id', id: 'file-x' },
            model: 'gpt-4.1',
          },
        },
        output_items: items.map((item, index) => ({
          id: `outputitem_${index}`,
          datasource_item: item,
          sample: { output: [{ role: 'assistant', content: answers[index] }], error: null },
        })),
      },
    ],
  }
  const importing = async (value: object, options: object = {}) => {
    writeFileSync(file, JSON.stringify(value))
    const log = mock.method(console, 'log', () => {})
    try {
      await importOpenaiEvals([file], { dryRun: false, json: true, judge: tiny, ...options })
      return JSON.parse(String(log.mock.calls.at(-1)!.arguments[0]))
    } finally {
      log.mock.restore()
    }
  }
  const [made] = await importing(exported, { model: tiny })
  assert.ok(made.differences.some((difference: string) => difference.includes(`judged by ${tiny}, not gpt-4.1`)))
  const evaluation = (await app.api('GET', `/evals/${made.eval}`)).body
  assert.deepEqual([evaluation.name, evaluation.metadata], ['support', { team: 'paint', imported_from: 'eval_68abc' }])
  for (const id of made.runs) await evaluationEnded(app, id)
  const runs = (await app.api('GET', `/evals/${made.eval}/runs`)).body.data
  const criterion = runs[0].per_testing_criteria_results[0]
  assert.deepEqual(
    [criterion, runs[0].metadata.passed_there],
    [{ testing_criteria: 'same', passed: 2, failed: 1 }, '2'],
  )
  assert.deepEqual([runs[1].model, runs[1].status, runs[1].result_counts.total], [tiny, 'completed', 3])

  const count = async () => (await app.api('GET', '/evals?limit=100')).body.data.length
  const before = await count()
  await assert.rejects(importing(exported, { judge: undefined }), /'judge-1f' is judged by 'gpt-4.1'.*--judge/)
  await assert.rejects(importing({ object: 'eval' }), /'eval.id'/)
  const python = { type: 'python', name: 'py', source: 'x' }
  await assert.rejects(importing({ eval: { ...exported.eval, testing_criteria: [python] } }), /no Python/)
  await importing(exported, { dryRun: true })
  const broken = { ...exported, eval: { ...exported.eval, testing_criteria: [{ ...same, input: '{{x}}' }] } }
  await assert.rejects(importing(broken), /testing_criteria/)
  assert.equal(await count(), before, 'nothing is left of what fails')
  rmSync(folder, { recursive: true })
})
