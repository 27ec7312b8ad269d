// The life of an export through the API: made, checked against the training, downloaded whole and in ranges,
// expired, deleted.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, readlinkSync, renameSync, statSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { before, test } from 'node:test'
import Database from 'better-sqlite3'
import type { Export } from '../../contract/exports.ts'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { until } from '../support/client.ts'
import { claimAll } from '../support/disk.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let model: string
let exported: Export
before(async () => {
  await app.started
  model = await app.colourModel()
})

const inExports = () => readdirSync(path.join(app.dataDir, 'exports'))
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex')
async function download(
  id: string,
  headers: Record<string, string> = {},
  { file, method = 'GET' }: { file?: string; method?: string } = {},
) {
  const query = file ? `?file=${encodeURIComponent(file)}` : ''
  const response = await fetch(`${app.url}/exports/${id}/download${query}`, {
    method,
    headers: { authorization: `Bearer ${app.key}`, ...headers },
  })
  return { status: response.status, headers: response.headers, bytes: new Uint8Array(await response.arrayBuffer()) }
}

test('an export answers like the trainer, streams its events, and keeps its model from deletion', async () => {
  await app.api('PATCH', `/fine-tuning/models/${model}`, { name: 'Tickets "v2"/../ü' })
  await app.api('POST', '/deployments', { name: 'colours', model })
  const created = await app.api('POST', '/exports', { model: 'colours', format: 'gguf', quantization: 'q8_0' })
  assert.equal(created.status, 201, JSON.stringify(created.body))
  assert.deepEqual([created.body.status, created.body.model, created.body.quantization], ['queued', model, 'Q8_0'])
  await app.api('DELETE', '/deployments/colours')
  const needed = await app.api('DELETE', `/fine-tuning/models/${model}`)
  assert.equal(needed.body.error.code, 'in_use')
  assert.match(needed.body.error.message, new RegExp(created.body.id))
  assert.equal((await app.api('GET', `/exports/${created.body.id}/download`)).body.error.code, 'export_not_ready')

  const events: JobEvent[] = []
  for await (const event of app.events(created.body.id)) events.push(event)
  assert.deepEqual(
    events.map(({ seq }) => seq),
    events.map((_, index) => index + 1),
    'numbers without a gap',
  )
  assert.deepEqual(
    events.filter(({ data }) => data?.status).map(({ data }) => data!.status),
    ['queued', 'running', 'ready'],
  )
  const progress = events.filter(({ type }) => type === 'progress').map(({ data }) => data!.progress as number)
  assert.ok(progress.length > 4)
  assert.deepEqual(
    progress,
    progress.toSorted((a, b) => a - b),
    'progress never goes back',
  )
  assert.ok(!JSON.stringify(events).includes(app.dataDir), 'no path of the machine is shown')

  exported = (await app.api('GET', `/exports/${created.body.id}`)).body
  assert.deepEqual(
    [exported.status, exported.progress, exported.stage, exported.error],
    ['ready', 1, null, null],
    JSON.stringify(exported),
  )
  const { agrees, runtime, prompts, tokens, log_probability_difference } = exported.check!
  assert.deepEqual([agrees, prompts, tokens > 0], [true, 4, true], JSON.stringify(exported.check))
  assert.match(runtime, /^llama\.cpp/)
  assert.ok(
    log_probability_difference > 0 && log_probability_difference < 0.15,
    'eight bits are near, and not the same',
  )
  assert.ok(Date.parse(exported.expires_at!) > Date.parse(exported.finished_at!) + 6.9 * 86_400_000)
  assert.deepEqual(inExports(), [exported.id], 'only the ready export is left')
  assert.ok(existsSync(path.join(app.dataDir, 'drafts', `${model}.bin`)))
  for (const { name } of exported.files)
    assert.ok(
      !readFileSync(path.join(app.dataDir, 'exports', exported.id, name)).includes('TNDRAFT1'),
      `answers in ${name}`,
    )
  const ofSocket = createHash('sha256').update(exported.id).digest('hex').slice(0, 12)
  assert.ok(
    !readdirSync(os.tmpdir()).some((name) => name.endsWith(ofSocket)),
    'no socket folder of the verifying engine',
  )
  assert.deepEqual(
    (await app.api('GET', '/exports?limit=1')).body.items.map(({ id }: Export) => id),
    [exported.id],
  )
})

