// Moves of an installation: SQLite and a folder to Postgres and a shared folder, and back to a new data folder.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import { root as checkout } from '../../lib/root.ts'
import { backUp } from '../../server/maintenance/backup/backup.ts'
import { checkDataDir } from '../../server/maintenance/backup/check.ts'
import { restore } from '../../server/maintenance/backup/restore.ts'
import { type Destination, type Installation, moveInstallation } from '../../server/maintenance/migrate/migrate.ts'
import { readTables, type Table } from '../../server/maintenance/migrate/tables.ts'
import { type Db, databaseFile, lockDataDir, openDatabase, openReadOnly } from '../../server/platform/db/open.ts'
import { full } from '../support/full.ts'
import { newPostgresDatabase } from '../support/postgres.ts'
import { s3Credentials, s3Test, startS3 } from '../support/s3.ts'

const root = mkdtempSync(path.join(os.tmpdir(), 'tunery-move-test-'))
const here = path.join(root, 'here')
const folder = (name: string) => path.join(root, name)
const quiet = () => {}
const postgres = await newPostgresDatabase()
const onPostgres = { skip: postgres ? false : 'TEST_DATABASE_URL names no Postgres' }
let tables: Table[]
after(async () => {
  await postgres?.drop()
  rmSync(root, { recursive: true, force: true })
})

const sha256 = (bytes: string | Buffer) => createHash('sha256').update(bytes).digest('hex')
const texts = ['', 'ä漢🙂', 'q\'uote"; --', '{"a":[1,2.5,null]}', 'line\nline\ttab', '\\x41 \\0']

/** Rows of every table that no other table needs first, made from its columns. */
before(async () => {
  tables = await readTables()
  mkdirSync(here, { recursive: true })
  const db = await openDatabase(here)
  const sqlite = (await import('better-sqlite3')).default
  const schema = new sqlite(databaseFile(here), { readonly: true })
  const accounts = ['acc_a', 'acc_b']
  const ids = new Map<string, string[]>()
  await db.transaction().execute(async (trx) => {
    for (const table of tables) {
      const columns = schema.pragma(`table_xinfo(${table.name})`) as { name: string; type: string; notnull: number }[]
      const needs = new Map(
        (schema.pragma(`foreign_key_list(${table.name})`) as { from: string; table: string }[]).map((key) => [
          key.from,
          key.table,
        ]),
      )
      const parent = table.key.length === 1 ? needs.get(table.key[0]!) : undefined
      const withFiles = ['datasets', 'models', 'files'].includes(table.name)
      const count = table.name === 'accounts' ? 2 : parent ? ids.get(parent)!.length : withFiles ? 40 : 450
      const rows = Array.from({ length: count }, (_, n) =>
        Object.fromEntries(
          columns.map(({ name, type, notnull }) => {
            const parent = needs.get(name)
            const isKey = table.key.length === 1 && table.key[0] === name
            if (parent) return [name, ids.get(parent)![n % ids.get(parent)!.length]]
            if (isKey && type === 'TEXT') return [name, table.name === 'accounts' ? accounts[n] : `${table.name}_${n}`]
            if (table.key.includes(name)) return [name, type === 'TEXT' ? `${name} ${n}` : n + 1]
            if (!notnull && n % 3 === 0) return [name, null]
            if (type === 'TEXT') return [name, `${texts[n % texts.length]}${name.endsWith('_json') ? '' : ` ${n}`}`]
            if (/double|REAL/i.test(type)) return [name, n / 7]
            return [name, type === 'bigint' ? 1_700_000_000_000 + n : n]
          }),
        ),
      )
      ids.set(
        table.name,
        rows.map((row) => String(row[table.key[0]!])),
      )
      // Texts that rows parse.
      if (table.name === 'datasets')
        for (const row of rows)
          Object.assign(row, {
            ...{ format: 'jsonl', status: 'ready', rows_form: 0, source_name: null, columns_json: null },
            ...{ sha256: sha256(`${row.id}`), rows_sha256: sha256(`${row.id}`) },
          })
      if (table.name === 'models')
        for (const row of rows) {
          const hashes = {
            gguf_sha256: sha256(`weights ${row.id}`),
            projector_sha256: sha256(`projector ${row.id}`),
            weights_projector_sha256: null,
          }
          Object.assign(row, { kind: 'adapter', ...hashes })
        }
      if (table.name === 'files') for (const row of rows) Object.assign(row, { sha256: sha256(`file ${row.id}`) })
      if (table.name === 'exports') for (const row of rows) Object.assign(row, { status: 'expired', files_json: '[]' })
      // Models, which have files of their own.
      if (table.name === 'tinker_checkpoints')
        for (const row of rows) Object.assign(row, { kind: 'sampler', model_id: `model of ${row.id}` })
      if (table.name === 'tuning_jobs') for (const row of rows) Object.assign(row, { status: 'completed' })
      for (let start = 0; start < rows.length; start += 100)
        await trx
          .insertInto(table.name as 'accounts')
          .values(rows.slice(start, start + 100) as never)
          .execute()
    }
    // The highest numbers were given to rows that are gone.
    await trx.deleteFrom('queue_entries').where('id', '>', 440).execute()
  })
  const write = (file: string, content: string) => {
    mkdirSync(path.dirname(path.join(here, file)), { recursive: true })
    writeFileSync(path.join(here, file), content)
  }
  for (const { id } of await db.selectFrom('datasets').select('id').execute()) write(`datasets/${id}.jsonl`, id)
  for (const { id } of await db.selectFrom('files').select('id').execute()) write(`files/${id}`, `file ${id}`)
  for (const { id } of await db.selectFrom('models').select('id').execute()) {
    write(`models/${id}/adapter.gguf`, `weights ${id}`)
    write(`models/${id}/mmproj.gguf`, `projector ${id}`)
    write(`models/${id}/adapter/adapter ü.safetensors`, '')
  }
  write('secret.key', 'key')
  schema.close()
  await db.destroy()
})

