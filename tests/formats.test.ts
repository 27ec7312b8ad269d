// Datasets of every format, as people's tools write them, become the same conversations; hostile ones cost seconds, and nobody else anything.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../server/config.ts'
import { createLineCounter } from '../server/datasets/counter.ts'
import { colourRows } from './support/client.ts'
import { startApp, type TestApp } from './support/service.ts'
import { tiny } from './support/tiny.ts'

let app: TestApp
before(async () => {
  app = await startApp()
})
after(() => app.stop())

const fixture = (name: string) => new Uint8Array(readFileSync(path.join(root, 'tests/fixtures', name)))
/** What the trainer will read of an uploaded file. */
async function conversations(content: string | Uint8Array<ArrayBuffer>, format: string) {
  const { status, body } = await app.upload(content, { format })
  assert.equal(status, 201, JSON.stringify(body))
  assert.equal(body.status, 'ready')
  const lines = readFileSync(path.join(app.dataDir, 'datasets', `${body.id}.jsonl`), 'utf8')
    .trim()
    .split('\n')
  assert.equal(body.rows, lines.length)
  return lines.map((line) => JSON.parse(line).messages)
}
const user = (content: string) => ({ role: 'user', content })
const assistant = (content: string) => ({ role: 'assistant', content })
const system = (content: string) => ({ role: 'system', content })
const saved = [
  [user('One, "two"?\nThree.'), assistant('Grüße 😀')],
  [system('Be short.'), user('Hi'), assistant('Hello.')],
]

test('csv: messages as JSON, prompt and completion, instruction and output; a byte order mark, CRLF, quotes and line breaks in fields', async () => {
  const quoted = (value: unknown) => `"${JSON.stringify(value).replaceAll('"', '""')}"`
  assert.deepEqual(await conversations(`id,messages\n${saved.map((row, i) => `${i},${quoted(row)}`).join('\n')}\n`, 'csv'), saved)
  const prompts = '\uFEFFsystem,prompt,completion\r\nBe short.,Hi,Hello.\r\n,"a, ""b""\r\nc",d\r\n\r\n'
  assert.deepEqual(await conversations(prompts, 'csv'), [
    [system('Be short.'), user('Hi'), assistant('Hello.')],
    [user('a, "b"\r\nc'), assistant('d')],
  ])
  assert.deepEqual(await conversations('instruction,input,output\nAdd.,1 and 2,3\nSay hi.,,Hi.', 'csv'), [
    [user('Add.\n\n1 and 2'), assistant('3')],
    [user('Say hi.'), assistant('Hi.')],
  ])
})

test('parquet of pandas and datasets: a list of structs in several groups, and columns of text with nulls', async () => {
  assert.deepEqual(await conversations(fixture('messages.parquet'), 'parquet'), saved)
  assert.deepEqual(await conversations(fixture('instruction.parquet'), 'parquet'), [
    [user('Add.\n\n1 and 2'), assistant('3')],
    [user('Say hi.'), assistant('Hi.')],
  ])
})

test('a zip of a saved dataset folder, and of one with splits, of which train is read', async () => {
  assert.deepEqual(await conversations(fixture('one.zip'), 'huggingface'), saved)
  assert.deepEqual(await conversations(fixture('splits.zip'), 'huggingface'), saved)
})

test('a job trains on a table as on jsonl', async () => {
  const { id } = (await app.upload('prompt,completion\nsky?,blue\ngrass?,green\n', { format: 'csv' })).body
  const { body } = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: id, config: { training_config: { epochs: 1 } } })
  const job = await app.untilEnded(body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const rows = (await app.api('GET', `/fine-tuning/jobs/${body.id}/rows`)).body.items
  assert.equal(rows.length, 2)
  assert.equal(rows[0].messages[1].role, 'assistant')
})

test('wrong rows of a table are told with their line; a job on them is refused', async () => {
  const csv = 'prompt,completion\nfine,yes\n"two\nlines",yes\nempty,\nthree,fields,here\nlast,yes\n'
  const { status, body } = await app.upload(csv, { format: 'csv' })
  assert.equal(status, 201)
  const validation = (await app.api('POST', `/datasets/${body.id}/validate`)).body
  assert.equal(validation.valid, false)
  assert.deepEqual(
    validation.issues.map(({ line, code }: { line: number; code: string }) => [line, code]),
    [
      [5, 'answer_empty'],
      [6, 'columns_wrong'],
    ],
  )
  assert.equal(validation.error_count, 2)
  assert.match(validation.errors[0], /^line 5 .*empty/)
  const job = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: body.id })
  assert.equal(job.body.error.code, 'dataset_invalid')
})

