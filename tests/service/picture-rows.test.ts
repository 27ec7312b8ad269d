// Rows with pictures from the upload to the preview, and that only a base that reads pictures is trained on them.
import assert from 'node:assert/strict'
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { dataUrl, disk } from '../support/pictures.ts'
import { startCanary } from '../support/receiver.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { noVision, tinyVision } from '../support/tiny-vision.ts'
import { type FakeUpstream, json, startFakeUpstream } from '../support/upstream.ts'

const vision = 'HuggingFaceTB/SmolVLM-256M-Instruct'
let app: TestApp
let models: string
let upstream: FakeUpstream
before(async () => {
  models = mkdtempSync(path.join(os.tmpdir(), 'tunery-models-'))
  cpSync(tinyModelsDir(), models, { recursive: true })
  if (!noVision) {
    const folder = path.join(models, vision)
    mkdirSync(path.dirname(folder), { recursive: true })
    cpSync(tinyVision('smolvlm'), folder, { recursive: true })
    const file = { id: vision, parameters: 1e6, context_length: 2048, gguf: 'model.gguf', hf: 'hf' }
    writeFileSync(path.join(folder, 'model.json'), JSON.stringify(file))
  }
  upstream = await startFakeUpstream((_path, _body, response) =>
    json(response, 200, {
      model: 'far/eye',
      choices: [{ index: 0, message: { role: 'assistant', content: 'Red.' }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
    }),
  )
  app = await startApp({
    TUNERY_MODELS_DIR: models,
    TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8',
    TUNERY_UPSTREAMS: JSON.stringify([{ url: upstream.url, kind: 'vllm', model: 'far/eye' }]),
  })
})
after(async () => {
  await app.stop()
  upstream.stop()
  rmSync(models, { recursive: true })
})

const png = disk(40, 30, [255, 0, 0])
const picture = { type: 'image_url', image_url: { url: dataUrl(png), detail: 'low' } }
const row = (text: string, answer: string) =>
  `${JSON.stringify({
    messages: [
      { role: 'user', content: [picture, { type: 'text', text }] },
      { role: 'assistant', content: answer },
    ],
  })}\n`
const rows = row('What is it?', 'A disk.') + row('Which colour?', 'Red.')

async function uploaded(content: string) {
  const { status, body } = await app.upload(content, { format: 'jsonl' })
  assert.equal(status, 201, JSON.stringify(body))
  await app.api('POST', `/datasets/${body.id}/validate`)
  return (await app.api('GET', `/datasets/${body.id}`)).body
}

test('a base that reads text only is refused: by jobs, estimates, previews and validation', async () => {
  const { id, pictures, rows: count } = await uploaded(rows)
  assert.deepEqual([count, pictures], [2, 2])
  const request = { model_id: tiny, dataset_id: id }
  const answers = [
    await app.api('POST', '/fine-tuning/jobs', request),
    await app.api('POST', '/fine-tuning/jobs/estimate', request),
    await app.api('GET', `/datasets/${id}/preview?model_id=${tiny}`),
    await app.api('POST', `/datasets/${id}/validate?model_id=${tiny}`),
  ]
  for (const { status, body } of answers) {
    assert.equal(status, 400, JSON.stringify(body))
    assert.match(
      body.error.message,
      /have pictures, and test\/tiny cannot be trained on them\. Choose a base .*trained/,
    )
  }
})

test('pages of rows have the pictures; errors and the audit log have no data of them', async () => {
  const { id } = await uploaded(rows)
  const page = (await app.api('GET', `/datasets/${id}/rows?limit=1`)).body
  assert.deepEqual([page.items[0].messages[0].content[0], page.has_more], [picture, true])
  // 8 MB are a page: four rows of 3 MB are several.
  const large = row('?', 'a').replace(dataUrl(png), dataUrl(Buffer.concat([png, Buffer.alloc(2_250_000)])))
  const heavy = await uploaded(large.repeat(4))
  const first = (await app.api('GET', `/datasets/${heavy.id}/rows`)).body
  assert.deepEqual([first.items.length, first.has_more], [2, true])
  const rest = (await app.api('GET', `/datasets/${heavy.id}/rows?after=2`)).body
  assert.deepEqual([rest.items.length, rest.has_more], [2, false])

  // What the service may reach is not fetched either: that is off by default.
  const web = await startCanary()
  const remote = await uploaded(row('?', 'a').replace(dataUrl(png), `http://127.0.0.1:${web.port}/a.png`))
  const { issues } = (await app.api('POST', `/datasets/${remote.id}/validate`)).body
  assert.deepEqual([issues[0].code, web.connections()], ['picture_remote', 0])
  web.stop()

  const wrong = await uploaded(row('?', 'a').replace(dataUrl(png), dataUrl(png.subarray(0, 80))))
  const validation = (await app.api('POST', `/datasets/${wrong.id}/validate`)).body
  assert.match(validation.errors[0], /^line 1: messages\[0\]\.content\[0\]: The picture cannot be decoded/)
  const told = JSON.stringify([
    validation,
    (await app.api('GET', '/datasets/')).body,
    (await app.api('GET', '/audit')).body,
    (await app.api('GET', '/files')).body,
  ])
  assert.ok(told.includes(wrong.id) && !told.includes('base64,iVBOR'), told.slice(0, 500))
})

test('a preview shows each picture with its size and tokens, and what is learned', { skip: noVision }, async () => {
  const { id } = await uploaded(rows)
  const { status, body } = await app.api('GET', `/datasets/${id}/preview?model_id=${vision}&row=2`)
  assert.equal(status, 200, JSON.stringify(body))
  assert.deepEqual(body.messages[0].content[0], picture)
  const [shown] = body.pictures
  assert.deepEqual([shown.width, shown.height, shown.format], [40, 30, 'png'])
  const tokens: { text: string; trained: boolean }[] = body.sequences[0].tokens
  assert.ok(shown.tokens > 0 && tokens.length > shown.tokens, JSON.stringify(shown))
  const learned = tokens.filter(({ trained }) => trained).map(({ text }) => text)
  assert.match(learned.join(''), /Red\./)

  const whole = (await app.api('POST', `/datasets/${id}/validate?model_id=${vision}`)).body
  assert.deepEqual([whole.valid, whole.tokens.counted_rows], [true, 2])
  const short = (await app.api('POST', `/datasets/${id}/validate?model_id=${vision}&max_length=${shown.tokens}`)).body
  assert.deepEqual([short.valid, short.tokens.no_learned_rows], [false, 2])
  assert.match(short.errors[0], /No picture is cut/)
})

test('a model of text is not evaluated on rows with pictures, unless a template leaves them out', async () => {
  const { id: dataset } = await uploaded(row('What is it?', 'A disk.'))
  const graders = [
    {
      type: 'string_check',
      name: 'same',
      input: '{{sample.output_text}}',
      reference: '{{item.reference}}',
      operation: 'eq',
    },
  ]
  const refused = ({ status, body }: Awaited<ReturnType<TestApp['api']>>, param: string, model = tiny) => {
    assert.deepEqual([status, body.error?.param ?? body.error?.details.field], [400, param], JSON.stringify(body))
    assert.match(
      body.error.message,
      new RegExp(`^Row 1 has pictures, and '${model}' reads text only\\. .*multimodal.*template`),
    )
  }
  const validate = async (body: object) => {
    const answer = await app.api('POST', '/evaluations', { dataset, graders, ...body })
    assert.equal(answer.status, 201, JSON.stringify(answer.body))
    return answer.body.id as string
  }
  refused(await app.api('POST', '/evaluations', { model: tiny, dataset, graders }), 'model')
  refused(await app.api('POST', '/evaluations', { model: 'far/eye', baseline: tiny, dataset, graders }), 'baseline')
  const asText = await validate({ model: tiny, template: [{ role: 'user', content: 'Say {{item.reference}}' }] })
  await app.api('POST', `/evaluations/${asText}/cancel`)
  const evaluation = await validate({ model: 'far/eye' })

  // Gates, and jobs whose result is to be evaluated.
  assert.equal((await app.api('POST', '/deployments', { name: 'eye', model: 'far/eye' })).status, 201)
  refused(await app.api('PUT', '/deployments/eye', { model: tiny, gate: { evaluation, min_score: 0 } }), 'model')
  const text = JSON.stringify({
    messages: [
      { role: 'user', content: 'a' },
      { role: 'assistant', content: 'b' },
    ],
  })
  const { id: dataset_id } = await uploaded(`${text}\n`.repeat(10))
  refused(await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, evaluation }), 'model')

  // Runs of OpenAI's evals: rows of a file, and rows in the request.
  const { body: def } = await app.api('POST', '/evals', {
    data_source_config: { type: 'custom', item_schema: { type: 'object' }, include_sample_schema: true },
    testing_criteria: graders,
  })
  const item = { item: { asked: JSON.parse(row('What is it?', 'A disk.')).messages.slice(0, 1), reference: 'A disk.' } }
  const input_messages = { type: 'item_reference', item_reference: 'item.asked' }
  const source = { type: 'file_content', content: [item] }
  const run = (model: string, fields: object) =>
    app.api('POST', `/evals/${def.id}/runs`, { data_source: { type: 'completions', model, input_messages, ...fields } })
  refused(await run(tiny, { source }), 'data_source.model')
  assert.equal((await run('far/eye', { source })).status, 201)
})
