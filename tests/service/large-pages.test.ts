// A page of a list has a bound in bytes: it has fewer items where these are large, and pages lead through all of them.
import assert from 'node:assert/strict'
import { mkdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import { pageBytes } from '../../server/platform/db/page.ts'
import type { NewRow } from '../../server/platform/db/schema.ts'
import { jobRow } from '../support/job-row.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests({ TUNERY_STORE_COMPLETIONS: '30' })
let account_id: string
before(async () => {
  await app.started
  account_id = app.owner.account_id
})

const megabyte = 'x'.repeat(990_000)
const countTo = (count: number) => Array.from({ length: count }, (_, index) => index + 1)

// biome-ignore lint/suspicious/noExplicitAny: items of lists of any kind
type Item = any

/** The items of all pages, and how many pages they took. Each page must be within the bound. */
async function walk(list: string, cursor: string): Promise<{ items: Item[]; pages: number }> {
  const items: Item[] = []
  for (let pages = 1; ; pages++) {
    const after = items.length > 0 ? `&after=${items.at(-1)[cursor]}` : ''
    const { status, body } = await app.api('GET', `${list}?limit=100${after}`)
    assert.equal(status, 200, JSON.stringify(body).slice(0, 300))
    const page = body.items ?? body.data
    assert.ok(page.length > 0, 'a page has one item at least')
    const bytes = JSON.stringify(body).length
    assert.ok(page.length === 1 || bytes < 1.2 * pageBytes, `${page.length} items have ${bytes} bytes`)
    items.push(...page)
    if (!body.has_more) return { items, pages }
  }
}

/** The numbers in the ids of items: each is there once. */
const numbersOf = (items: Item[]) => items.map(({ id }) => Number(id.split('-').at(-1))).sort((a, b) => a - b)

const evaluation = (id: string, more: Partial<NewRow<'evaluations'>> = {}): NewRow<'evaluations'> => ({
  id,
  account_id,
  key_id: '',
  name: 'large',
  description: '',
  metadata_json: '{}',
  status: 'running',
  error_json: null,
  model: 'm',
  model_id: 'm',
  baseline: null,
  baseline_id: null,
  dataset_id: 'ds_1',
  graders_json: JSON.stringify([{ type: 'contains', name: 'large', reference: megabyte }]),
  template_json: null,
  sampling_json: JSON.stringify({ temperature: 0, max_tokens: 1, seed: 1 }),
  total_rows: 10,
  rows: 10,
  done: 0,
  result_json: null,
  eval_id: null,
  data_source_json: null,
  created_at: 1,
  started_at: null,
  finished_at: null,
  ...more,
})

test('lists of evaluations, of evals and of their runs', async () => {
  const graders_json = evaluation('').graders_json
  const evals = countTo(10).map((number) => ({
    id: `evaldef_large-${number}`,
    account_id,
    name: 'large',
    metadata_json: '{}',
    source_config_json: JSON.stringify({ type: 'logs' }),
    graders_json,
    created_at: 1,
    updated_at: 1,
  }))
  await app.db.insertInto('evals').values(evals).execute()
  const data_source_json = JSON.stringify({ type: 'jsonl', source: { type: 'file_id', id: megabyte } })
  const more = { eval_id: evals[0]!.id, data_source_json }
  for (const number of countTo(10))
    await app.db
      .insertInto('evaluations')
      .values(evaluation(`eval_large-${number}`, more))
      .execute()
  for (const list of ['/evals', '/evaluations', `/evals/${evals[0]!.id}/runs`]) {
    const { items, pages } = await walk(list, 'id')
    assert.deepEqual(numbersOf(items), countTo(10), list)
    assert.ok(pages > 1, list)
  }
})

test('rows of an evaluation, worst first, and output items of a run', async () => {
  const of = { eval_id: 'evaldef_large-1', data_source_json: '{"type":"completions"}', graders_json: '[]' }
  const run = evaluation('eval_rows', of)
  await app.db.insertInto('evaluations').values(run).execute()
  const answer = (number: number): NewRow<'evaluation_answers'> => ({
    evaluation_id: run.id,
    row: number,
    side: 'model',
    item_json: JSON.stringify({ text: number === 7 ? megabyte.repeat(9) : megabyte }),
    output: 'x',
    tool_calls_json: null,
    score: (number * 7) % 10,
    passed: 1,
    graders_json: JSON.stringify({ large: { score: 1, passed: true } }),
    error_json: null,
    finish_reason: 'stop',
    latency_ms: 1,
    prompt_tokens: 1,
    cached_tokens: 0,
    completion_tokens: 1,
  })
  for (const number of countTo(10)) await app.db.insertInto('evaluation_answers').values(answer(number)).execute()
  const { items } = await walk(`/evaluations/${run.id}/rows`, 'row')
  assert.deepEqual(
    items.map(({ model }) => model.score),
    countTo(10).map((number) => number - 1),
  )
  const outputs = await walk(`/evals/evaldef_large-1/runs/${run.id}/output_items`, 'id')
  assert.deepEqual(numbersOf(outputs.items), countTo(10))
  const { body } = await app.api('GET', `/evaluations/${run.id}`)
  assert.equal(body.result, null, 'nothing is done')

  // Short rows, of which a template makes long texts.
  const template_json = JSON.stringify([{ role: 'user', content: 'y'.repeat(999_000) }])
  const filled = evaluation('eval_filled', { ...of, template_json })
  await app.db.insertInto('evaluations').values(filled).execute()
  const short = countTo(10).map((number) => ({ ...answer(number), evaluation_id: filled.id, item_json: '{}' }))
  await app.db.insertInto('evaluation_answers').values(short).execute()
  const long = await walk(`/evals/evaldef_large-1/runs/${filled.id}/output_items`, 'id')
  assert.deepEqual(numbersOf(long.items), countTo(10))
  assert.equal(long.items[0].sample.input[0].content.length, 999_000)
  assert.ok(long.pages > 1)
})

test('stored completions', async () => {
  const completion = (number: number): NewRow<'stored_completions'> => ({
    id: `chatcmpl-${number}`,
    account_id,
    model: 'm',
    metadata_json: '{}',
    request_json: JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], stop: megabyte }),
    response_json: JSON.stringify({
      id: `chatcmpl-${number}`,
      object: 'chat.completion',
      created: 1,
      model: 'm',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: 'yes', refusal: null },
          logprobs: null,
          finish_reason: 'stop',
        },
      ],
      usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
    }),
    expires_at: 4e12,
    created_at: 1,
  })
  for (const number of countTo(10)) await app.db.insertInto('stored_completions').values(completion(number)).execute()
  const { items, pages } = await walk('/chat/completions', 'id')
  assert.deepEqual(numbersOf(items), countTo(10))
  assert.ok(pages > 1)
  const dataset = await app.api('POST', '/datasets/from-completions', { name: 'all' })
  assert.deepEqual([dataset.status, dataset.body.rows], [201, 10], 'reading all of them pages too')
})