test('validation tells duplicates, weights, lengths and what will be cut; the preview shows which tokens are learned', async () => {
  const long = { messages: [user('x'), assistant('word '.repeat(3000))] }
  const weighted = { messages: [user('a'), { ...assistant('not learned'), weight: 0 }, user('b'), { ...assistant('learned'), weight: 1 }] }
  const rows = [...colourRows(3).trim().split('\n'), colourRows(1).trim(), JSON.stringify(long), JSON.stringify(weighted)]
  const { id } = (await app.upload(rows.join('\n'))).body
  const validation = (await app.api('POST', `/datasets/${id}/validate?model_id=${tiny}`)).body
  assert.equal(validation.valid, true)
  assert.deepEqual([validation.duplicates, validation.warnings[0].line, validation.warnings[0].code], [1, 4, 'duplicate'])
  assert.equal(validation.tokens.cut_rows, 1)
  assert.equal(validation.tokens.cut[0].row, 5)
  assert.ok(validation.tokens.cut_tokens > 900)
  assert.equal(
    validation.tokens.histogram.reduce((sum: number, bar: { rows: number }) => sum + bar.rows, 0),
    6,
  )
  const preview = (await app.api('GET', `/datasets/${id}/preview?model_id=${tiny}&row=6`)).body
  const learned = preview.sequences[0].tokens.filter((token: { trained: boolean }) => token.trained)
  assert.equal(learned.map((token: { text: string }) => token.text).join(''), 'learned<|im_end|>')
  assert.equal((await app.api('GET', `/datasets/${id}/preview?model_id=${tiny}&row=7`)).body.error.code, 'invalid_request')
  assert.equal((await app.other.api('GET', `/datasets/${id}/preview`)).body.error.code, 'dataset_not_found')
  const nothing = JSON.stringify({ messages: [user('a'), { ...assistant('b'), weight: 0 }] })
  const unlearned = (await app.upload(nothing)).body.id
  assert.equal((await app.api('POST', `/datasets/${unlearned}/validate`)).body.issues[0].code, 'nothing_to_learn')
})

test('files that are not what they say are refused, and nothing of them is kept', async () => {
  const refused = async (content: string | Uint8Array<ArrayBuffer>, format: string, code: string, says: RegExp) => {
    const started = Date.now()
    const { status, body } = await app.upload(content, { format })
    assert.equal(body.error?.code, code, JSON.stringify(body))
    assert.ok(status === 400 || status === 413)
    assert.match(body.error.message, says)
    assert.ok(Date.now() - started < 10_000, 'within ten seconds')
  }
  const files = () => readdirSync(path.join(app.dataDir, 'datasets')).length
  const before = files()
  await refused('PAR1 nothing PAR1', 'parquet', 'file_not_readable', /parquet/)
  await refused(fixture('claims.parquet'), 'parquet', 'file_too_large', /2000000000 rows/)
  await refused(fixture('bomb.parquet'), 'parquet', 'file_too_large', /MB/)
  await refused(fixture('messages.parquet').slice(0, 1500), 'parquet', 'file_not_readable', /parquet/)
  await refused('PK not a zip', 'huggingface', 'file_not_readable', /zip/)
  await refused(zipBomb(), 'huggingface', 'file_too_large', /MB/)
  await refused('name,colour\na,b\n', 'csv', 'file_not_readable', /'messages'.*'name', 'colour'/)
  await refused('prompt,completion\n', 'csv', 'file_empty', /no rows/)
  await refused(`prompt,completion\n"${'a,b\n'.repeat(5_000_000)}`, 'csv', 'file_not_readable', /quote may be missing/)
  await refused(new Uint8Array([...Buffer.from('prompt,completion\na,'), 0xff, 0x0a]), 'csv', 'file_not_utf8', /UTF-8/)
  assert.equal(files(), before)
})

/** A zip of a quarter of a megabyte with an entry of a quarter of a gigabyte. */
function zipBomb(): Uint8Array<ArrayBuffer> {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bomb-'))
  const script = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    with archive.open("data.arrow", "w", force_zip64=True) as entry:
        for _ in range(1024):
            entry.write(bytes(1 << 20))`
  const file = path.join(folder, 'bomb.zip')
  execFileSync(path.join(root, '.local/python/bin/python'), ['-c', script, file])
  const bytes = new Uint8Array(readFileSync(file))
  rmSync(folder, { recursive: true })
  return bytes
}

test('NUL bytes and a line of a gigabyte are wrong rows, found while others are served', async () => {
  const nul = (await app.upload('{"messages":[\u0000]}\n')).body.id
  assert.equal((await app.api('POST', `/datasets/${nul}/validate`)).body.issues[0].code, 'invalid_json')
  const form = new FormData()
  form.set('file', new Blob(Array.from({ length: 64 }, () => 'x'.repeat(1 << 24))), 'long.jsonl')
  const { id } = (await app.api('POST', '/datasets/', form)).body
  const slowest = { ms: 0 }
  const validated = app.api('POST', `/datasets/${id}/validate`)
  let over = false
  validated.finally(() => {
    over = true
  })
  while (!over) {
    const started = performance.now()
    await app.api('GET', '/datasets/?limit=1')
    slowest.ms = Math.max(slowest.ms, performance.now() - started)
  }
  assert.equal((await validated).body.issues[0].code, 'line_too_long')
  assert.ok(slowest.ms < 500, `another request waited ${slowest.ms} ms`)
})

test('lines are counted and bad UTF-8 is found however the file is cut into chunks', () => {
  const content = Buffer.from(`\uFEFF{"a":"é😀"}\r\n\n  \n{"b":1}\n\t\r\nlast`)
  const bad = Buffer.concat([Buffer.from('é\n😀\n'), Buffer.from([0xf0, 0x9f, 0x98]), Buffer.from('\n')])
  for (const size of [1, 2, 3, 5, 64]) {
    const counter = createLineCounter()
    for (let at = 0; at < content.length; at += size) counter.add(content.subarray(at, at + size))
    assert.deepEqual(counter.end(), { rows: 3 })
    const other = createLineCounter()
    for (let at = 0; at < bad.length; at += size) other.add(bad.subarray(at, at + size))
    assert.deepEqual(other.end(), { rows: 3, not_utf8_line: 3 }, `in pieces of ${size}`)
  }
})
