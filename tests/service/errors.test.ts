// Every documented error of the management routes, each with its code and a remedy.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http from 'node:http'
import { before, test } from 'node:test'
import { randomBase62 } from '../../lib/ids.ts'
import { type Answer, colourRows } from '../support/client.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests({ TUNERY_MAX_DATASET_MB: '3' })
let dataset: string
before(async () => {
  await app.started
  dataset = (await app.upload(colourRows(8))).body.id
})

function refused(answer: Answer, status: number, code: string, pattern?: RegExp) {
  assert.equal(answer.body.error?.code, code, JSON.stringify(answer.body))
  assert.equal(answer.status, status)
  assert.ok(answer.body.error.message.length > 10)
  assert.match(answer.headers.get('x-request-id') ?? '', /^req_/)
  if (pattern) assert.match(answer.body.error.message, pattern)
}

const user = { role: 'user', content: 'hi' }

test('a missing, malformed or wrong key is refused with 401', async () => {
  for (const authorization of [
    '',
    'Bearer',
    'Basic abc',
    'Bearer nonsense',
    `Bearer tny_${randomBase62(36)}`,
    `Bearer ${app.key.slice(0, -1)}`,
  ])
    refused(await app.api('GET', '/datasets/', undefined, { authorization }), 401, 'invalid_api_key')
})

test('a key without the scope of an operation gets 403 naming the scope', async () => {
  const { key } = await app.services.accounts.createKey('reader', 'read_only', app.owner.user_id)
  const answer = await app.api(
    'POST',
    '/fine-tuning/jobs',
    { model_id: tiny, dataset_id: dataset },
    { authorization: `Bearer ${key}` },
  )
  refused(answer, 403, 'insufficient_permissions', /tuning:write/)
  assert.equal(answer.body.error.details.scope, 'tuning:write')
})

test('an upload that is not multipart, or has no part named file, is refused', async () => {
  refused(await app.api('POST', '/datasets/', { name: 'x' }), 400, 'not_multipart')
  refused(await app.api('POST', '/datasets/', 'plain', { 'content-type': 'text/plain' }), 400, 'not_multipart')
  const without = new FormData()
  without.set('name', 'x')
  refused(await app.api('POST', '/datasets/', without), 400, 'file_missing')
  const misnamed = new FormData()
  misnamed.set('data', new Blob([colourRows(1)]), 'rows.jsonl')
  refused(await app.api('POST', '/datasets/', misnamed), 400, 'file_missing', /'data'/)
})

test('a file that is not lines of text is refused and leaves nothing behind', async () => {
  const count = async () => (await app.api('GET', '/datasets/?limit=100')).body.items.length
  const before = await count()
  refused(await app.upload(''), 400, 'file_empty')
  refused(await app.upload('\n \r\n\n'), 400, 'file_empty')
  refused(
    await app.upload(new Uint8Array([...Buffer.from(`${colourRows(2)}\n`), 0xff, 0xfe, 0x0a])),
    400,
    'file_not_utf8',
    /line 3/,
  )
  refused(await app.upload(colourRows(50_000)), 413, 'file_too_large', /3 MB/)
  for (const format of ['csv', 'parquet', 'huggingface'])
    refused(await app.upload(colourRows(1), { format }), 400, 'file_not_readable')
  refused(await app.upload(colourRows(1), { format: 'xlsx' }), 400, 'invalid_request')
  refused(await app.upload(colourRows(1), { colour: 'red' }), 400, 'unknown_field', /colour/)
  assert.equal(await count(), before)
})