/** Adds an entry to the queue; returns the number that the database gives it. */
async function newEntry(db: Db): Promise<number> {
  const { id: _, ...row } = await db.selectFrom('queue_entries').selectAll().executeTakeFirstOrThrow()
  const entry = { ...row, kind: 'test', ref: 'new' }
  return (await db.insertInto('queue_entries').values(entry).returning('id').executeTakeFirstOrThrow()).id
}

async function contentOf(db: Db): Promise<string> {
  const hash = createHash('sha256')
  for (const { name, key, columns } of tables) {
    let query = db.selectFrom(name as 'accounts').select(columns as 'id'[])
    for (const column of key) query = query.orderBy(column as 'id')
    hash.update(name).update(JSON.stringify(await query.execute()))
  }
  await db.destroy()
  return hash.digest('hex')
}

const filesIn = (dir: string) =>
  globSync('{datasets,files,models}/**/*', { cwd: dir })
    .filter((name) => statSync(path.join(dir, name)).isFile())
    .map((name) => [name, sha256(readFileSync(path.join(dir, name)))])
    .sort()

/** Moves, and fails after this many reports. */
async function moveAndDie(
  to: Destination,
  after_reports: number,
  source: Installation = { data_dir: here },
): Promise<void> {
  let reports = 0
  await assert.rejects(
    moveInstallation(source, to, () => {
      if (++reports === after_reports) throw new Error('killed')
    }),
    /killed/,
  )
}

