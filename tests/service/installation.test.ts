// A data folder and a database that do not belong together are refused before anything is written, and what no row
// names is set aside before it is removed.
import assert from 'node:assert/strict'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import pino from 'pino'
import { ownedFiles } from '../../server/maintenance/backup/files.ts'
import { databaseFile, openDatabase } from '../../server/platform/db/open.ts'
import {
  admission,
  claimFolder,
  installationFile,
  readInstallation,
} from '../../server/platform/storage/installation.ts'
import { createOrphans } from '../../server/platform/storage/orphans.ts'
import { openSecrets } from '../../server/platform/storage/secrets.ts'
import { colourRows } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'

const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-installation-'))
let app: TestApp
let dataset: string
before(async () => {
  app = await startApp()
  dataset = (await app.upload(colourRows(8))).body.id
})
after(async () => {
  await app.stop()
  rmSync(scratch, { recursive: true, force: true })
})

const everythingIn = (folder: string) =>
  readdirSync(folder, { recursive: true })
    .map(String)
    .filter((name) => !/-(wal|shm)$/.test(name))
    .sort()
/** A new folder with files of an installation, and the database that `database` makes there. */
async function folderWithFiles(name: string, database: (folder: string) => Promise<void> | void): Promise<string> {
  const folder = path.join(scratch, name)
  cpSync(path.join(app.dataDir, 'datasets'), path.join(folder, 'datasets'), { recursive: true })
  cpSync(installationFile(app.dataDir), installationFile(folder))
  await database(folder)
  return folder
}
async function foreignDatabase(folder: string): Promise<void> {
  const db = await openDatabase(folder)
  await db
    .insertInto('accounts')
    .values({ id: 'acc_foreign', name: 'foreign', tier: 'free', suspended_at: null, created_at: 0 })
    .execute()
  await db.destroy()
}
const open = async (data_dir: string) => {
  const admit = admission({ data_dir })
  await (await openDatabase(data_dir, undefined, admit)).destroy()
}
const claim = (folder: string, shared = false) =>
  claimFolder(app.db, folder, { shared, files: () => ownedFiles(app.db) })

test('a data folder whose database is missing, cut, empty or of another installation is refused', async () => {
  for (const [name, database, found] of [
    ['missing', () => {}, /tunery\.db is missing/],
    ['cut', (folder: string) => writeFileSync(databaseFile(folder), ''), /tunery\.db is empty/],
    ['empty', async (folder: string) => (await openDatabase(folder)).destroy(), /tunery\.db is empty/],
    ['foreign', foreignDatabase, /belongs to the installation [0-9a-f]{12}, but its database tunery\.db to the inst/],
  ] as const) {
    const folder = await folderWithFiles(name, database)
    const files = everythingIn(folder)
    await assert.rejects(open(folder), found, name)
    await assert.rejects(open(folder), /Nothing was changed.*TUNERY_DATA_DIR/s, name)
    assert.deepEqual(everythingIn(folder), files, `${name}: nothing was made or removed`)
    // Also where the id went with the database.
    rmSync(installationFile(folder))
    if (name !== 'foreign') await assert.rejects(open(folder), found, `${name}, without an id`)
  }
})

test('who wants a database and a folder of two installations writes its id into the folder', async () => {
  const folder = await folderWithFiles('wanted', foreignDatabase)
  const message = await open(folder).then(
    () => '',
    (error: Error) => error.message,
  )
  writeFileSync(installationFile(folder), /write (\w+) into/.exec(message)![1]!)
  await open(folder)
})

test('an id that cannot be read is no missing one', () => {
  for (const [name, place, problem] of [
    ['folder', (file: string) => mkdirSync(file), 'is a folder, not a file'],
    ['link', (file: string) => symlinkSync('away', file), 'is a link to a file that does not exist'],
  ] as const) {
    const folder = path.join(scratch, `id-${name}`)
    mkdirSync(folder)
    place(installationFile(folder))
    assert.throws(
      () => admission({ data_dir: folder }),
      new RegExp(`${problem}\\..* Nothing was changed\\. Put the file back`),
    )
  }
})

test('a folder of an earlier version takes the id of its database, and none with other files', async () => {
  const folder = path.join(scratch, 'earlier')
  cpSync(path.join(app.dataDir, 'datasets'), path.join(folder, 'datasets'), { recursive: true })
  assert.equal(await claim(folder), readInstallation(app.dataDir))
  assert.equal(readInstallation(folder), readInstallation(app.dataDir))
  // A write that a full disk cut.
  truncateSync(installationFile(folder))
  assert.equal(await claim(folder), readInstallation(folder))

  const other = path.join(scratch, 'other')
  mkdirSync(path.join(other, 'models/mdl_other'), { recursive: true })
  await assert.rejects(claim(other), /models\/mdl_other.*no row of its database names/)
  const empty = path.join(scratch, 'nothing')
  mkdirSync(empty)
  await assert.rejects(claim(empty), new RegExp(`names \\d+ files, such as datasets/${dataset}.*has none of them`, 's'))
  assert.equal(existsSync(installationFile(empty)), false)
  assert.equal(await claim(empty, true), readInstallation(empty), 'with a shared storage the folder is a cache')
})

