// An account is suspended, or a key revoked, while its work runs: none of it goes on or is lost, and none is in the way
// of others.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { client, colourRows, until } from '../support/client.ts'
import { evaluationEnded, same } from '../support/evaluations.ts'
import { children } from '../support/server.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'

let app: TestApp
/** Whose account is suspended. */
let account_id: string
let model: string
const zips = mkdtempSync(path.join(os.tmpdir(), 'tunery-suspension-'))
before(async () => {
  app = await startApp({ TUNERY_REPLICA_CORES: '1' })
  account_id = (await app.other.api('GET', '/user/profile')).body.account.id
  const { dataDir, db } = app
  model = await installColourModel({ dataDir, db, account_id })
  const python = path.join(root, '.local/python/bin/python')
  const adapter = path.join(dataDir, 'models', model, 'adapter')
  execFileSync(python, ['-m', 'tests.support.adapter_zips', adapter, zips], { cwd: root })
})
after(async () => {
  await app.stop()
  rmSync(zips, { recursive: true, force: true })
})

/** As the command line does, which tells no server. */
const suspend = (suspended_at: number | null) =>
  app.db
    .transaction()
    .execute((trx) => trx.updateTable('accounts').set({ suspended_at }).where('id', '=', account_id).execute())
async function reinstate() {
  await suspend(null)
  await until('the account to be let in', async () => (await app.other.api('GET', '/user/profile')).status === 200)
}
const created = async (answer: Promise<{ status: number; body: { id: string } }>) => {
  const { status, body } = await answer
  assert.equal(status, 201, JSON.stringify(body))
  return body.id
}
const statusOf = async (table: 'exports' | 'evaluations' | 'tuning_jobs', id: string) =>
  (await app.db.selectFrom(table).select('status').where('id', '=', id).executeTakeFirstOrThrow()).status

test('an export stops, is in nobody’s way, and is made once the account is back', { timeout: 600_000 }, async () => {
  const mine = await created(app.other.api('POST', '/exports', { model, format: 'gguf' }))
  for await (const { type } of app.other.events(mine)) if (type === 'progress') break
  await suspend(Date.now())
  await until('it to wait', async () => (await statusOf('exports', mine)) === 'queued')
  const theirs = await created(app.api('POST', '/exports', { model: await app.colourModel(), format: 'gguf' }))
  for await (const _ of app.events(theirs));
  assert.equal(await statusOf('exports', theirs), 'ready')
  assert.equal(await statusOf('exports', mine), 'queued')
  await reinstate()
  const events: { data?: Record<string, unknown> | undefined }[] = []
  for await (const event of app.other.events(mine)) events.push(event)
  assert.equal(await statusOf('exports', mine), 'ready')
  assert.ok(events.some(({ data }) => data?.code === 'account_suspended'))
})

test('work that waits is not begun, and nobody’s training gives way to it', { timeout: 300_000 }, async () => {
  const dataset_id = (await app.other.upload(colourRows(16))).body.id
  await suspend(Date.now())
  const { queue } = app.services
  await app.db.transaction().execute((trx) => queue.enqueue(trx, 'tuning', 'job_of_nobody', account_id))
  assert.equal(await queue.giveWay({ kind: 'tuning', account_id: app.owner.account_id }), false)
  assert.equal(await queue.claim('tuning', 'w'), undefined)
  await app.db.transaction().execute((trx) => queue.cancel(trx, 'tuning', 'job_of_nobody'))
  await reinstate()
  const evaluation = { model: tiny, dataset: dataset_id, graders: [same], sampling: { max_tokens: 200 } }
  const id = await created(app.other.api('POST', '/evaluations', evaluation))
  await until('it to run', async () => (await statusOf('evaluations', id)) === 'running')
  for (let round = 0; round < 3; round++) {
    await suspend(Date.now())
    await until('it to wait', async () => {
      const { status } = await app.db
        .selectFrom('queue_entries')
        .select('status')
        .where('ref', '=', id)
        .executeTakeFirstOrThrow()
      return status !== 'leased'
    })
    await reinstate()
  }
  assert.equal((await evaluationEnded(app.other, id)).status, 'completed')
})

test('an import of an adapter ends with its key, while it is converted', { timeout: 120_000 }, async () => {
  const { body } = await app.other.api('POST', '/keys', { name: 'imports' })
  const form = new FormData()
  form.set('name', 'revoked')
  form.set('file', new Blob([new Uint8Array(readFileSync(path.join(zips, 'good.zip')))]), 'good.zip')
  const answer = client(app.url, body.key).api('POST', '/fine-tuning/models', form)
  await until('its conversion', () => children(process.pid, 'trainer.cli.import_adapter').length > 0)
  await app.other.api('DELETE', `/keys/${body.id}`)
  const from = Date.now()
  assert.equal((await answer).body.error.code, 'invalid_api_key')
  assert.ok(Date.now() - from < 1000, `it took ${Date.now() - from} ms`)
  await until('the conversion to end', () => children(process.pid, 'trainer.cli.import_adapter').length === 0)
  const { items } = (await app.other.api('GET', '/fine-tuning/models')).body
  assert.ok(!items.some(({ name }: { name: string }) => name === 'revoked'))
})

test('a deployment has no replicas meanwhile', { timeout: 180_000 }, async () => {
  await created(app.other.api('POST', '/deployments', { name: 'scaled', model: tiny }))
  const scaling = { scaling: { min_replicas: 1, max_replicas: 1 } }
  assert.equal((await app.other.api('PUT', '/deployments/scaled/scaling', scaling)).status, 200)
  const replicas = async () => {
    const text = await (await fetch(`${app.address}/metrics`)).text()
    return Number(/^tunery_scaled_replicas\{state="ready"\} (\d+)$/m.exec(text)?.[1])
  }
  await until('its replica', async () => (await replicas()) === 1)
  await suspend(Date.now())
  await until('the replica to end', async () => (await replicas()) === 0)
  await reinstate()
  await until('a replica', async () => (await replicas()) === 1)
})