test('held-out rows of a job, and those with the highest loss: in their order, each once', async () => {
  const row = (number: number) =>
    JSON.stringify({
      messages: [
        { role: 'user', content: 'z'.repeat(2_000_000) },
        { role: 'assistant', content: `${number}` },
      ],
    })
  const dataset = (await app.upload(countTo(9).map(row).join('\n'))).body.id
  // It waits until the upload was read.
  assert.equal((await app.api('GET', `/datasets/${dataset}/rows?limit=1`)).status, 200)
  const of = { account_id, dataset_id: dataset, created_at: 1 }
  const resolved_config_json = JSON.stringify({ evaluation_config: { validation_split: { value: 0.5 } } })
  const job = jobRow({ ...of, id: 'job_large', model: 'mdl_large', status: 'completed', resolved_config_json })
  const model: NewRow<'models'> = {
    ...{ id: 'mdl_large', account_id, created_at: 1, name: '', description: '', metadata_json: '{}' },
    ...{ base_model_id: 'test/tiny', kind: 'adapter', method: 'lora', gguf_sha256: '', size_bytes: 1, job_id: job.id },
  }
  await app.db.insertInto('tuning_jobs').values(job).execute()
  await app.db.insertInto('models').values(model).execute()
  await app.db
    .insertInto('job_held_out')
    .values({ job_id: job.id, rows_json: JSON.stringify(countTo(9)) })
    .execute()
  const byLoss = [9, 1, 5, 3, 8, 2, 7, 4, 6]
  const losses = byLoss.map((number) => JSON.stringify({ row: number, loss: 1, first_loss: 1, tokens: 1 }))
  mkdirSync(path.join(app.dataDir, 'models', model.id), { recursive: true })
  writeFileSync(path.join(app.dataDir, 'models', model.id, 'rows.jsonl'), `${losses.join('\n')}\n`)
  for (const [list, order] of [
    ['held-out', countTo(9)],
    ['rows', byLoss],
  ] as const) {
    const { items, pages } = await walk(`/fine-tuning/jobs/${job.id}/${list}`, 'row')
    assert.deepEqual(
      items.map((item) => item.row),
      order,
    )
    for (const item of items) assert.equal(item.messages.at(-1).content, `${item.row}`)
    assert.ok(pages > 1)
  }
})
