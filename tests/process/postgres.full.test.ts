// The service on Postgres: a database that is away refuses requests and ends nothing, and what was acknowledged is
// there.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { client, colourRows, until } from '../support/client.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

let postgres: Awaited<ReturnType<typeof startPostgres>>
let folder: DataFolder
let server: RunningServer
let key: string
before(async () => {
  if (postgresTest.skip) return
  postgres = await startPostgres()
  folder = dataFolder('postgres', { TUNERY_DATABASE_URL: postgres.url })
})
after(async () => {
  folder?.remove()
  await postgres?.stop()
})

test('migrations that several processes begin at once run once', postgresTest, async () => {
  const opened = await Promise.all([1, 2, 3].map(() => openDatabase(folder.dataDir, postgres.url)))
  const names = await opened[0]!.selectFrom('migrations').select('name').execute()
  assert.equal(new Set(names.map(({ name }) => name)).size, names.length)
  assert.ok(names.length > 25)
  for (const db of opened) await db.destroy()
})

test('a job trains, and its model answers', postgresTest, async () => {
  server = await folder.start()
  key = folder.key()
  const { api, trainColourModel } = client(server.url, key)
  const model = await trainColourModel()
  const messages = [{ role: 'user', content: 'code of red?' }]
  const { status, body } = await api('POST', '/chat/completions', { model, messages, max_tokens: 4 })
  assert.equal(status, 200)
  assert.ok(body.choices[0].message.content)
})

test('while Postgres is away, requests get 503 and the server lives; then all is as it was acknowledged', {
  ...postgresTest,
}, async () => {
  const { api, upload, job, untilEnded } = client(server.url, key)
  const dataset_id = (await upload(colourRows(16))).body.id
  const training_config = { epochs: 15, batch_size: 1, learning_rate: 0.01 }
  const request = { model_id: tiny, dataset_id, config: { training_config } }
  const running = (await api('POST', '/fine-tuning/jobs', request)).body.id
  await until('the job to run', async () => (await job(running)).status === 'running')

  await postgres.kill()
  const refused = await until('a refusal', async () => {
    const answer = await api('POST', '/keys', { name: 'lost' })
    return answer.status === 503 ? answer : undefined
  })
  assert.equal(refused.body.error.code, 'storage_unavailable')
  assert.doesNotMatch(refused.body.error.message, /connect|127\.0\.0\.1|postgres/i, 'no internals')
  assert.equal(server.process.exitCode, null)

  await postgres.start()
  const first = await until('an answer', async () => {
    const answer = await api('POST', '/keys', { name: 'kept' })
    return answer.status === 201 ? answer : undefined
  })
  const names = (await api('GET', '/keys?limit=100')).body.items.map(({ name }: { name: string }) => name)
  assert.ok(names.includes('kept') && !names.includes('lost'))
  assert.ok(first.body.key)
  // The job keeps running, or is resumed from its checkpoint.
  assert.equal((await untilEnded(running)).status, 'completed')
})

test('a server that starts while Postgres is away waits for it, and says so', postgresTest, async () => {
  await server.end('SIGTERM')
  await postgres.kill()
  const log = path.join(folder.dataDir, 'start.log')
  const waiting = dataFolder('postgres', { ...folder.env, TUNERY_LOG_LEVEL: 'warn' } as Record<string, string>, {
    dataDir: folder.dataDir,
    log,
  })
  const started = waiting.start()
  await until('the log to say so', () => /the database is away.*waiting/.test(readFileSync(log, 'utf8')))
  await postgres.start()
  server = await started
  assert.equal((await client(server.url, key).api('GET', '/keys')).status, 200)
  assert.equal(await server.end('SIGTERM'), 0)
})

test('a backup of the data folder alone is refused, with what to do', postgresTest, () => {
  const { status, stderr } = spawnSync(path.join(root, 'tunery'), ['backup', '/nowhere'], {
    env: folder.env,
    encoding: 'utf8',
  })
  assert.equal(status, 2)
  assert.match(stderr, /pg_dump/)
})