test('a job with an invalid body is refused, naming the field and its range', async () => {
  const create = (body: object) => app.api('POST', '/fine-tuning/jobs', body)
  const config = (config: object) => create({ model_id: tiny, dataset_id: dataset, config })
  refused(await create({ model_id: 'no/such', dataset_id: dataset }), 404, 'model_not_found')
  refused(await create({ model_id: '../../etc', dataset_id: dataset }), 404, 'model_not_found')
  refused(
    await create({ model_id: 'Qwen/Qwen2.5-7B-Instruct', dataset_id: dataset }),
    400,
    'model_not_available',
    /tunery models add/,
  )
  refused(await create({ model_id: tiny, dataset_id: 'ds_none' }), 404, 'dataset_not_found')
  refused(await create({ dataset_id: dataset }), 400, 'invalid_request', /model_id/)
  refused(await create({ model_id: tiny, dataset_id: dataset, colour: 1 }), 400, 'unknown_field', /colour/)
  refused(await config({ lora_config: { rank: 8 } }), 400, 'unknown_field', /config\.lora_config\.rank/)
  const misplaced = (body: object) => create({ model_id: tiny, dataset_id: dataset, ...body })
  refused(
    await misplaced({ epochs: 3 }),
    400,
    'unknown_field',
    /^Unknown field 'epochs'\. 'epochs' belongs in config\.training_config\.$/,
  )
  refused(
    await config({ seed: 1, r: 8, colour: 1 }),
    400,
    'unknown_field',
    /'config\.colour'\. 'seed' belongs in config\.training_config\. 'r' belongs in config\.lora_config\.$/,
  )
  refused(
    await config({ training_config: { model_id: tiny } }),
    400,
    'unknown_field',
    /'model_id' belongs at the top level of the body\.$/,
  )
  refused(
    await misplaced({ content: 'x' }),
    400,
    'unknown_field',
    /'content' belongs in config\.evaluation_config\.sample_prompts\[\]\[\]\.$/,
  )
  refused(await create({ epochs: 3 }), 400, 'unknown_field', /'epochs' belongs in config\.training_config\.$/)
  const many = Object.fromEntries(Array.from({ length: 50 }, (_, index) => [`x${index}`, 1]))
  refused(await misplaced(many), 400, 'unknown_field', /'x9' and 40 more\. Remove/)
  refused(await misplaced({ constructor: 1, toString: 1 }), 400, 'unknown_field', /Remove it or check/)
  for (const r of [7, 65, 8.5, '16'])
    refused(await config({ lora_config: { r } }), 400, 'invalid_request', /config\.lora_config\.r/)
  for (const [field, values] of Object.entries({
    epochs: [0, 51],
    batch_size: [0, 257],
    learning_rate: [0, 0.11, -1],
    warmup_ratio: [-0.1, 0.6],
    seed: [-1],
  }))
    for (const value of values)
      refused(await config({ training_config: { [field]: value } }), 400, 'invalid_request', new RegExp(field))
  refused(await config({ lora_config: { dropout: 0.6 } }), 400, 'invalid_request', /dropout/)
  refused(
    await config({ lora_config: { target_modules: ['q_proj', 'qproj'] } }),
    400,
    'invalid_request',
    /'qproj'.*q_proj/,
  )
  refused(await config({ method: 'full', lora_config: { r: 16 } }), 400, 'invalid_request', /lora_config/)
  refused(await config({ method: 'dpo' }), 400, 'invalid_request', /method/)
  refused(await app.api('POST', '/fine-tuning/jobs', '{"model_id": '), 400, 'invalid_json')
  refused(
    await app.api('POST', '/fine-tuning/jobs', 'model_id=x', { 'content-type': 'application/x-www-form-urlencoded' }),
    415,
    'unsupported_media_type',
  )
})

test('a chat request with an invalid body is refused in the format that OpenAI clients read', async () => {
  const chat = (body: object) =>
    app.api('POST', '/chat/completions', { model: tiny, messages: [user], max_tokens: 1, ...body })
  const bad = {
    temperature: [3, -0.1],
    top_p: [1.1, -1],
    top_k: [0, 101],
    max_tokens: [0, 4097],
    stop: [5, ['a', 'b', 'c', 'd', 'e'], ''],
    messages: [[], [{ role: 'robot', content: 'x' }], 'hi'],
  }
  for (const [field, values] of Object.entries(bad))
    for (const value of values) {
      const answer = await chat({ [field]: value })
      refused(answer, 400, 'invalid_request', new RegExp(field))
      assert.equal(answer.body.error.type, 'invalid_request_error')
      assert.match(answer.body.error.param, new RegExp(field))
    }
  const unsupported = {
    functions: [{}],
    function_call: { name: 'f' },
    audio: {},
    modalities: ['audio'],
    web_search_options: {},
  }
  for (const [field, value] of Object.entries(unsupported)) {
    refused(await chat({ [field]: value }), 400, 'parameter_not_supported', new RegExp(`'${field}' is not supported`))
    assert.equal((await chat({ [field]: null })).status, 200)
  }
  refused(await chat({ model: 'nobody' }), 404, 'model_not_found')
  refused(await chat({ model: 'Qwen/Qwen2.5-7B-Instruct' }), 400, 'model_not_available')
  refused(
    await chat({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] }),
    400,
    'parameter_not_supported',
  )
  const long = await chat({ messages: [{ role: 'user', content: 'word '.repeat(9000) }] })
  refused(long, 400, 'context_length_exceeded', /2048/)
  const ignored = await chat({ some_new_field: true, user: 'me', stream_options: null, metadata: {} })
  assert.equal(ignored.status, 200, JSON.stringify(ignored.body))
})

