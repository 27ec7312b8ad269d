// Locked database, full disk, unwritable folder: each is reported, acknowledged data stays, and the service recovers by
// itself when the cause has ended.
import assert from 'node:assert/strict'
import { type ChildProcess, execFile, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'
import { sql } from 'kysely'
import { root } from '../../lib/root.ts'
import { type Db, openReadOnly, openThreadedDatabase } from '../../server/platform/db/open.ts'
import { type Answer, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
let db: Db
const others: ChildProcess[] = []
before(async () => {
  app = await startApp(
    {},
    {
      open: async (dataDir) => {
        db = await openThreadedDatabase(dataDir, { timeout_ms: 100 })
        return db
      },
    },
  )
})
after(async () => {
  for (const other of others) other.kill('SIGKILL')
  await app.stop()
})

function refused({ status, body, headers }: Answer, code: string) {
  assert.deepEqual([status, body.error?.code], [503, code], JSON.stringify(body))
  assert.ok(Number(headers.get('retry-after')) >= 1)
  assert.doesNotMatch(body.error.message, /SQLITE|\//, 'no internals')
}
const makeKey = (name: string) => app.api('POST', '/keys', { name })
const chat = () =>
  app.api('POST', '/chat/completions', { model: tiny, messages: [{ role: 'user', content: 'hello' }], max_tokens: 2 })
const datasetFiles = () => readdirSync(path.join(app.dataDir, 'datasets')).sort()
async function keyNames(): Promise<string[]> {
  return (await app.api('GET', '/keys?limit=100')).body.items.map(({ name }: { name: string }) => name)
}

/** Locks the database exclusively in another process, until `release`. */
async function lockDatabase() {
  const script = `const db = new (require('better-sqlite3'))(process.argv[1])
    db.exec('begin exclusive')
    console.log('locked')
    process.stdin.on('data', () => { db.exec('commit'); process.exit() })`
  const other = spawn(process.execPath, ['-e', script, path.join(app.dataDir, 'tunery.db')], {
    cwd: root,
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  others.push(other)
  await once(other.stdout, 'data')
  return {
    async release() {
      other.stdin.write('end')
      await once(other, 'exit')
    },
  }
}

const trainers = () =>
  spawnSync('pgrep', ['-P', String(process.pid), '-f', 'trainer.cli.train'], { encoding: 'utf8' }).stdout.trim()

test('while another process locks the database, writes get 503, reads and chat work; it recovers', async () => {
  const { id } = (await app.upload(colourRows(8))).body
  await app.api('GET', `/datasets/${id}/rows`)
  const files = datasetFiles()
  assert.equal((await makeKey('before')).status, 201)
  const other = await lockDatabase()
  refused(await makeKey('during'), 'storage_unavailable')
  refused(await app.upload(colourRows(8)), 'storage_unavailable')
  assert.deepEqual(datasetFiles(), files)
  assert.ok((await keyNames()).includes('before'))
  const answered = await chat()
  assert.equal(answered.status, 200)
  await other.release()
  assert.equal((await makeKey('after')).status, 201)
  assert.deepEqual((await keyNames()).slice(0, 2), ['after', 'before'])
  assert.equal((await app.upload(colourRows(8))).status, 201)
  const request_id = answered.headers.get('x-request-id')!
  await until('the answer to be metered', async () => {
    await app.services.usage.fold()
    return app.services.usage.find(app.owner.account_id, request_id)
  })
})

test('a job whose database is locked for a while completes and counts no crash', full, async () => {
  const dataset = (await app.upload(colourRows(8))).body.id
  const config = { training_config: { epochs: 2, batch_size: 2 } }
  const { id } = (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await app.untilEvent(id, (event) => event.data?.status === 'running')
  const other = await lockDatabase()
  await until('the trainer to be at work', () => trainers() !== '')
  await until('the trainer to be stopped, as its events cannot be stored', () => trainers() === '')
  await other.release()
  const job = await app.untilEnded(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  for await (const { data } of app.events(id)) assert.notEqual(data?.code, 'trainer_crashed')
})

test('a full database refuses writes, keeps its data, and accepts writes when it can grow again', async () => {
  for (const { id } of (await app.api('GET', '/datasets/')).body.items) await app.api('GET', `/datasets/${id}/rows`)
  const pages = (await sql<{ page_count: number }>`pragma page_count`.execute(db)).rows[0]!.page_count
  await sql`pragma max_page_count = ${sql.lit(pages)}`.execute(db)
  const files = datasetFiles()
  const createdKeys: string[] = []
  let answer = await makeKey('full 0')
  for (; answer.status === 201; answer = await makeKey(`full ${createdKeys.length}`))
    createdKeys.push(`full ${createdKeys.length}`)
  refused(answer, 'storage_full')
  const { body } = await app.upload(colourRows(8), { description: 'x'.repeat(1000) })
  if (body.error) assert.deepEqual([body.error.code, datasetFiles()], ['storage_full', files])
  assert.equal((await chat()).status, 200)
  await sql`pragma max_page_count = ${sql.lit(pages + 1000)}`.execute(db)
  assert.equal((await makeKey('room')).status, 201)
  const names = await keyNames()
  for (const name of [...createdKeys, 'room']) assert.ok(names.includes(name), name)
  assert.ok(!names.includes(`full ${createdKeys.length}`))
  assert.deepEqual((await sql`pragma integrity_check`.execute(db)).rows, [{ integrity_check: 'ok' }])
})

test('an upload to an unwritable datasets folder gets 503, and succeeds once it is writable', async () => {
  const fresh = await startApp()
  try {
    const folder = path.join(fresh.dataDir, 'datasets')
    rmSync(folder, { recursive: true, force: true })
    writeFileSync(folder, 'in the way')
    refused(await fresh.upload(colourRows(8)), 'storage_unavailable')
    rmSync(folder)
    const answer = await fresh.upload(colourRows(8))
    assert.equal(answer.status, 201)
    assert.equal((await fresh.api('GET', '/datasets/')).body.items.length, 1)
  } finally {
    await fresh.stop()
  }
})

test('a file that a start cannot use is explained on one line, and nothing is lost', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-start-'))
  const start = promisify(execFile)
  try {
    writeFileSync(path.join(folder, 'file'), '')
    mkdirSync(path.join(folder, 'damaged'))
    writeFileSync(path.join(folder, 'damaged/tunery.db'), 'no database '.repeat(1000))
    for (const file of ['database/tunery.db', 'named/installation', 'key/secret.key', 'first/first-key.txt'])
      mkdirSync(path.join(folder, file), { recursive: true })
    const cases: [data: string, says: RegExp][] = [
      ['file/data', /^The data folder cannot be used: .*TUNERY_DATA_DIR/],
      ['database', /^The data folder cannot be used: .*database\/tunery\.db\. Set TUNERY_DATA_DIR/],
      ['damaged', /^The database in the data folder is damaged .*restore/],
      ['named', /named\/installation is a folder, not a file\. .*Nothing was changed\. Put the file back/],
      ['key', /^The key file .*key\/secret\.key is a folder, not a file\. .*TUNERY_SECRET_KEY_FILE/],
      ['first', /^A file that the start needs cannot be used: .*first-key\.txt/],
    ]
    await Promise.all(
      cases.map(async ([data, says]) => {
        const env = { ...process.env, TUNERY_DATA_DIR: path.join(folder, data), TUNERY_PORT: '0' }
        const { code, stderr } = await start(process.execPath, ['server/main.ts'], { cwd: root, env }).then(
          () => assert.fail(`${data}: the service has started and ended`),
          (error: { code: number; stderr: string }) => error,
        )
        assert.equal(code, 1, data)
        assert.match(stderr, says)
        assert.equal(stderr.trim().split('\n').length, 1, stderr)
      }),
    )
    // A key that could not be shown is none: the next start makes the first one.
    const db = await openReadOnly(path.join(folder, 'first'))
    assert.deepEqual(await db.selectFrom('api_keys').select('id').execute(), [])
    await db.destroy()
  } finally {
    rmSync(folder, { recursive: true })
  }
})