test('a file can be downloaded whole or from any byte; its ETag is its SHA-256', async () => {
  const [file] = exported.files
  const whole = await download(exported.id)
  assert.equal(whole.status, 200)
  assert.equal(sha256(whole.bytes), file!.sha256)
  assert.equal(whole.headers.get('etag'), `"${file!.sha256}"`)
  assert.equal(whole.headers.get('accept-ranges'), 'bytes')
  assert.equal(whole.headers.get('content-type'), 'application/octet-stream')
  assert.equal(Number(whole.headers.get('content-length')), file!.size_bytes)
  assert.equal(whole.headers.get('content-disposition'), `attachment; filename="${file!.name}"`)
  assert.equal(Buffer.from(whole.bytes.subarray(0, 4)).toString(), 'GGUF')
  const size = file!.size_bytes
  assert.equal(file!.name, 'Tickets-v2-u-Q8_0.gguf', 'named after the model')
  assert.equal(whole.headers.get('content-disposition'), 'attachment; filename="Tickets-v2-u-Q8_0.gguf"')
  const etag = `"${file!.sha256}"`
  const pieces: [Record<string, string>, number, number, number][] = [
    [{ range: 'bytes=0-99' }, 206, 0, 100],
    [{ range: 'bytes=100-' }, 206, 100, size],
    [{ range: 'bytes=-7' }, 206, size - 7, size],
    [{ range: `bytes=${size - 3}-${size + 100}` }, 206, size - 3, size],
    [{ range: 'bytes=5-9', 'if-range': etag }, 206, 5, 10],
    // A stale If-Range, or an unsupported Range header: the whole file is
    // sent.
    [{ range: 'bytes=5-9', 'if-range': '"another"' }, 200, 0, size],
    [{ range: 'bytes=0-1,5-9' }, 200, 0, size],
    [{ range: 'lines=1-2' }, 200, 0, size],
    [{ range: 'bytes=9-5' }, 200, 0, size],
    [{ range: 'bytes=1.5-3' }, 200, 0, size],
    [{ range: 'bytes=-' }, 200, 0, size],
    [{ range: 'bytes=5-9', 'if-range': `W/${etag}` }, 200, 0, size],
    // A suffix longer than the file: the whole file.
    [{ range: `bytes=-${size + 1}` }, 206, 0, size],
    [{ range: `Bytes=5-${'9'.repeat(400)}` }, 206, 5, size],
  ]
  for (const [headers, status, from, to] of pieces) {
    const { bytes, ...answer } = await download(exported.id, headers)
    assert.equal(answer.status, status, JSON.stringify(headers))
    assert.equal(sha256(bytes), sha256(whole.bytes.subarray(from, to)), JSON.stringify(headers))
    assert.equal(answer.headers.get('content-range'), status === 206 ? `bytes ${from}-${to - 1}/${size}` : null)
    assert.equal(answer.headers.get('etag'), etag)
  }
  assert.equal((await download(exported.id, { range: 'bytes=-0' })).status, 416)
  const beyond = await download(exported.id, { range: `bytes=${size}-` })
  assert.equal(beyond.status, 416)
  assert.equal(beyond.headers.get('content-range'), `bytes */${size}`)
  assert.equal(JSON.parse(Buffer.from(beyond.bytes).toString()).error.code, 'range_not_satisfiable')
  assert.equal((await download(exported.id, { 'if-none-match': etag })).status, 304)
  const head = await download(exported.id, {}, { method: 'HEAD' })
  assert.deepEqual([head.status, head.bytes.length, Number(head.headers.get('content-length'))], [200, 0, size])
  assert.equal(head.headers.get('etag'), etag)

  const modelfile = exported.files.find(({ name }) => name === 'Modelfile')!
  const text = await download(exported.id, {}, { file: 'Modelfile' })
  assert.equal(sha256(text.bytes), modelfile.sha256)
  assert.match(Buffer.from(text.bytes).toString(), new RegExp(`^FROM \\./${file!.name}$`, 'm'))
  for (const name of ['nothing', '../../tunery.db', `..%2f${exported.id}`, '.', 'spec.json']) {
    const refused = await download(exported.id, {}, { file: name })
    assert.deepEqual(
      [refused.status, JSON.parse(Buffer.from(refused.bytes).toString()).error.code],
      [404, 'export_not_found'],
      name,
    )
  }
})