test('JSON without a content type, or as text/plain, is read as JSON on every JSON route', async () => {
  const send = async (route: string, body: string, type: string | undefined) => {
    // Node's fetch would set a content type itself.
    const request = http.request(`${app.url}${route}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${app.key}`,
        'content-length': Buffer.byteLength(body),
        ...(type !== undefined && { 'content-type': type }),
      },
    })
    request.end(body)
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    let text = ''
    for await (const piece of response) text += piece
    return { status: response.statusCode!, body: JSON.parse(text) }
  }
  for (const type of [undefined, '', 'text/plain', 'Text/Plain; charset=UTF-8']) {
    assert.equal((await send('/keys', '{"name":"typeless"}', type)).status, 201, `${type}`)
    assert.equal(
      (await send('/chat/completions', '{"model":"none","messages":[]}', type)).body.error.code,
      'invalid_request',
    )
    assert.equal((await send('/keys', 'name=x', type)).body.error.code, 'invalid_json')
    assert.equal((await send(`/datasets/${dataset}/validate`, '', type)).status, 200)
    assert.equal((await send('/datasets/', '{}', type)).body.error.code, 'not_multipart')
  }
  for (const type of ['application/x-www-form-urlencoded', 'text/html', 'application/octet-stream', 'text/plainer'])
    assert.deepEqual((await send('/keys', '{"name":"typed"}', type)).status, 415, type)
})

test('a body over the limit is refused with 413', async () => {
  refused(
    await app.api('POST', '/chat/completions', { model: tiny, messages: [{ role: 'user', content: 'x'.repeat(9e6) }] }),
    413,
    'body_too_large',
  )
})

test('names with invisible characters are refused in JSON and forms; file names are cleaned', async () => {
  for (const [method, route, body] of [
    ['POST', '/keys', { name: 'a\u202eb' }],
    ['POST', '/members', { name: 'a\u0000b' }],
    ['POST', '/deployments', { model: 'mdl_x', name: 'a\u2066' }],
  ] as const)
    refused(await app.api(method, route, body), 400, 'invalid_request', /^'name'/)
  // Nothing that can be seen: zero-width spaces, joiners, fillers, blanks of Braille.
  for (const name of ['\u200b', '\u200d\ufe0f', '\u3164', '\u2800', ' \u00a0\u200b ', '\u2060', 'a\u2028b']) {
    refused(await app.api('POST', '/keys', { name }), 400, 'invalid_request', /^'name'/)
    refused(await app.api('POST', '/members', { name }), 400, 'invalid_request', /^'name'/)
  }
  const joined = await app.api('POST', '/keys', { name: ' Cafe\u0301 \u{1f468}\u200d\u{1f469}\u200d\u{1f467} ' })
  assert.equal(joined.body.name, 'Caf\u00e9 \u{1f468}\u200d\u{1f469}\u200d\u{1f467}')
  // Not testable in forms: encoding a form replaces a lone surrogate.
  for (const fields of [{ name: 'a\u202eb' }, { description: 'a\u0007b' }] as Record<string, string>[])
    refused(await app.upload(colourRows(1), fields), 400, 'invalid_request', /U\+(202E|0007)/)
  const form = new FormData()
  form.set('file', new Blob([colourRows(1)]), 'ro\u202ews.jsonl')
  form.set('description', 'one\n\ttwo')
  const { body } = await app.api('POST', '/datasets/', form)
  assert.deepEqual([body.name, body.description.replace('\r', '')], ['rows.jsonl', 'one\n\ttwo'])
})

test('deployments refuse invalid names, taken names, hub ids and unknown models', async () => {
  const deploy = (body: object) => app.api('POST', '/deployments', body)
  for (const name of ['', 'Upper', 'a b', 'x'.repeat(65), 'a/b'])
    refused(await deploy({ model: tiny, name }), 400, 'invalid_request', /name/)
  refused(await deploy({ model: 'mdl_none', name: 'ok' }), 404, 'model_not_found')
  assert.equal((await deploy({ model: tiny, name: 'mine' })).status, 201)
  refused(await deploy({ model: tiny, name: 'mine' }), 400, 'name_taken')
  assert.equal(
    (await app.other.api('POST', '/deployments', { model: tiny, name: 'mine' })).status,
    201,
    'a name is an account’s own',
  )
  refused(await app.api('PUT', '/deployments/mine', { model: 'mdl_none' }), 404, 'model_not_found')
  refused(await app.api('PUT', '/deployments/none', { model: tiny }), 404, 'deployment_not_found')
  refused(await app.api('DELETE', '/deployments/none'), 404, 'deployment_not_found')
})

