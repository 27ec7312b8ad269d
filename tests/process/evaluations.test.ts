// Evaluations through the service: models answer rows, graders score the answers, against a baseline.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Evaluation } from '../../contract/evaluations.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { client, until } from '../support/client.ts'
import { evaluationEnded, same, uploadItems } from '../support/evaluations.ts'
import { dataFolder } from '../support/server.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()

const colours = ['red', 'green', 'blue', 'white']
const rows = colours.map((colour) =>
  JSON.stringify({
    messages: [
      { role: 'user', content: `code of ${colour}?` },
      { role: 'assistant', content: `${colour}-1` },
    ],
  }),
)
const upload = async (lines: string[] = rows) => (await app.upload(lines.join('\n'))).body.id as string
const create = (body: object) => app.api('POST', '/evaluations', { model: tiny, sampling: { max_tokens: 8 }, ...body })
const ended = (id: string) => evaluationEnded(app, id)
async function evaluated(body: object): Promise<Evaluation> {
  const answer = await create(body)
  assert.equal(answer.status, 201, JSON.stringify(answer.body))
  const evaluation = await ended(answer.body.id)
  assert.equal(evaluation.status, 'completed', JSON.stringify(evaluation.error))
  return evaluation
}

test('a model is scored row by row beside a baseline, with an interval, and what got worse comes first', async () => {
  const dataset = await upload()
  const long = { type: 'regex', name: 'not empty', pattern: '\\S' }
  const evaluation = await evaluated({ baseline: tiny, dataset, graders: [same, long] })
  assert.deepEqual([evaluation.rows, evaluation.done], [4, 8])
  const { model, baseline, difference } = evaluation.result!
  assert.deepEqual([difference!.mean, difference!.equal, difference!.worse], [0, 4, 0], 'the same model twice')
  assert.match(difference!.test, /paired t-test/)
  assert.equal(model.errors, 0)
  assert.deepEqual(Object.keys(model.graders).sort(), ['not empty', 'same'])
  assert.ok(model.completion_tokens > 0 && model.latency_ms!.p50 > 0)
  assert.equal(baseline!.score!.mean, model.score!.mean)
  const { items, has_more } = (await app.api('GET', `/evaluations/${evaluation.id}/rows?limit=3`)).body
  assert.deepEqual([items.length, has_more], [3, true])
  assert.equal(items[0].item.reference, `${colours[items[0].row - 1]}-1`)
  assert.equal(typeof items[0].model.graders.same.score, 'number')
  const rest = (await app.api('GET', `/evaluations/${evaluation.id}/rows?after=${items[2].row}`)).body
  assert.deepEqual([rest.items.length, rest.has_more], [1, false])
})

test('a judge of this service labels and scores; templates make the requests', async () => {
  const dataset = await upload()
  const input = [{ role: 'user', content: 'Is {{sample.output_text}} like {{item.reference}}?' }]
  const { id, result } = await evaluated({
    dataset,
    rows: 2,
    template: [{ role: 'user', content: 'Name the code: {{item.reference}}' }],
    graders: [
      { type: 'label_model', name: 'label', model: tiny, input, labels: ['yes', 'no'], passing_labels: ['yes', 'no'] },
      {
        type: 'multi',
        name: 'both',
        graders: { a: { ...same, operation: 'ne' }, b: { type: 'contains', name: 'b', reference: 'x' } },
        calculate_output: 'max(a, b) / 2',
        pass_threshold: 0.5,
      },
    ],
  })
  assert.equal(result!.model.graders.label, 1, 'the answer is one of the labels')
  const [row] = (await app.api('GET', `/evaluations/${id}/rows`)).body.items
  assert.match(row.model.graders.label.label, /^(yes|no)$/)
  assert.ok([0, 0.5].includes(row.model.graders.both.score))
})

