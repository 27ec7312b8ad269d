// OpenAI's files and uploads, with OpenAI's own client: the same store as datasets, under that API's names.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import OpenAI, { toFile } from 'openai'
import { colourRows, until } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests({ TUNERY_MAX_DATASET_MB: '1' })
let openai: OpenAI
let other: OpenAI
before(async () => {
  await app.started
  openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
  other = new OpenAI({ baseURL: app.url, apiKey: app.otherKey, maxRetries: 0 })
})

const rows = colourRows(12)
const upload = (content: string, purpose: string, name = 'rows.jsonl') =>
  openai.files.create({ file: new File([content], name), purpose: purpose as 'batch' })
/** Asserts an error in the shape that OpenAI's clients read. */
const refused = (promise: Promise<unknown>, status: number, code: string, param: string | null) =>
  assert.rejects(promise, (error: InstanceType<typeof OpenAI.APIError>) => {
    assert.deepEqual([error.status, error.code, error.param], [status, code, param], error.message)
    return true
  })
const onDisk = (folder: string) => readdirSync(path.join(app.dataDir, folder)).length

test('a file to fine-tune on is a dataset, and a dataset is a file', async () => {
  const file = await upload(rows, 'fine-tune')
  assert.equal(file.object, 'file')
  assert.equal(file.bytes, Buffer.byteLength(rows))
  assert.equal(file.purpose, 'fine-tune')
  assert.ok(Math.abs(file.created_at - Date.now() / 1000) < 60)
  const processed = await openai.files.waitForProcessing(file.id, { pollInterval: 20 })
  assert.equal(processed.status, 'processed')
  assert.equal((await app.api('GET', `/datasets/${file.id}`)).body.rows, 12)
  assert.equal(await (await openai.files.content(file.id)).text(), rows)

  const dataset = (await app.upload(rows, { name: 'theirs' })).body
  assert.equal((await openai.files.retrieve(dataset.id)).filename, 'theirs')
  assert.deepEqual(await openai.files.delete(dataset.id), { id: dataset.id, object: 'file', deleted: true })
  assert.equal((await app.api('GET', `/datasets/${dataset.id}`)).status, 404)
})

test('rows that cannot be trained on make the status error and say which', async () => {
  const file = await upload(`${rows}\n{"messages":[{"role":"user","content":"no answer"}]}\n`, 'fine-tune')
  await until('the rows to be read', async () => (await openai.files.retrieve(file.id)).status !== 'uploaded')
  const read = await openai.files.retrieve(file.id)
  assert.equal(read.status, 'error')
  assert.match(read.status_details!, /1 of 13 rows.*line 13/i)
})

test('lists have files of all kinds in order of time, filtered and paged', async () => {
  const batch = await upload('{"custom_id":"1"}\n', 'batch', 'requests.jsonl')
  const notes = await upload('notes', 'user_data', 'notes ä.txt')
  const all = (await openai.files.list()).data
  assert.deepEqual(
    all.slice(0, 2).map(({ id }) => id),
    [notes.id, batch.id],
  )
  assert.ok(all.some(({ purpose }) => purpose === 'fine-tune'))
  assert.deepEqual(
    (await openai.files.list({ purpose: 'batch' })).data.map(({ id }) => id),
    [batch.id],
  )
  const ids: string[] = []
  for await (const file of openai.files.list({ limit: 1, order: 'asc' })) ids.push(file.id)
  assert.deepEqual(ids, all.map(({ id }) => id).reverse())
  const content = await openai.files.content(notes.id)
  assert.equal(await content.text(), 'notes')
  assert.match(content.headers.get('content-disposition')!, /filename\*=UTF-8''notes%20%C3%A4\.txt/)
  await openai.files.delete(notes.id)
  await refused(openai.files.retrieve(notes.id), 404, 'file_not_found', 'file_id')
  assert.ok(!existsSync(path.join(app.dataDir, 'files', notes.id)))
})