test('a client that aborts a download leaves no open file', async () => {
  const open = () =>
    readdirSync('/proc/self/fd').filter((fd) =>
      linkOf(`/proc/self/fd/${fd}`).includes(path.join('exports', exported.id)),
    )
  for (let times = 0; times < 5; times++)
    await new Promise<void>((resolve, reject) => {
      const request = http.get(
        `${app.url}/exports/${exported.id}/download`,
        { headers: { authorization: `Bearer ${app.key}` }, agent: false },
        (response) => {
          response.once('data', () => {
            request.destroy()
            resolve()
          })
          response.on('error', () => {})
        },
      )
      request.on('error', reject)
    })
  await until('the file to be closed', () => open().length === 0)
})
function linkOf(file: string): string {
  try {
    return readlinkSync(file)
  } catch {
    return ''
  }
}

test(
  'a quantization that needs an importance matrix gets one computed from the model, which is stored',
  full,
  async () => {
    const measured: number[] = []
    for (const quantization of ['IQ2_XXS', 'IQ1_S']) {
      const { id, status, error } = await app.exported({ model, format: 'gguf', quantization })
      assert.equal(status, 'ready', JSON.stringify(error))
      measured.push(statSync(path.join(app.dataDir, 'models', model, 'importance.safetensors')).mtimeMs)
      await app.api('DELETE', `/exports/${id}`)
    }
    assert.equal(measured[0], measured[1])
  },
)

test('impossible exports are refused with a remedy', async () => {
  const ask = async (body: object) => (await app.api('POST', '/exports', body)).body.error ?? {}
  const gguf = { model, format: 'gguf' }
  const refused: [object, string, RegExp][] = [
    [{ model: 'mdl_nobody', format: 'gguf' }, 'model_not_found', /no tuned model or deployment/],
    [{ model: tiny, format: 'gguf' }, 'model_not_found', /mdl_|tuned/],
    [{ ...gguf, quantization: 'Q9_9' }, 'invalid_request', /must be one of F32, F16, BF16, Q8_0/],
    [{ ...gguf, quantization: 'Q4_K_M', merge: false }, 'invalid_request', /for an adapter alone/],
    [{ ...gguf, archive: 'zip' }, 'invalid_request', /one file/],
    [{ ...gguf, format: 'onnx', quantization: 'Q8_0' }, 'invalid_request', /fp32, fp16, int8, int4/],
    [{ ...gguf, format: 'onnx', merge: false }, 'invalid_request', /adapter alone/],
    [{ ...gguf, push_to: 'team/model' }, 'invalid_request', /TUNERY_HUGGINGFACE_TOKEN/],
    [{ ...gguf, push_to: '../x' }, 'invalid_request', /OWNER\/NAME/],
    [{ ...gguf, quantisation: 'Q8_0' }, 'unknown_field', /quantisation/],
    [{ model, format: 'zip' }, 'invalid_request', /format/],
    [{ format: 'gguf' }, 'invalid_request', /model/],
  ]
  for (const [body, code, pattern] of refused) {
    const error = await ask(body)
    assert.equal(error.code, code, JSON.stringify({ body, error }))
    assert.match(error.message, pattern)
  }
  assert.equal(
    (await app.other.api('POST', '/exports', gguf)).body.error.code,
    'model_not_found',
    'the model of another',
  )
  for (const [method, route] of [
    ['GET', `/exports/${exported.id}`],
    ['GET', `/exports/${exported.id}/download`],
    ['DELETE', `/exports/${exported.id}`],
  ] as const)
    assert.equal((await app.other.api(method, route)).body.error.code, 'export_not_found', route)
  assert.equal((await app.api('GET', '/exports?limit=100')).body.items.length, 1, 'nothing was begun')
})