test('graders that could never score are refused with their field', async () => {
  const dataset = await upload()
  const refused = async (grader: object, field: RegExp, says = /./) => {
    const { status, body } = await create({ dataset, graders: [grader] })
    assert.equal(status, 400, JSON.stringify(body))
    assert.match(body.error.details.field, field)
    assert.match(body.error.message, says)
  }
  await refused({ type: 'shell', name: 'x', source: 'true' }, /graders\.0\.type/, /string_check/)
  await refused({ type: 'python', name: 'x', source: 'print()' }, /graders\.0\.source/, /def grade\(sample, item\)/)
  await refused({ ...same, input: '{{process.env}}' }, /graders\.0\.input/, /item\. or sample\./)
  await refused({ type: 'regex', name: 'x', pattern: '(' }, /graders\.0\.pattern/)
  await refused({ type: 'json_schema', name: 'x', schema: { type: 'nothing' } }, /graders\.0\.schema/)
  await refused(
    { type: 'multi', name: 'x', graders: { a: same }, calculate_output: 'a + c' },
    /calculate_output/,
    /'c'/,
  )
  await refused({ ...same, reference: 'x'.repeat(200_000) }, /graders\.0\.reference/)
  const { status, body } = await create({ dataset, graders: [same], model: 'nobody/none' })
  assert.deepEqual([status, body.error.code], [404, 'model_not_found'])
  assert.equal((await create({ dataset: 'ds_none', graders: [same] })).body.error.code, 'dataset_not_found')
})

test('a pattern of a schema that explodes ends its evaluation, and nothing else waits for it', async () => {
  const item = { messages: [{ role: 'user', content: 'hi' }], text: `${'a'.repeat(40)}!` }
  const dataset = await uploadItems(app, [item])
  const schema = { pattern: '^(a+)+$' }
  const explode = { type: 'json_schema', name: 'explode', input: '"{{item.text}}"', schema }
  const answer = await create({ dataset, graders: [explode] })
  const [evaluation, other] = await Promise.all([
    answer.status === 201 ? ended(answer.body.id) : undefined,
    app.api('GET', '/user/profile'),
  ])
  assert.equal(other.status, 200)
  assert.equal(evaluation?.status, 'failed', JSON.stringify(answer.body))
  assert.match(evaluation!.error!.message, /'explode' takes longer than/)
})

test('an evaluation is cancelled, deleted, hidden from others; its dataset stays while it runs', async () => {
  const dataset = await upload(
    Array.from({ length: 200 }, (_, index) => rows[index % 4]!.replace('code', `code ${index}`)),
  )
  const { id } = (await create({ dataset, graders: [same], sampling: { max_tokens: 64, temperature: 2 } })).body
  await until('some answers', async () => (await app.api('GET', `/evaluations/${id}`)).body.done > 0)
  assert.equal((await app.api('DELETE', `/datasets/${dataset}`)).body.error.code, 'in_use')
  assert.equal((await app.api('DELETE', `/evaluations/${id}`)).body.error.code, 'in_use')
  const headers = { authorization: `Bearer ${app.otherKey}` }
  assert.equal((await app.api('GET', `/evaluations/${id}`, undefined, headers)).status, 404)
  const { body } = await app.api('POST', `/evaluations/${id}/cancel`)
  assert.equal(body.status, 'cancelled')
  assert.ok(body.result.model.score, 'what was scored is kept')
  assert.equal((await app.api('POST', `/evaluations/${id}/cancel`)).status, 200)
  assert.equal((await app.api('DELETE', `/evaluations/${id}`)).status, 200)
  assert.equal((await app.api('DELETE', `/datasets/${dataset}`)).status, 200)
})

