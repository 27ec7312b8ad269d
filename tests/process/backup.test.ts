// A backup of a running service can be restored elsewhere; a damaged backup is never restored.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import SQLite from 'better-sqlite3'
import { root } from '../../lib/root.ts'
import { lockDataDir } from '../../server/platform/db/open.ts'
import { hashFile } from '../../server/platform/storage/durable-files.ts'
import { client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-backup-'))
const servers: ChildProcess[] = []
let app: TestApp
let dataset: string
let model: string
before(async () => {
  app = await startApp()
  dataset = (await app.upload(colourRows(8))).body.id
  model = await app.colourModel()
})
after(async () => {
  for (const server of servers) server.kill('SIGKILL')
  await app.stop()
  rmSync(folder, { recursive: true, force: true })
})

const chatWith = (api: TestApp['api']) =>
  api('POST', '/chat/completions', { model, messages: [{ role: 'user', content: 'code of red?' }], max_tokens: 3 })

/** Runs `./tunery` on a data folder. */
async function tunery(dataDir: string, ...args: string[]) {
  const env = { ...process.env, TUNERY_DATA_DIR: dataDir, TUNERY_MODELS_DIR: tinyModelsDir() }
  const child = spawn(path.join(root, 'tunery'), args, { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (output += text))
  const [status] = await once(child, 'close')
  return { status: status as number, output }
}

let backups = 0
/** Makes a backup of the running service. */
async function newBackup(): Promise<string> {
  const target = path.join(folder, `backup-${++backups}`)
  const { status, output } = await tunery(app.dataDir, 'backup', target)
  assert.equal(status, 0, output)
  return target
}

async function startServer(dataDir: string) {
  const env = {
    ...process.env,
    TUNERY_DATA_DIR: dataDir,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'fatal',
  }
  const server = spawn(process.execPath, ['server/main.ts'], { cwd: root, env, stdio: ['ignore', 'ignore', 'inherit'] })
  servers.push(server)
  const file = path.join(dataDir, 'server.json')
  await until('the server to listen', () => existsSync(file))
  return { server, url: JSON.parse(readFileSync(file, 'utf8')).url as string }
}

/** Sends chat requests, uploads and deletions until `stop`. */
function startLoad() {
  let running = true
  const churn = async () => {
    for (let i = 0; running; i++) {
      const { body } = await app.upload(colourRows(8 + i))
      assert.equal((await app.api('DELETE', `/datasets/${body.id}`)).status, 200)
    }
  }
  const ask = async () => {
    while (running) assert.equal((await chatWith(app.api)).status, 200)
  }
  const all = Promise.all([churn(), churn(), ask()])
  return {
    stop() {
      running = false
      return all
    },
  }
}

test('a backup made under load restores everything that was acknowledged, and its model answers', async () => {
  const { key } = (await app.api('POST', '/keys', { name: 'kept' })).body
  const firstAnswer = await chatWith(app.api)
  const load = startLoad()
  const backup = await newBackup()
  await newBackup()
  await load.stop()
  assert.deepEqual(
    readdirSync(app.dataDir).filter((name) => name.endsWith('.part')),
    [],
  )
  assert.ok(!existsSync(path.join(backup, 'secret.key')))
  // Its folder of models may be a separate volume.
  const [restored, volume] = [path.join(folder, 'restored'), path.join(folder, 'volume')]
  for (const folder of [restored, volume]) mkdirSync(folder)
  symlinkSync(volume, path.join(restored, 'models'))
  const { status, output } = await tunery(restored, 'restore', backup)
  assert.equal(status, 0, output)
  assert.ok(readdirSync(volume).length > 0)
  assert.ok(existsSync(path.join(restored, 'drafts', `${model}.bin`)), 'what the engine drafts from')
  assert.deepEqual(await tunery(restored, 'check'), { status: 0, output: `${restored} is whole.\n` })
  const { server, url } = await startServer(restored)
  const again = client(url, key)
  assert.equal((await again.api('GET', '/user/profile')).body.key.name, 'kept')
  assert.equal((await again.api('POST', `/datasets/${dataset}/validate`)).body.valid, true)
  const answer = await chatWith(again.api)
  assert.equal(answer.status, 200, JSON.stringify(answer.body))
  // Usage is restored, whether it was in the journal or in the database.
  server.kill('SIGTERM')
  await once(server, 'exit')
  const db = new SQLite(path.join(restored, 'tunery.db'), { readonly: true })
  for (const { headers } of [firstAnswer, answer])
    assert.equal(
      db.prepare('select count(*) from usage where request_id = ?').pluck().get(headers.get('x-request-id')),
      1,
    )
  db.close()
})

test('a job that was running during the backup resumes from its checkpoint after the restore', full, async () => {
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const fast = await startApp({ TUNERY_CHECKPOINT_SECONDS: '1' })
  try {
    const { id: dataset_id } = (await fast.upload(colourRows(16))).body
    const { id } = (await fast.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body
    await fast.untilEvent(id, (event) => event.type === 'checkpoint')
    const backup = path.join(folder, 'at-work')
    const { status, output } = await tunery(fast.dataDir, 'backup', backup)
    assert.equal(status, 0, output)
    await fast.api('POST', `/fine-tuning/jobs/${id}/cancel`)
    const restored = path.join(folder, 'at-work-again')
    assert.equal((await tunery(restored, 'restore', backup)).status, 0)
    const { server, url } = await startServer(restored)
    const again = client(url, fast.key)
    const resumed = await again.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
    assert.ok(Number(resumed.data!.resumed_from_step) > 0)
    await again.api('POST', `/fine-tuning/jobs/${id}/cancel`)
    server.kill('SIGTERM')
    await once(server, 'exit')
  } finally {
    await fast.stop()
  }
})

test('an incomplete, changed or forged backup is refused, and nothing is restored', async () => {
  const whole = await newBackup()
  const files = JSON.parse(readFileSync(path.join(whole, 'manifest.json'), 'utf8')).files.map(
    (file: { path: string }) => file.path,
  )
  const gguf = files.find((name: string) => name.endsWith('adapter.gguf'))
  const manifestWith = (
    at: string,
    change: (manifest: { files: { path: string; sha256: string; size_bytes: number }[] }) => void,
  ) => {
    const file = path.join(at, 'manifest.json')
    const manifest = JSON.parse(readFileSync(file, 'utf8'))
    change(manifest)
    writeFileSync(file, JSON.stringify(manifest))
  }
  const cases: [string, (at: string) => void | Promise<void>, RegExp][] = [
    ['no manifest', (at) => rmSync(path.join(at, 'manifest.json')), /not a complete backup/],
    [
      'a torn manifest',
      (at) => writeFileSync(path.join(at, 'manifest.json'), '{"format":"tun'),
      /manifest\.json .* damaged/,
    ],
    ['a file less', (at) => rmSync(path.join(at, gguf)), /damaged: models\/.*adapter\.gguf/],
    ['a file longer', (at) => appendFileSync(path.join(at, gguf), 'x'), /damaged: models\//],
    ['a byte changed', (at) => flip(path.join(at, 'tunery.db')), /damaged: tunery\.db/],
    [
      'a path outside',
      (at) => manifestWith(at, ({ files }) => files.push({ ...files[0]!, path: 'models/../../out' })),
      /damaged/,
    ],
    [
      'a path of our own',
      (at) => manifestWith(at, ({ files }) => files.push({ ...files[0]!, path: 'secret.key' })),
      /damaged/,
    ],
    [
      'no database',
      (at) =>
        manifestWith(at, (manifest) => (manifest.files = manifest.files.filter(({ path }) => path !== 'tunery.db'))),
      /damaged/,
    ],
    ['a database of a later version', (at) => laterVersion(at), /written by a newer Tunery/],
  ]
  for (const [name, change, says] of process.env.TEST_FULL ? cases : cases.slice(2, 5)) {
    const bad = path.join(folder, 'bad')
    const target = path.join(folder, 'bad-restored')
    cpSync(whole, bad, { recursive: true })
    await change(bad)
    const { status, output } = await tunery(target, 'restore', bad)
    assert.notEqual(status, 0, name)
    assert.match(output, says, name)
    assert.doesNotMatch(output, /\n {4}at /, `${name}: no stack`)
    const left = existsSync(target) ? readdirSync(target) : []
    assert.deepEqual(
      left.filter((name) => !name.startsWith('server.lock')),
      [],
      name,
    )
    for (const folder of [bad, target]) rmSync(folder, { recursive: true, force: true })
  }

  async function laterVersion(at: string) {
    const file = path.join(at, 'tunery.db')
    const db = new SQLite(file)
    db.exec("insert into migrations values ('9999-later', 1)")
    db.close()
    const sha256 = await hashFile(file)
    manifestWith(at, ({ files }) =>
      Object.assign(files.find((file) => file.path === 'tunery.db')!, { sha256, size_bytes: statSync(file).size }),
    )
  }
})

function flip(file: string): void {
  const bytes = readFileSync(file)
  bytes[bytes.length >> 1]! ^= 1
  // Write a new file: the backup is a hard link of the service's file.
  rmSync(file)
  writeFileSync(file, bytes)
}

test(
  'backup and restore need an empty target, restore an unlocked one; a killed restore can be repeated',
  full,
  async () => {
    const backup = await newBackup()
    assert.match((await tunery(app.dataDir, 'restore', backup)).output, /not empty/)
    assert.match((await tunery(app.dataDir, 'backup', backup)).output, /not empty/)
    assert.match(
      (await tunery(path.join(folder, 'nothing'), 'backup', path.join(folder, 'never'))).output,
      /no database/,
    )
    const target = path.join(folder, 'held')
    const lock = lockDataDir(target)!
    assert.match((await tunery(target, 'restore', backup)).output, /serves the data folder/)
    lock.release()
    mkdirSync(path.join(target, 'restore.part'))
    writeFileSync(path.join(target, 'restore.part/tunery.db'), 'half of it')
    const { status, output } = await tunery(target, 'restore', backup)
    assert.equal(status, 0, output)
    assert.deepEqual(
      readdirSync(target).sort(),
      ['datasets', 'models', 'server.lock', 'tunery.db']
        .concat(existsSync(path.join(backup, 'usage')) ? ['usage'] : [])
        .sort(),
    )
  },
)

test('check and backup name each missing or changed file; an incomplete backup is not made', full, async () => {
  const copy = path.join(folder, 'to-damage')
  assert.equal((await tunery(copy, 'restore', await newBackup())).status, 0)
  const rows = path.join(copy, 'datasets', `${dataset}.rows.jsonl`)
  const gguf = path.join(copy, 'models', model, 'adapter.gguf')
  flip(rows)
  renameSync(gguf, `${gguf}.away`)
  const checked = await tunery(copy, 'check', '--json')
  assert.equal(checked.status, 1)
  assert.deepEqual(JSON.parse(checked.output).problems.sort(), [
    `datasets/${dataset}.rows.jsonl of the dataset ${dataset} has changed since it was stored: its SHA-256 is ` +
      'different.',
    `models/${model}/adapter.gguf of the model ${model} is missing.`,
  ])
  const target = path.join(folder, 'not-made')
  assert.match(
    (await tunery(copy, 'backup', target)).output,
    new RegExp(`models/${model}/adapter.gguf of the model ${model} is missing`),
  )
  renameSync(`${gguf}.away`, gguf)
  const changed = await tunery(copy, 'backup', target)
  assert.match(changed.output, new RegExp(`datasets/${dataset}.rows.jsonl .* SHA-256 is different`))
  assert.notEqual(changed.status, 0)
  assert.ok(!existsSync(target))
  flip(rows)
  assert.equal((await tunery(copy, 'check')).status, 0)
  const file = path.join(copy, 'tunery.db')
  const bytes = readFileSync(file)
  writeFileSync(file, bytes.fill(7, 4096, 3 * 4096))
  for (const args of [['check'], ['backup', target]]) {
    const damaged = spawnSync(path.join(root, 'tunery'), args, {
      env: { ...process.env, TUNERY_DATA_DIR: copy },
      encoding: 'utf8',
    })
    assert.notEqual(damaged.status, 0)
    assert.match(damaged.stdout + damaged.stderr, /database (is damaged|cannot be read)/)
    assert.doesNotMatch(damaged.stderr, /\n {4}at /)
  }
})
