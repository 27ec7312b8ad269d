// Files of a row whose transaction was committed and then reported as failed: where only its sync failed, or the answer
// of the database was lost.
import assert from 'node:assert/strict'
import { type FileHandle, open } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import Database from 'better-sqlite3'
import { until } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()

test('the results of a batch stay if its end was committed and only the sync failed', {
  skip: process.env.TEST_DATABASE_URL ? 'fails a sync of SQLite' : false,
}, async (t) => {
  const form = new FormData()
  const request = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: { model: 'none', messages: [] } }
  form.set('file', new File([`${JSON.stringify(request)}\n`], 'requests.jsonl'))
  form.set('purpose', 'batch')
  const authorization = `Bearer ${app.key}`
  const uploaded = await fetch(`${app.url}/files`, { method: 'POST', headers: { authorization }, body: form })
  const { id: input_file_id } = (await uploaded.json()) as { id: string }

  const database = path.join(app.dataDir, 'tunery.db')
  const reader = new Database(database, { readonly: true })
  t.after(() => reader.close())
  const results = reader.prepare(`select count(*) from files where purpose = 'batch_output'`).pluck()
  const handle = await open(database)
  const prototype: FileHandle = Object.getPrototypeOf(handle)
  await handle.close()
  const { datasync } = prototype
  let failures = 0
  t.mock.method(prototype, 'datasync', function (this: FileHandle) {
    if (failures > 0 || results.get() === 0) return datasync.call(this)
    failures++
    return Promise.reject(new Error('EIO: i/o error, fdatasync'))
  })

  const batch = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const { id } = (await app.api('POST', '/batches', batch)).body
  const { error_file_id } = await until('the batch to end', async () => {
    const { body } = await app.api('GET', `/batches/${id}`)
    return body.error_file_id ? body : undefined
  })
  await until('the sync to have failed', () => failures === 1)
  const content = await fetch(`${app.url}/files/${error_file_id}/content`, { headers: { authorization } })
  assert.equal(content.status, 200)
  assert.match(await content.text(), /"custom_id":"a"/)
})