test('files without a row are set aside after a day, with a line in the log, and removed a week later', async () => {
  const { dataDir, db } = app
  // Its rows are written when they have been read.
  assert.equal((await app.api('GET', `/datasets/${dataset}/rows`)).status, 200)
  const lines: { msg: string; orphans?: number; from?: string; to?: string }[] = []
  const logged = pino({ base: null }, { write: (line: string) => void lines.push(JSON.parse(line)) })
  const day_ms = 86_400_000
  const at = (days: number) => createOrphans({ db, dataDir, log: logged, now: () => Date.now() + days * day_ms })
  const owned = [
    { folder: 'datasets', table: 'datasets' },
    { folder: 'models', table: 'models' },
  ] as const
  const old = new Date(Date.now() - 2 * day_ms)
  mkdirSync(path.join(dataDir, 'models/mdl_lost/adapter'), { recursive: true })
  writeFileSync(path.join(dataDir, 'models/mdl_lost/adapter/weights'), 'weights')
  for (const name of ['mdl_lost/adapter/weights', 'mdl_lost/adapter', 'mdl_lost'])
    utimesSync(path.join(dataDir, 'models', name), old, old)
  // A folder is as young as the youngest of its files: a training may be moving its result there.
  mkdirSync(path.join(dataDir, 'models/mdl_moving'))
  utimesSync(path.join(dataDir, 'models/mdl_moving'), old, old)
  writeFileSync(path.join(dataDir, 'models/mdl_moving/adapter.gguf'), 'new')
  for (const name of ['ds_lost.jsonl', 'ds_new.upload']) writeFileSync(path.join(dataDir, 'datasets', name), name)
  utimesSync(path.join(dataDir, 'datasets/ds_lost.jsonl'), old, old)
  const kept = [`${dataset}.jsonl`, `${dataset}.rows.jsonl`]
  for (const name of kept) utimesSync(path.join(dataDir, 'datasets', name), old, old)
  await app.services.sweep()
  const today = new Date().toISOString().slice(0, 10)
  const aside = path.join(dataDir, 'orphans', today)
  assert.deepEqual(readdirSync(path.join(dataDir, 'datasets')).sort(), [...kept, 'ds_new.upload'].sort())
  assert.deepEqual(readdirSync(path.join(dataDir, 'models')), ['mdl_moving'])
  assert.deepEqual(readdirSync(path.join(aside, 'datasets')), ['ds_lost.jsonl'])
  assert.equal(readFileSync(path.join(aside, 'models/mdl_lost/adapter/weights'), 'utf8'), 'weights')

  // One of the same name later the same day overwrites nothing.
  writeFileSync(path.join(dataDir, 'datasets/ds_lost.jsonl'), 'again')
  utimesSync(path.join(dataDir, 'datasets/ds_lost.jsonl'), old, old)
  await at(0).sweep(owned)
  assert.deepEqual(readdirSync(path.join(aside, 'datasets')), ['ds_lost.jsonl', 'ds_lost.jsonl.2'])
  const [line] = lines
  assert.deepEqual([line?.orphans, line?.from], [1, path.join(dataDir, 'datasets')])
  assert.equal(line?.to, path.join(aside, 'datasets'))
  // A stray file beside the folders must not keep the rest.
  writeFileSync(path.join(aside, '.DS_Store'), '')
  await at(6).sweep([])
  assert.ok(existsSync(aside))
  await at(9).sweep([])
  assert.equal(existsSync(aside), false)
  assert.match(lines.at(-1)!.msg, /removed files that no row names/)
})

test('a secret key that rows need is never replaced, and a cut one is not taken', async () => {
  const file = path.join(scratch, 'keys', 'secret.key')
  const lines: string[] = []
  const logged = pino({ base: null }, { write: (line: string) => void lines.push(line) })
  const webhook = { url: 'https://example.com/', events: ['training.completed'] }
  const { id } = (await app.api('POST', '/webhooks', webhook)).body
  await assert.rejects(openSecrets(file, app.db, logged), /is missing, and rows .* \(the secrets of webhooks: 1\)/)
  assert.equal(existsSync(file), false)
  cpSync(path.join(app.dataDir, 'secret.key'), file)
  const sealed = (await openSecrets(file, app.db, logged)).encrypt('x', 'y')
  assert.deepEqual(lines, [])
  for (const bytes of [31, 5, 0]) {
    truncateSync(file, bytes)
    await assert.rejects(openSecrets(file, app.db, logged), new RegExp(`damaged: it has ${bytes} bytes`))
    assert.equal(readFileSync(file).length, bytes)
  }
  // Neither a folder, nor a link whose target is away, nor one to itself is a key that may be replaced.
  for (const [place, problem] of [
    [() => mkdirSync(file), 'is a folder, not a file'],
    [() => symlinkSync(path.join(scratch, 'away/secret.key'), file), 'is a link to a file that does not exist'],
    [() => symlinkSync(file, file), 'is a link that leads to itself'],
  ] as const) {
    rmSync(file, { recursive: true })
    place()
    await assert.rejects(
      openSecrets(file, app.db, logged),
      new RegExp(`${problem}\\. Nothing was changed\\. Put your copy`),
    )
  }
  rmSync(file)
  // The way out for who has lost it: another key, made by hand. The log says what it cannot read.
  writeFileSync(file, 'k'.repeat(32))
  const other = await openSecrets(file, app.db, logged)
  assert.throws(() => other.decrypt(sealed, 'y'), /another key/)
  assert.match(lines[0]!, /another key .*the secrets of webhooks: 1/)
  await app.api('DELETE', `/webhooks/${id}`)
  await app.db.deleteFrom('idempotency_keys').execute()
  rmSync(file)
  await openSecrets(file, app.db, logged)
  assert.ok(existsSync(file), 'no row needs an earlier one')
  await assert.rejects(
    openSecrets(path.join(file, 'below'), app.db, logged),
    /cannot be made: .*TUNERY_SECRET_KEY_FILE/,
  )
})
