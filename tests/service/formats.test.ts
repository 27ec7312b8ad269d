// Datasets of every format, as common tools write them, become the same conversations; hostile files cost seconds and
// do not disturb other requests.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { allowed } from '../support/allowed-time.ts'
import { colourRows } from '../support/client.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()

const fixture = (name: string) => new Uint8Array(readFileSync(path.join(root, 'tests/fixtures', name)))
const readCase = (name: string) => readFileSync(path.join(root, 'tests/fixtures/cases', name), 'utf8')
/** The canonical rows of an uploaded file, which the trainer reads. */
async function conversations(content: string | Uint8Array<ArrayBuffer>, format: string, columns?: object) {
  const { status, body } = await app.upload(content, { format, ...(columns && { columns: JSON.stringify(columns) }) })
  assert.equal(status, 201, JSON.stringify(body))
  assert.equal(body.status, 'ready')
  const lines = readFileSync(path.join(app.dataDir, 'datasets', `${body.id}.rows.jsonl`), 'utf8')
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

test('csv: each column layout, with a byte order mark, CRLF, quotes and line breaks in fields', async () => {
  const quoted = (value: unknown) => `"${JSON.stringify(value).replaceAll('"', '""')}"`
  assert.deepEqual(
    await conversations(`id,messages\n${saved.map((row, i) => `${i},${quoted(row)}`).join('\n')}\n`, 'csv'),
    saved,
  )
  const prompts = '\uFEFFsystem,prompt,completion\r\nBe short.,Hi,Hello.\r\n,"a, ""b""\r\nc",d\r\n\r\n'
  assert.deepEqual(await conversations(prompts, 'csv'), [
    [system('Be short.'), user('Hi'), assistant('Hello.')],
    [user('a, "b"\r\nc'), assistant('d')],
  ])
  assert.deepEqual(
    await conversations(readCase('own-columns.csv'), 'csv', { prompt: 'Frage', completion: 'Antwort' }),
    [
      [user('Wann offen?'), assistant('Von neun bis fünf.')],
      [user('Sonntags?'), assistant('Nein.')],
    ],
  )
  assert.deepEqual(await conversations('instruction,input,output\nAdd.,1 and 2,3\nSay hi.,,Hi.', 'csv'), [
    [user('Add.\n\n1 and 2'), assistant('3')],
    [user('Say hi.'), assistant('Hi.')],
  ])
})

test('a JSON list is read as its rows, each at its line, however it is written', async () => {
  const rows = [
    { messages: [user('a, [b] {"c": "\\"}'), assistant('Grüße 😀')] },
    { messages: [user('c'), assistant('d')] },
    { prompt: 'e', completion: 'f' },
  ]
  const written: [string, number[]][] = [
    [JSON.stringify(rows), [1, 1, 1]],
    [`\uFEFF\n${JSON.stringify(rows, null, 2)}\r\n`, [3, 15, 27]],
    [`[${rows.map((row) => JSON.stringify(row)).join('\n,\n')}]`, [1, 3, 5]],
  ]
  for (const [content, lines] of written) {
    assert.deepEqual(await conversations(content, 'jsonl'), [
      rows[0]!.messages,
      rows[1]!.messages,
      [user('e'), assistant('f')],
    ])
    const { id, format, rows: count } = (await app.upload(content, {}, 'rows.json')).body
    assert.deepEqual([format, count], ['jsonl', 3])
    const { items } = (await app.api('GET', `/datasets/${id}/rows`)).body
    assert.deepEqual(
      items.map(({ line }: { line: number }) => line),
      lines,
    )
  }
  const broken = (await app.upload('[{"messages": []},\n 7,\n {"a": }\n]', {}, 'rows.json')).body
  const { errors } = (await app.api('POST', `/datasets/${broken.id}/validate`)).body
  assert.deepEqual(
    errors.map((error: string) => error.slice(0, 22)),
    ["line 1: 'messages' must", 'line 2 is not a JSON o', 'line 3 is not valid JS'].map((text) => text.slice(0, 22)),
  )
  for (const [content, says] of [
    [JSON.stringify(rows).slice(0, -1), /has no end/],
    [`${JSON.stringify(rows)} x`, /text behind the end/],
    ['[]', /no rows/],
  ] as const) {
    const { status, body } = await app.upload(content, {}, 'rows.json')
    assert.deepEqual([status, body.error?.code], [400, 'file_not_readable'], JSON.stringify(body))
    assert.match(body.error.message, says)
  }
})

test('the guide’s CSV is read as it says', async () => {
  const csv = /```csv\n(.*?)```/s.exec(readFileSync(path.join(root, 'docs/guides/prepare-data.md'), 'utf8'))![1]!
  const rows = await conversations(csv, 'csv')
  assert.deepEqual(rows, [
    [
      system('Triage the ticket.'),
      user('I forgot my password for Sync, and it is urgent.'),
      assistant('product: sync, urgency: high'),
    ],
    [system('Triage the ticket.'), user('The button says "Save" twice.'), assistant('product: editor, urgency: low')],
  ])
})

test('parquet of pandas and datasets: a list of structs in several groups, and columns with nulls', async () => {
  assert.deepEqual(await conversations(fixture('messages.parquet'), 'parquet'), saved)
  assert.deepEqual(await conversations(fixture('instruction.parquet'), 'parquet'), [
    [user('Add.\n\n1 and 2'), assistant('3')],
    [user('Say hi.'), assistant('Hi.')],
  ])
})

test('a zip of a saved dataset folder; of one with splits, train is read', async () => {
  assert.deepEqual(await conversations(fixture('one.zip'), 'huggingface'), saved)
  assert.deepEqual(await conversations(fixture('splits.zip'), 'huggingface'), saved)
})

test('a job trains on a table as on jsonl', full, async () => {
  const { id } = (await app.upload('prompt,completion\nsky?,blue\ngrass?,green\n', { format: 'csv' })).body
  const { body } = await app.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: id,
    config: { training_config: { epochs: 1 } },
  })
  const job = await app.untilEnded(body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const rows = (await app.api('GET', `/fine-tuning/jobs/${body.id}/rows`)).body.items
  assert.equal(rows.length, 2)
  assert.equal(rows[0].messages[1].role, 'assistant')
  assert.deepEqual(rows.map((row: { line: number }) => row.line).sort(), [2, 3])
})