test('a job that names an evaluation evaluates its result beside the model that it started from', async () => {
  const dataset = await upload()
  const like = (await create({ dataset, graders: [same] })).body.id
  const training_config = { epochs: 1, batch_size: 4 }
  const request = { model_id: tiny, dataset_id: dataset, evaluation: like, config: { training_config } }
  const job = await app.untilEnded((await app.api('POST', '/fine-tuning/jobs', request)).body.id)
  assert.deepEqual([job.status, job.evaluation], ['completed', like], JSON.stringify(job.error))
  const evaluation = await ended(job.result_evaluation!)
  assert.deepEqual([evaluation.status, evaluation.model, evaluation.baseline], ['completed', job.model, tiny])
  assert.equal(evaluation.done, 8)
  const unknown = await app.api('POST', '/fine-tuning/jobs', { ...request, evaluation: 'eval_none' })
  assert.deepEqual([unknown.status, unknown.body.error.code], [404, 'evaluation_not_found'])
})

test('a server killed in the middle of an evaluation scores no answer twice', async () => {
  const folder = dataFolder('evaluations')
  const server = await folder.start()
  try {
    const before = client(server.url, folder.key())
    const many = Array.from({ length: 80 }, (_, index) => rows[index % 4]!.replace('code', `code ${index}`))
    const dataset = (await before.upload(many.join('\n'))).body.id
    const sampling = { max_tokens: 32, temperature: 1 }
    const { id } = (await before.api('POST', '/evaluations', { model: tiny, dataset, graders: [same], sampling })).body
    await until('some answers', async () => (await before.api('GET', `/evaluations/${id}`)).body.done > 0)
    await server.end('SIGKILL')
    const db = await openDatabase(folder.dataDir)
    const answers = () => db.selectFrom('evaluation_answers').select(['row', 'output']).where('evaluation_id', '=', id)
    const kept = await answers().execute()
    await db.destroy()
    assert.ok(kept.length > 0 && kept.length < 80, `${kept.length} of 80`)
    const again = await folder.start()
    const after = client(again.url, folder.key())
    const evaluation = await evaluationEnded(after, id)
    assert.deepEqual([evaluation.status, evaluation.done], ['completed', 80])
    const later = await openDatabase(folder.dataDir)
    const all = await later
      .selectFrom('evaluation_answers')
      .select(['row', 'output'])
      .where('evaluation_id', '=', id)
      .execute()
    await later.destroy()
    assert.equal(all.length, 80)
    const outputs = new Map(all.map(({ row, output }) => [row, output]))
    for (const { row, output } of kept) assert.equal(outputs.get(row), output, 'what was scored is kept')
    await again.end('SIGTERM')
  } finally {
    await folder.remove()
  }
})

test('an evaluation says how many of its rows the model was trained on, or takes those held out', async () => {
  const model = await app.colourModel()
  const { job_id, lineage } = (await app.api('GET', `/fine-tuning/models/${model}`)).body
  const dataset = lineage.steps[0].dataset.id
  const graders = [same]
  const all = await evaluated({ model, dataset, graders })
  assert.deepEqual([all.rows, all.trained_rows, all.held_out_by], [16, 16, null])
  assert.match(all.name, /^(?!mdl_)/, 'it is named as people call the model')
  assert.equal((await evaluated({ model: tiny, dataset, graders, rows: 2 })).trained_rows, 0)
  const refused = await create({ model, dataset, graders, held_out_by: job_id })
  assert.match(refused.body.error.message, /held no rows out of its dataset/)

  await app.db.insertInto('job_held_out').values({ job_id, rows_json: '[3,7,12]' }).execute()
  assert.equal((await evaluated({ model, dataset, graders })).trained_rows, 13)
  const honest = await evaluated({ model, baseline: tiny, dataset, graders, held_out_by: job_id, rows: 50 })
  assert.deepEqual([honest.rows, honest.trained_rows, honest.held_out_by], [3, 0, job_id])
  const asked = (await app.api('GET', `/evaluations/${honest.id}/rows`)).body.items.map(
    ({ row }: { row: number }) => row,
  )
  assert.deepEqual(
    asked.sort((a: number, b: number) => a - b),
    [3, 7, 12],
  )
  const elsewhere = await create({ model, dataset: await upload(), graders, held_out_by: job_id })
  assert.match(elsewhere.body.error.message, /Name that dataset/)
})