test(
  'rows and files are the same after Postgres and back, through interruptions; numbers continue',
  onPostgres,
  async () => {
    const source = statSync(databaseFile(here)).mtimeMs
    const before = await contentOf(await openReadOnly(here))
    mkdirSync(folder('shared'))
    const there = { database_url: postgres!.url, storage_url: `file://${folder('shared')}` }
    await moveAndDie(there, 3)
    await moveAndDie(there, 140)
    await assert.rejects(
      openDatabase('', postgres!.url),
      /migrate-data' has not finished/,
      'no server opens half of it',
    )
    const moved = await moveInstallation({ data_dir: here }, there, quiet)
    assert.equal(moved.files, 40 * 5)
    assert.equal(statSync(databaseFile(here)).mtimeMs, source, 'the source is as it was')
    assert.equal(await contentOf(await openReadOnly('', postgres!.url)), before)

    const db = await openDatabase('', postgres!.url)
    const id = await newEntry(db)
    assert.equal(id, 451, 'a number of a deleted row is not given again')
    await db.deleteFrom('queue_entries').where('id', '=', id).execute()
    const killed = { id: 'srv_killed', host: 'node-2', pid: 7, version: '0', secret_key_id: '', storage_url: null }
    await db
      .insertInto('servers')
      .values({ ...killed, started_at: 0, seen_at: 1 })
      .execute()
    await db.destroy()

    const from = { data_dir: here, ...there }
    await assert.rejects(
      moveInstallation(from, { data_dir: folder('back') }, quiet),
      /killed \(srv_killed on node-2, last seen 1970.*--lost-server srv_killed/,
    )
    const back_to = { data_dir: folder('back'), lost_servers: ['srv_killed'] }
    await moveAndDie(back_to, 130, from)
    await moveInstallation(from, back_to, quiet)
    assert.equal(await contentOf(await openReadOnly(folder('back'))), before)
    assert.deepEqual(filesIn(folder('back')), filesIn(here))
    assert.equal(readFileSync(path.join(folder('back'), 'secret.key'), 'utf8'), 'key')
    const back = await openDatabase(folder('back'))
    assert.equal(await newEntry(back), 452)
    await back.destroy()

    // Neither target takes a second installation.
    await assert.rejects(
      moveInstallation({ data_dir: here }, { database_url: postgres!.url }, quiet),
      /holds other data/,
    )
    await assert.rejects(
      moveInstallation({ data_dir: here }, { data_dir: folder('back') }, quiet),
      /is not empty|other data/,
    )
  },
)

test('files move alone, from a folder to a storage and to another one', full, async () => {
  mkdirSync(folder('first'))
  mkdirSync(folder('second'))
  const first = `file://${folder('first')}`
  await moveAndDie({ storage_url: first }, 50)
  const moved = await moveInstallation({ data_dir: here }, { storage_url: first }, quiet)
  assert.deepEqual([moved.rows, moved.files], [0, 40 * 5])
  const again = await moveInstallation(
    { data_dir: here, storage_url: first },
    { storage_url: `file://${folder('second')}` },
    quiet,
  )
  assert.equal(again.files, 40 * 5)
  assert.deepEqual(
    filesIn(path.join(folder('second'), 'objects')).length,
    filesIn(path.join(folder('first'), 'objects')).length,
  )
})

test('files move to a bucket and back, through an interruption', { skip: full.skip || s3Test.skip }, async () => {
  const s3 = await startS3()
  const before = { ...process.env }
  Object.assign(process.env, s3Credentials)
  try {
    const storage_url = s3.url('moved')
    await moveAndDie({ storage_url }, 50)
    const moved = await moveInstallation({ data_dir: here }, { storage_url }, quiet)
    assert.deepEqual([moved.rows, moved.files], [0, 40 * 5])
    const back = { data_dir: folder('from-bucket') }
    await moveAndDie(back, 130, { data_dir: here, storage_url })
    await moveInstallation({ data_dir: here, storage_url }, back, quiet)
    assert.deepEqual(filesIn(back.data_dir), filesIn(here))
  } finally {
    process.env = before
    await s3.stop()
  }
})

test('what cannot be moved whole is refused, with what to do', async () => {
  const move = (to: Destination, source = { data_dir: here }) => moveInstallation(source, to, quiet)
  await assert.rejects(move({}), /Say where to/)
  await assert.rejects(move({ data_dir: here }), /data folder itself/)
  await assert.rejects(move({ database_url: 'mysql://x' }), /is a Postgres database/)
  await assert.rejects(move({ data_dir: folder('x') }, { data_dir: folder('none') }), /There is no database/)
  const lock = lockDataDir(here)
  await assert.rejects(move({ data_dir: folder('x') }), /serves the data folder .* Stop it first/)
  lock!.release()
  mkdirSync(path.join(here, 'usage'))
  writeFileSync(path.join(here, 'usage/0000000001.jsonl'), '{}\n')
  await assert.rejects(move({ data_dir: folder('x') }), /Usage .* is not in the database yet/)
  rmSync(path.join(here, 'usage'), { recursive: true })
  mkdirSync(folder('other'))
  writeFileSync(path.join(folder('other'), 'x'), '')
  await assert.rejects(move({ data_dir: folder('other') }), /is not empty/)
  mkdirSync(path.join(folder('full'), 'objects/datasets'), { recursive: true })
  writeFileSync(path.join(folder('full'), 'objects/datasets/x'), '')
  await assert.rejects(move({ storage_url: `file://${folder('full')}` }), /holds other data/)
  const [file] = globSync('files/*', { cwd: here })
  const content = readFileSync(path.join(here, file!))
  writeFileSync(path.join(here, file!), 'other')
  await assert.rejects(move({ data_dir: folder('y') }), /is not what was stored/)
  rmSync(path.join(here, file!))
  await assert.rejects(move({ data_dir: folder('y') }), /is missing. Restore it/)
  writeFileSync(path.join(here, file!), content)
  await move({ data_dir: folder('y') })
  assert.ok(existsSync(path.join(folder('y'), file!)))
})

test(
  'a backup has what is in the storage alone, a check finds what is damaged there, a restore brings it back',
  full,
  async () => {
    const [cold, storage] = [folder('cold'), `file://${folder('kept')}`]
    mkdirSync(cold)
    mkdirSync(folder('kept'))
    await moveInstallation({ data_dir: here }, { storage_url: storage }, quiet)
    copyFileSync(databaseFile(here), databaseFile(cold))
    assert.deepEqual(await checkDataDir(cold, storage), [])
    const { files } = await backUp(cold, folder('backup'), 'test', storage)
    assert.equal(files.length, 1 + 40 * 5)
    const object = path.join(folder('kept'), 'objects/models/models_0/adapter.gguf')
    writeFileSync(object, 'other bytes')
    rmSync(path.join(folder('kept'), 'objects/files/files_1'))
    const problems = await checkDataDir(cold, storage)
    assert.equal(problems.length, 2, problems.join('\n'))
    assert.match(problems.join('\n'), /models_0\/adapter\.gguf .* damaged/)
    assert.match(problems.join('\n'), /files\/files_1 .* missing/)

    mkdirSync(folder('third'))
    await restore(folder('backup'), folder('restored'), `file://${folder('third')}`)
    assert.deepEqual(await checkDataDir(cold, `file://${folder('third')}`), [])
  },
)

test('the command that was killed continues where it was', full, async () => {
  const args = ['migrate-data', '--to-data-dir', folder('killed'), '--json']
  const env = { ...process.env, TUNERY_DATA_DIR: here }
  const run = (until: RegExp) =>
    new Promise<{ lines: string[]; output: string }>((resolve) => {
      const lines: string[] = []
      let output = ''
      const child = spawn(path.join(checkout, 'tunery'), args, { env })
      createInterface({ input: child.stderr }).on('line', (line) => {
        lines.push(line)
        if (until.test(line)) child.kill('SIGKILL')
      })
      child.stdout.on('data', (text) => {
        output += text
      })
      child.on('close', () => resolve({ lines, output }))
    })
  assert.ok((await run(/\(30 of \d+\)/)).lines.length >= 30)
  await assert.rejects(openDatabase(folder('killed')), /has not finished/)
  assert.ok((await run(/^job_events: .* verified/)).lines.length > 120)
  const { output } = await run(/never/)
  assert.equal((JSON.parse(output) as { files: number }).files, 40 * 5, output)
  assert.equal(await contentOf(await openReadOnly(folder('killed'))), await contentOf(await openReadOnly(here)))
  assert.deepEqual(filesIn(folder('killed')), filesIn(here))
})