test('without a format field, the format comes from the first bytes, else from the file name', async () => {
  const detected = async (content: string | Uint8Array<ArrayBuffer>, filename: string) => {
    const { status, body } = await app.upload(content, {}, filename)
    assert.equal(status, 201, `${filename}: ${JSON.stringify(body)}`)
    return body.format
  }
  const csv = 'prompt,completion\nsky?,blue\n'
  assert.equal(await detected(csv, 'rows.csv'), 'csv')
  assert.equal(await detected(`\uFEFF"prompt","completion"\r\nsky?,blue\r\n`, 'rows'), 'csv')
  assert.equal(await detected(fixture('messages.parquet'), 'rows.parquet'), 'parquet')
  assert.equal(await detected(fixture('messages.parquet'), 'rows.csv'), 'parquet')
  assert.equal(await detected(fixture('one.zip'), 'SAVED.ZIP'), 'huggingface')
  assert.equal(await detected(fixture('one.zip'), 'saved'), 'huggingface')
  for (const filename of ['rows.jsonl', 'rows.txt', 'rows.json', 'rows', 'rows.jsonl.bak'])
    assert.equal(await detected(colourRows(2), filename), 'jsonl', filename)
  assert.equal(await detected('\uFEFF\n {"messages":[]}\nno json', 'rows.txt'), 'jsonl')
})

test('if the format field or the name contradicts the first bytes, the error names the real format', async () => {
  const uploads = () =>
    readdirSync(path.join(app.dataDir, 'datasets')).filter((name) => !name.includes('.rows.')).length
  const before = uploads()
  const csv = 'id,prompt,completion\n1,sky?,blue\n'
  const gzip = new Uint8Array([0x1f, 0x8b, 8, 0, 1, 2, 3])
  const wrong: [string | Uint8Array<ArrayBuffer>, string, string | undefined, RegExp][] = [
    [
      fixture('messages.parquet'),
      'rows.jsonl',
      'jsonl',
      /sent with format=jsonl, but looks like parquet\. Send it with format=parquet/,
    ],
    [
      fixture('one.zip'),
      'rows.jsonl',
      'jsonl',
      /format=jsonl, but looks like a zip archive\. Send it with format=huggingface/,
    ],
    [fixture('one.zip'), 'book.xlsx', 'csv', /format=csv, but looks like a zip archive/],
    [csv, 'rows.csv', 'jsonl', /format=jsonl, but looks like CSV\. Send it with format=csv/],
    [csv, 'rows.jsonl', undefined, /is named \.jsonl, but looks like CSV/],
    [csv, 'rows.parquet', undefined, /is named \.parquet, but looks like CSV/],
    [csv, 'rows.zip', 'huggingface', /looks like CSV/],
    [colourRows(2), 'rows.csv', undefined, /is named \.csv, but looks like JSON\. Send it with format=jsonl/],
    [colourRows(2), 'rows.csv', 'parquet', /format=parquet, but looks like JSON/],
    [gzip, 'rows.jsonl.gz', undefined, /looks like a gzip file; unpack it first\.$/],
    [gzip, 'rows.csv', 'csv', /looks like a gzip file/],
  ]
  for (const [content, filename, format, pattern] of wrong) {
    const { status, body } = await app.upload(content, format ? { format } : {}, filename)
    assert.deepEqual([status, body.error?.code], [400, 'file_not_readable'], `${filename} ${format}`)
    assert.match(body.error.message, pattern)
  }
  assert.equal(uploads(), before)
})