test('files of another account do not exist for this one', async () => {
  const { id } = await upload('theirs', 'user_data')
  const { id: dataset } = await upload(rows, 'fine-tune')
  for (const file of [id, dataset]) {
    await refused(other.files.retrieve(file), 404, 'file_not_found', 'file_id')
    await refused(other.files.content(file), 404, 'file_not_found', 'file_id')
    await refused(other.files.delete(file), 404, 'file_not_found', 'file_id')
    await refused(other.files.list({ after: file }) as Promise<unknown>, 404, 'file_not_found', 'after')
  }
  assert.equal((await other.files.list()).data.length, 0)
})

test('bad uploads are refused in that API’s shape and leave nothing behind', async () => {
  // Rows of earlier files that are still read would come between.
  await until('all files to be read', async () => {
    const { data } = await openai.files.list()
    return data.every(({ status }) => status !== 'uploaded')
  })
  const [files, datasets] = [onDisk('files'), onDisk('datasets')]
  await refused(upload(rows, 'assistants'), 400, 'invalid_request', 'purpose')
  await refused(upload('', 'user_data'), 400, 'file_empty', 'file')
  await refused(upload('x'.repeat(1_100_000), 'user_data'), 413, 'file_too_large', 'file')
  await refused(upload('\n\n', 'fine-tune'), 400, 'file_empty', 'file')
  const withoutPurpose = new FormData()
  withoutPurpose.set('file', new Blob([rows]), 'rows.jsonl')
  assert.equal((await app.api('POST', '/files', withoutPurpose)).body.error.param, 'purpose')
  const expiring = { anchor: 'created_at' as const, seconds: 3600 }
  await refused(
    openai.files.create({ file: new File([rows], 'x'), purpose: 'fine-tune', expires_after: expiring }),
    400,
    'parameter_not_supported',
    'expires_after',
  )
  assert.deepEqual([onDisk('files'), onDisk('datasets')], [files, datasets])
})

test('a file is deleted when its time is over', async () => {
  const file = await openai.files.create({
    file: new File(['x'], 'x'),
    purpose: 'user_data',
    expires_after: { anchor: 'created_at', seconds: 3600 },
  })
  assert.equal(file.expires_at, file.created_at + 3600)
  await app.services.removeExpiredFiles(Date.now() + 3_599_000)
  assert.equal(await (await openai.files.content(file.id)).text(), 'x')
  await app.services.removeExpiredFiles(Date.now() + 3_601_000)
  await refused(openai.files.retrieve(file.id), 404, 'file_not_found', 'file_id')
  assert.ok(!existsSync(path.join(app.dataDir, 'files', file.id)))
})

test('an upload in parts becomes one file, in the order that its completion names', async () => {
  const bytes = Buffer.from(rows)
  const upload = await openai.uploads.create({
    filename: 'large.jsonl',
    purpose: 'fine-tune',
    bytes: bytes.length,
    mime_type: 'application/jsonl',
  })
  assert.equal(upload.status, 'pending')
  const part = async (from: number, to: number) =>
    (await openai.uploads.parts.create(upload.id, { data: await toFile(bytes.subarray(from, to)) })).id
  const [second, first] = [await part(100, bytes.length), await part(0, 100)]
  await refused(openai.uploads.complete(upload.id, { part_ids: [first] }), 400, 'upload_incomplete', 'part_ids')
  await refused(
    openai.uploads.complete(upload.id, { part_ids: [first, second], md5: 'd41d8cd98f00b204e9800998ecf8427e' }),
    400,
    'upload_incomplete',
    'md5',
  )
  const md5 = createHash('md5').update(bytes).digest('hex')
  const completed = await openai.uploads.complete(upload.id, { part_ids: [first, second], md5 })
  assert.equal(completed.status, 'completed')
  assert.equal(await (await openai.files.content(completed.file!.id)).text(), rows)
  assert.ok(!existsSync(path.join(app.dataDir, 'uploads', upload.id)))
  await refused(openai.uploads.cancel(upload.id), 400, 'upload_not_pending', 'upload_id')
  const again = await openai.uploads.complete(upload.id, { part_ids: [first, second], md5 })
  assert.equal(again.file!.id, completed.file!.id, 'a client that lost the answer gets it again, and no second file')
})