test('objects of another account are not found, with any method', full, async () => {
  const job = (
    await app.api('POST', '/fine-tuning/jobs', {
      model_id: tiny,
      dataset_id: dataset,
      config: { training_config: { epochs: 1 } },
    })
  ).body.id
  const { other } = app
  refused(await other.api('GET', `/datasets/${dataset}`), 404, 'dataset_not_found')
  refused(await other.api('DELETE', `/datasets/${dataset}`), 404, 'dataset_not_found')
  refused(await other.api('POST', `/datasets/${dataset}/validate`), 404, 'dataset_not_found')
  refused(
    await other.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset }),
    404,
    'dataset_not_found',
  )
  refused(await other.api('GET', `/fine-tuning/jobs/${job}`), 404, 'job_not_found')
  refused(await other.api('GET', `/fine-tuning/jobs/${job}/events`), 404, 'job_not_found')
  refused(await other.api('POST', `/fine-tuning/jobs/${job}/cancel`), 404, 'job_not_found')
  refused(await other.api('GET', `/fine-tuning/jobs?after=${job}`), 404, 'job_not_found')
  const { model } = await app.untilEnded(job)
  assert.ok(model)
  refused(await other.api('POST', '/deployments', { model, name: 'theirs' }), 404, 'model_not_found')
  refused(await other.api('POST', '/chat/completions', { model, messages: [user] }), 404, 'model_not_found')
  assert.ok(!JSON.stringify((await other.api('GET', '/models')).body).includes(model))
  assert.deepEqual((await other.api('GET', '/fine-tuning/jobs')).body, { items: [], has_more: false })
  refused(await app.api('POST', `/fine-tuning/jobs/${job}/cancel`), 400, 'job_not_cancellable', /completed/)
})

test('errors before routing have the same shape, and a refused upload frees its connection', async () => {
  refused(await app.api('GET', '/hub/models/%ff'), 400, 'invalid_request')
  const long = await app.api('GET', '/datasets/', undefined, { authorization: 'x'.repeat(20_000) })
  assert.equal(long.status, 431)
  assert.match(long.body.error.message, /HTTP/)
  refused(
    await app.api('POST', '/chat/completions', '{}', { 'content-type': 'text/html' }),
    415,
    'unsupported_media_type',
  )
  refused(await app.api('POST', '/chat/completions', new FormData()), 415, 'unsupported_media_type')
  refused(await app.api('POST', '/fine-tuning/jobs', '{"__proto__":{}}'), 400, 'invalid_request', /__proto__/)
  refused(
    await app.api('POST', '/fine-tuning/jobs', Buffer.from('7b2261223a22ff227d', 'hex')),
    400,
    'invalid_json',
    /utf-8/i,
  )
  refused(await app.api('GET', '/datasets/?limit=1&limit=2'), 400, 'invalid_request', /'limit' is given more than once/)
  for (const limit of ['', ' ', '0x10', '1e1', '5.0', '+5', '-1', '0', '101', 'NaN', '9'.repeat(400)])
    refused(await app.api('GET', `/datasets/?limit=${encodeURIComponent(limit)}`), 400, 'invalid_request', /'limit'/)
  refused(await app.api('GET', '/fine-tuning/jobs/job_none/events?after='), 400, 'invalid_request', /'after'/)
  const deep =
    `{"model":"${tiny}","max_tokens":1,"messages":[{"role":"user","content":"x"}],` +
    `"foo":${'['.repeat(50_000)}${']'.repeat(50_000)}}`
  assert.equal(
    (await app.api('POST', '/chat/completions', deep)).status,
    200,
    'an unknown field is ignored, however deep',
  )
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const send = (method: string, route: string, body: string, headers: Record<string, string>) =>
    new Promise<number>((resolve, reject) => {
      const request = http.request(
        app.url + route,
        { method, agent, headers: { authorization: `Bearer ${app.key}`, ...headers } },
        (response) => {
          response.resume().on('end', () => resolve(response.statusCode!))
        },
      )
      request.on('error', reject).end(body)
    })
  const form =
    `--b\r\nContent-Disposition: form-data; name="colour"\r\n\r\nred\r\n--b\r\nContent-Disposition: ` +
    `form-data; name="file"; filename="f"\r\n\r\n${'x'.repeat(2e6)}\r\n--b--\r\n`
  assert.equal(await send('POST', '/datasets/', form, { 'content-type': 'multipart/form-data; boundary=b' }), 400)
  assert.equal(
    await send('POST', '/datasets/', form.slice(0, 1000), { 'content-type': 'multipart/form-data; boundary=b' }),
    400,
  )
  assert.equal(await send('GET', '/user/profile', '', {}), 200)
  agent.destroy()
})

test('an unknown operation is a 404 in the common shape, with a request id', async () => {
  refused(await app.api('GET', '/nothing'), 404, 'not_found')
  refused(await app.api('PATCH', '/datasets/'), 404, 'not_found')
  refused(await app.api('GET', '/hub/models/none'), 404, 'model_not_found')
})