test('a table whose columns cannot be told is refused at once, with the names that are meant', async () => {
  const refused: [string, object | undefined, string, RegExp][] = [
    [readCase('two-prompt-columns.csv'), undefined, 'file_not_readable', /^The file has two columns named 'prompt'\./],
    [
      readCase('own-columns.csv'),
      undefined,
      'file_not_readable',
      /it names 'id', 'Frage', 'Antwort'\. If its columns have other names, say which with 'columns' at the upload\./,
    ],
    [
      readCase('own-columns.csv'),
      { prompt: 'Frage', completion: 'Antwrot' },
      'file_not_readable',
      /^'columns' names 'Antwrot', which the file does not have\. It has 'id', 'Frage', 'Antwort'\.$/,
    ],
    [readCase('own-columns.csv'), { prompt: 'Frage' }, 'file_not_readable', /^'columns' must name a column 'messages'/],
    ['prompt,completion\na,b\n', { question: 'prompt' }, 'invalid_request', /columns.*JSON like/],
    ['prompt,completion\na,b\n', {}, 'invalid_request', /columns.*must name a column/],
    ['a,b\nc,d\n', { prompt: 'a', completion: 'a' }, 'invalid_request', /columns.*names a column of the file twice/],
  ]
  for (const [content, columns, code, message] of refused) {
    const { status, body } = await app.upload(content, {
      format: 'csv',
      ...(columns && { columns: JSON.stringify(columns) }),
    })
    assert.deepEqual([status, body.error?.code], [400, code], JSON.stringify(body))
    assert.match(body.error.message, message)
  }
  const columns = '{"prompt":"Frage","completion":"Antwort"}'
  const kept = await app.upload(readCase('own-columns.csv'), { columns }, 'questions')
  assert.deepEqual(kept.body.columns, { prompt: 'Frage', completion: 'Antwort' })
})

test('files that do not match their format are refused and not kept', full, async () => {
  const refused = async (content: string | Uint8Array<ArrayBuffer>, format: string, code: string, pattern: RegExp) => {
    const started = Date.now()
    const { status, body } = await app.upload(content, { format })
    assert.equal(body.error?.code, code, JSON.stringify(body))
    assert.ok(status === 400 || status === 413)
    assert.match(body.error.message, pattern)
    assert.ok(Date.now() - started < allowed(10_000), 'within ten seconds')
  }
  const files = () => readdirSync(path.join(app.dataDir, 'datasets')).length
  const before = files()
  await refused('PAR1 nothing PAR1', 'parquet', 'file_not_readable', /parquet/)
  await refused(fixture('claims.parquet'), 'parquet', 'file_too_large', /2000000000 rows/)
  await refused(fixture('bomb.parquet'), 'parquet', 'file_too_large', /MB/)
  await refused(fixture('messages.parquet').slice(0, 1500), 'parquet', 'file_not_readable', /parquet/)
  const whole = fixture('messages.parquet')
  const cut = whole.slice(0, -20)
  await refused(cut, 'parquet', 'file_not_readable', /^The parquet file is cut off/)
  await refused(
    'no parquet at all, but text',
    'parquet',
    'file_not_readable',
    /^The file is no parquet file: it does not begin as one does\.$/,
  )
  await refused(
    new Uint8Array([...whole.slice(0, -4), ...Buffer.from('PARE')]),
    'parquet',
    'file_not_readable',
    /encrypted/,
  )
  await refused('PK not a zip', 'huggingface', 'file_not_readable', /zip/)
  await refused(fixture('one.zip').slice(0, -30), 'huggingface', 'file_not_readable', /its end is missing\.$/)
  await refused(
    flagged(fixture('one.zip')),
    'huggingface',
    'file_not_readable',
    /^The zip archive is encrypted\. Make it without a password\.$/,
  )
  await refused('p\0rompt,completion\na,b\n', 'csv', 'file_not_utf8', /NUL bytes in its first line/)
  await refused('prompt;completion\na;b\n', 'csv', 'file_not_readable', /with commas between the columns/)
  await refused(zipBomb(), 'huggingface', 'file_too_large', /MB/)
  await refused('name,colour\na,b\n', 'csv', 'file_not_readable', /'messages'.*'name', 'colour'/)
  await refused('prompt,completion\n', 'csv', 'file_empty', /no rows/)
  await refused(`prompt,completion\n"${'a,b\n'.repeat(5_000_000)}`, 'csv', 'file_not_readable', /quote may be missing/)
  await refused(new Uint8Array([...Buffer.from('prompt,completion\na,'), 0xff, 0x0a]), 'csv', 'file_not_utf8', /UTF-8/)
  assert.equal(files(), before)
})

/** The same zip with entries marked as encrypted. */
function flagged(zip: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const bytes = Buffer.from(zip)
  for (const [signature, flags] of [
    ['PK\x03\x04', 6],
    ['PK\x01\x02', 8],
  ] as const)
    for (let at = bytes.indexOf(signature, 0, 'latin1'); at !== -1; at = bytes.indexOf(signature, at + 1, 'latin1'))
      bytes[at + flags]! |= 1
  return new Uint8Array(bytes)
}

/** A zip bomb: a quarter of a megabyte with an entry of a quarter of a gigabyte. */
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