test('of requests that end one upload at once, one does, and parts that come too late are refused', async () => {
  const { id } = await openai.uploads.create({
    filename: '../a\u0000b',
    purpose: 'user_data',
    bytes: 1,
    mime_type: 'x',
  })
  const data = await toFile(Buffer.from('x'))
  const part = await openai.uploads.parts.create(id, { data })
  await refused(openai.uploads.complete(id, { part_ids: [part.id, part.id] }), 400, 'upload_incomplete', 'part_ids')
  const empty = openai.uploads.parts.create(id, { data: await toFile(Buffer.alloc(0)) })
  await refused(empty, 400, 'file_empty', 'data')
  const before = onDisk('files')
  const ends = await Promise.allSettled([
    ...[1, 2, 3].map(() => openai.uploads.complete(id, { part_ids: [part.id] })),
    openai.uploads.cancel(id),
    openai.uploads.parts.create(id, { data }),
  ])
  const statuses = ends.map((end) => (end.status === 'fulfilled' ? 200 : end.reason.status))
  assert.ok(
    statuses.every((status) => status === 200 || status === 400),
    String(statuses),
  )
  const completed = ends.flatMap((end) => (end.status === 'fulfilled' && 'file' in end.value ? [end.value] : []))
  assert.ok(completed.every(({ status }) => status === completed[0]!.status))
  assert.equal(onDisk('files') - before, completed[0]!.status === 'completed' ? 1 : 0)
  assert.doesNotMatch(completed[0]!.filename, /\0/)
})

test('a list continues after a file that was deleted meanwhile', async () => {
  const names = ['one', 'two', 'three', 'four', 'five']
  for (const name of names) await upload(name, 'evals', name)
  let deleted = 0
  for await (const file of openai.files.list({ purpose: 'evals', limit: 2 })) {
    await openai.files.delete(file.id)
    deleted++
  }
  assert.equal(deleted, names.length)
  assert.equal((await openai.files.list({ purpose: 'evals' })).data.length, 0)
})

test('a cancelled or overdue upload leaves nothing behind and cannot be completed', async () => {
  const begin = () => openai.uploads.create({ filename: 'x', purpose: 'user_data', bytes: 2, mime_type: 'text/plain' })
  const [cancelled, overdue] = [await begin(), await begin()]
  for (const { id } of [cancelled, overdue])
    await openai.uploads.parts.create(id, { data: await toFile(Buffer.from('x')) })
  assert.equal((await openai.uploads.cancel(cancelled.id)).status, 'cancelled')
  await app.services.removeExpiredFiles(Date.now() + 3_601_000)
  for (const { id } of [cancelled, overdue]) {
    assert.ok(!existsSync(path.join(app.dataDir, 'uploads', id)))
    await refused(openai.uploads.complete(id, { part_ids: ['part_x'] }), 400, 'upload_not_pending', 'upload_id')
  }
  const theirs = await begin()
  const otherPart = other.uploads.parts.create(theirs.id, { data: await toFile(Buffer.from('x')) })
  await refused(otherPart, 404, 'upload_not_found', 'upload_id')
  const { id } = await begin()
  await refused(
    openai.uploads.create({ filename: 'x', purpose: 'batch', bytes: 2e6, mime_type: 'text/plain' }),
    413,
    'file_too_large',
    'bytes',
  )
  const many = Array.from({ length: 3 }, async () =>
    openai.uploads.parts.create(id, { data: await toFile(Buffer.alloc(40_000_000)) }),
  )
  const results = await Promise.allSettled(many)
  assert.ok(
    results.some(({ status }) => status === 'rejected'),
    'a client cannot fill the disk with parts',
  )
})