test('a file with another chat template than in training never becomes ready', full, async () => {
  // Change the template that the exporter reads after the reference answers are stored.
  const template = path.join(app.dataDir, 'models', model, 'adapter/chat_template.jinja')
  const right = readFileSync(template, 'utf8')
  writeFileSync(template, "{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}### assistant\n")
  const broken = await app.exported({ model, format: 'gguf' })
  writeFileSync(template, right)
  assert.deepEqual([broken.status, broken.error?.code], ['failed', 'export_disagrees'], JSON.stringify(broken))
  assert.match(broken.error!.message, /other tokens than in training, for 4 of 4/)
  assert.equal(broken.check!.agrees, false)
  assert.deepEqual([broken.files, inExports()], [[], [exported.id]])
  assert.match((await app.api('GET', `/exports/${broken.id}/download`)).body.error.message, /failed/)
})

test('exports run one at a time; deleting a running one cancels it and the next one starts', full, async () => {
  const first = (await app.api('POST', '/exports', { model, format: 'gguf', quantization: 'F32' })).body.id
  const second = (await app.api('POST', '/exports', { model, format: 'gguf', merge: false })).body.id
  await app.untilEvent(first, ({ data }) => data?.status === 'running')
  assert.equal((await app.api('GET', `/exports/${second}`)).body.status, 'queued')
  const following = (async () => {
    for await (const _ of app.events(first));
  })()
  assert.deepEqual((await app.api('DELETE', `/exports/${first}`)).body, { id: first, deleted: true })
  await following
  assert.equal((await app.api('GET', `/exports/${first}`)).body.error.code, 'export_not_found')
  for await (const _ of app.events(second));
  const { status, files, check } = (await app.api('GET', `/exports/${second}`)).body
  assert.equal(status, 'ready', JSON.stringify(check))
  assert.match(files[0].name, /adapter-F16\.gguf$/)
  assert.deepEqual(inExports().sort(), [exported.id, second].sort())
  await app.api('DELETE', `/exports/${second}`)
  assert.deepEqual(inExports(), [exported.id])
})

test('a ready export outlives its model; after its retention its files are removed and its row stays', async () => {
  assert.equal((await app.api('DELETE', `/fine-tuning/models/${model}`)).status, 200)
  assert.equal((await download(exported.id)).status, 200)
  // The file disappears while a download begins.
  const modelfile = path.join(app.dataDir, 'exports', exported.id, 'Modelfile')
  renameSync(modelfile, `${modelfile}.lost`)
  const lost = await download(exported.id, {}, { file: 'Modelfile' })
  assert.deepEqual([lost.status, lost.headers.get('content-disposition'), lost.headers.get('etag')], [404, null, null])
  const { error } = JSON.parse(Buffer.from(lost.bytes).toString())
  assert.equal(error.code, 'export_not_found')
  assert.ok(!error.message.includes(app.dataDir), error.message)
  writeFileSync(modelfile, 'FROM')
  assert.equal((await download(exported.id, {}, { file: 'Modelfile' })).status, 404, 'a part of it is not given out')
  const db = new Database(path.join(app.dataDir, 'tunery.db'))
  db.prepare('update exports set expires_at = ? where id = ?').run(Date.now() - 1, exported.id)
  db.close()
  // Even before the sweep has removed the files.
  assert.match((await app.api('GET', `/exports/${exported.id}/download`)).body.error.message, /expired/)
  await app.services.exports.expire()
  const expired = (await app.api('GET', `/exports/${exported.id}`)).body
  assert.deepEqual([expired.status, expired.check.agrees], ['expired', true])
  assert.deepEqual(inExports(), [])
  assert.ok(!existsSync(path.join(app.dataDir, 'exports', exported.id)))
  assert.deepEqual((await app.api('GET', `/exports/${exported.id}/download`)).body.error.details, { status: 'expired' })
})

test('an export waits, with nothing of it left, where other files take the space while it is made', async () => {
  const fresh = await app.colourModel()
  const { id } = (await app.api('POST', '/exports', { model: fresh, format: 'gguf', quantization: 'q8_0' })).body
  const partial = () => existsSync(path.join(app.dataDir, 'exports', `${id}.part`))
  await until('it to be written', partial)
  const claim = await claimAll(app.dataDir)
  const waiting = async () => (await app.api('GET', `/exports/${id}`)).body.status === 'queued'
  await until('it to wait', waiting)
  await until('its files to be removed', () => !partial())
  claim.release()
  await app.api('DELETE', `/exports/${id}`)
})
