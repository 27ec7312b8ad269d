// Datasets of earlier versions: their rows become canonical when they are first used, and nothing else of them changes.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  app = await startApp()
})
after(() => app.stop())

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex')
const file = (id: string, ending: string) => path.join(app.dataDir, 'datasets', `${id}.${ending}`)

/** Makes a dataset as an earlier version stored it. Resolves with its id once its rows were read. */
async function earlier(content: string, format: string, rows: string, source_name: (id: string) => string | null) {
  const { id } = (await app.upload(content, { format })).body
  await app.api('GET', `/datasets/${id}/rows`)
  rmSync(file(id, 'rows.jsonl'))
  writeFileSync(file(id, 'jsonl'), rows)
  const name = source_name(id)
  if (name) writeFileSync(path.join(app.dataDir, 'datasets', name), content)
  const values = { rows_form: 0, rows_sha256: sha256(rows), source_name: name }
  await app.db.updateTable('datasets').set(values).where('id', '=', id).execute()
  return id as string
}
const download = async (id: string) =>
  await (await fetch(`${app.url}/files/${id}/content`, { headers: { authorization: `Bearer ${app.key}` } })).text()
const stored = (id: string) => app.db.selectFrom('datasets').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
const row = (question: string, more: object = {}) =>
  `${JSON.stringify({
    messages: [
      { role: 'user', content: question },
      { role: 'assistant', content: 'b' },
    ],
    ...more,
  })}\n`

test('rows of a table keep their lines, and its download its bytes', async () => {
  const csv = 'prompt,completion\n"a\nb",b\nc,b\n'
  const rows = row('a\nb', { source_line: 2 }) + row('c', { source_line: 4 })
  const id = await earlier(csv, 'csv', rows, () => null)
  const { items } = (await app.api('GET', `/datasets/${id}/rows`)).body
  assert.deepEqual(
    items.map(({ line, messages }: { line: number; messages: { content: string }[] }) => [line, messages[0]!.content]),
    [
      [2, 'a\nb'],
      [4, 'c'],
    ],
  )
  const { rows_form, earlier_rows_sha256, rows_sha256, sha256: uploaded } = await stored(id)
  assert.deepEqual([rows_form, earlier_rows_sha256, uploaded], [1, sha256(rows), sha256(csv)])
  assert.equal(rows_sha256, sha256(readFileSync(file(id, 'rows.jsonl'), 'utf8')))
  assert.ok(!existsSync(file(id, 'jsonl')), 'the earlier rows go')
  assert.equal(await download(id), csv)
})

test('the upload of JSON lines stays, also where its pictures had been fetched', async () => {
  const lines = `\n${row('a', { source_line: 9000 })}`
  for (const source of [() => null, (id: string) => `${id}.uploaded.jsonl`]) {
    const id = await earlier(lines, 'jsonl', lines, source)
    // Several requests at once ask for one conversion.
    const answers = await Promise.all(
      Array.from({ length: 3 }, () => app.api('POST', `/datasets/${id}/validate?model_id=${tiny}`)),
    )
    for (const { body } of answers) assert.deepEqual([body.valid, body.tokens.counted_rows], [true, 1])
    assert.equal((await app.api('GET', `/datasets/${id}/rows`)).body.items[0].line, 2)
    assert.equal(existsSync(file(id, 'jsonl')), source('x') === null)
    assert.equal(await download(id), lines)
    await app.api('DELETE', `/datasets/${id}`)
    for (const ending of ['jsonl', 'uploaded.jsonl', 'rows.jsonl']) assert.ok(!existsSync(file(id, ending)), ending)
  }
})

test('rated answers that are all the same are refused at creation, though an earlier check did not look', async () => {
  const same = row('a', { label: true }) + row('c', { label: false })
  const id = await earlier(same, 'jsonl', same, () => null)
  const { answers_equal: _, ...check } = JSON.parse((await stored(id)).check_json)
  await app.db
    .updateTable('datasets')
    .set({ check_json: JSON.stringify(check) })
    .where('id', '=', id)
    .execute()
  const config = { method_options: { objective: 'kto' } }
  const { status, body } = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: id, config })
  assert.deepEqual([status, body.error.code], [400, 'dataset_invalid'], JSON.stringify(body))
  assert.match(body.error.message, /All 2 answers .* are the same/)
})
