// Names, filters, order and pages of jobs, models, deployments and exports, on a real database.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import SQLite from 'better-sqlite3'
import { Kysely, SqliteDialect, sql } from 'kysely'
import { Description, DisplayName, Labels, SortedQuery } from '../../contract/common.ts'
import { DeploymentQuery } from '../../contract/deployments.ts'
import { ExportQuery } from '../../contract/exports.ts'
import { CreateJob, JobQuery } from '../../contract/fine-tuning.ts'
import { root } from '../../lib/root.ts'
import * as deployments from '../../server/features/deployments/store.ts'
import * as exports from '../../server/features/exports/store.ts'
import { nameOfJob, nameOfStep } from '../../server/features/jobs/names.ts'
import { estimateQueue, playTurns } from '../../server/features/jobs/queue-estimate.ts'
import * as store from '../../server/features/jobs/store.ts'
import { metricsAfter } from '../../server/features/jobs/trainer-events.ts'
import { lineageOf } from '../../server/features/models/lineage.ts'
import { parentOf, recipeOf } from '../../server/features/models/training.ts'
import { up as addNameSearch } from '../../server/platform/db/migrations/0041-name-search.ts'
import { scannedRows } from '../../server/platform/db/name-search.ts'
import { type Db, openDatabase, openUnmigrated } from '../../server/platform/db/open.ts'
import { allowed } from '../support/allowed-time.ts'
import { full } from '../support/full.ts'
import { jobRow } from '../support/job-row.ts'
import { newPostgresDatabase } from '../support/postgres.ts'

let dataDir: string
let postgres: Awaited<ReturnType<typeof newPostgresDatabase>>
let db: Db
const names = ['beta', 'Alpha', 'alpha', '100% right', 'a_b', 'axb', 'Ärger', 'back\\slash']
before(async () => {
  dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-lists-'))
  postgres = await newPostgresDatabase()
  db = await openDatabase(dataDir, postgres?.url)
  for (const id of ['mine', 'other'])
    await db.insertInto('accounts').values({ id, name: id, tier: 'free', suspended_at: null, created_at: 1 }).execute()
  await db.transaction().execute(async (trx) => {
    for (const [index, name] of names.entries()) await store.insertJob(trx, job(index, { name }))
    await store.insertJob(trx, job(100, { id: 'job_x', account_id: 'other', name: 'alpha' }))
  })
})
after(async () => {
  await db.destroy()
  await postgres?.drop()
  rmSync(dataDir, { recursive: true, force: true })
})

/** Two jobs are created in each second. */
const timeOf = (index: number) => Date.UTC(2026, 0, 1) + Math.floor(index / 2) * 1000
const job = (index: number, more: Partial<store.JobRow>) =>
  jobRow({
    id: `job_${index}`,
    status: index % 2 ? 'completed' : 'queued',
    paused: index === 0 ? 1 : 0,
    created_at: timeOf(index),
    ...more,
  })

/** The names of all jobs that match a filter, read in pages of `limit`. */
async function listNames(filter: object, limit: number): Promise<string[]> {
  const query = JobQuery.parse({ limit: String(limit), ...filter })
  const pages: string[] = []
  let after: store.JobRow | undefined
  for (;;) {
    const rows = await store.listJobs(db, 'mine', query, after)
    pages.push(...rows.slice(0, limit).map(({ name }) => name))
    if (rows.length <= limit) return pages
    after = rows[limit - 1]
  }
}
const iso = (index: number) => new Date(timeOf(index)).toISOString()

test('pages of any size and order list each job of the account once, also with equal names or times', async () => {
  for (const sort of ['created_at', 'name'])
    for (const order of ['asc', 'desc', undefined]) {
      const whole = await listNames({ sort, ...(order && { order }) }, 100)
      assert.deepEqual(whole.toSorted(), names.toSorted())
      for (const limit of [1, 2, 3, 7])
        assert.deepEqual(
          await listNames({ sort, ...(order && { order }) }, limit),
          whole,
          `${sort} ${order} by ${limit}`,
        )
    }
  assert.deepEqual(await listNames({}, 3), names.toReversed(), 'newest first')
  assert.deepEqual(await listNames({ order: 'asc' }, 3), names)
  assert.deepEqual((await listNames({ sort: 'name' }, 3)).slice(0, 4), ['100% right', 'a_b', 'Alpha', 'alpha'])
})

test('a list filters by status, time and part of the name, with any character in it', async () => {
  assert.deepEqual(await listNames({ name: 'ALPHA' }, 1), ['alpha', 'Alpha'])
  for (const [text, found] of [
    ['%', ['100% right']],
    ['_', ['a_b']],
    ['\\', ['back\\slash']],
    ["'", []],
    ['Ä', ['Ärger']],
  ] as const)
    assert.deepEqual(await listNames({ name: text }, 2), found, text)
  assert.deepEqual(await listNames({ status: 'completed', order: 'asc' }, 1), [
    'Alpha',
    '100% right',
    'axb',
    'back\\slash',
  ])
  assert.deepEqual(await listNames({ created_after: iso(1), created_before: iso(6), order: 'asc' }, 1), [
    'alpha',
    '100% right',
    'a_b',
    'axb',
  ])
  assert.deepEqual(await listNames({ created_after: iso(6) }, 1), [])
  for (const wrong of [
    { status: 'done' },
    { sort: 'id' },
    { order: 'up' },
    { created_after: 'yesterday' },
    { name: '' },
    { other: '1' },
  ])
    assert.equal(JobQuery.safeParse(wrong).success, false, JSON.stringify(wrong))
  assert.equal(SortedQuery.safeParse({ status: 'queued' }).success, false, 'models have no status')
})

test('a search in an account of many jobs finds what comparing each name finds, also after changes and an upgrade', async () => {
  const odd = [
    ...['%%%', '___', '100%_\\', '\\\\%', `"a" OR 'b'`, 'NEAR("abc", 2)', "x'; drop table tuning_jobs; --", '*^:-(+)'],
    ...['日本語のモデル', 'ΟΔΟΣΑ', 'ĲSSEL straße', 'İstanbul', '👩‍🚀🚀🚀', 'e\u0301clair', 'Tickets · SmolLM2 v1.2'],
    ...[
      'a',
      'ab',
      'ABC',
      'abcabd',
      'aaaaaaaa',
      'q'.repeat(200),
      `${'ab'.repeat(90)}Z`,
      'x   inner   spaces',
      '\ufffd\ufffd\ufffd',
    ],
  ]
  const account_id = 'many'
  await db
    .insertInto('accounts')
    .values({ id: account_id, name: account_id, tier: 'free', suspended_at: null, created_at: 1 })
    .execute()
  const jobs = new Map(odd.map((name, index) => [`odd_${index}`, name]))
  await db.transaction().execute(async (trx) => {
    for (const [id, name] of jobs)
      await store.insertJob(trx, jobRow({ id, name, account_id, status: 'cancelled', created_at: 1 }))
  })
  // More than are scanned, and before the odd ones in both orders.
  const expressions: Record<string, string> = { id: "'filler_' || i", name: "' filler ' || i", created_at: 'i + 1' }
  const columns = Object.keys(jobRow({}))
  await sql
    .raw(`insert into tuning_jobs (${columns.join()})
      with recursive n(i) as (select 1 union all select i + 1 from n where i < ${scannedRows + 10})
      select ${columns.map((column) => expressions[column] ?? column).join()} from n, tuning_jobs where id = 'odd_0'`)
    .execute(db)

  const search = async (name: string, account: string, more: object): Promise<string[]> =>
    (await store.listJobs(db, account, JobQuery.parse({ limit: '50', name, ...more }), undefined))
      .map(({ id }) => id)
      .sort()
  const texts = new Set(
    odd.flatMap((name) => {
      const characters = [...name]
      return [name, characters.slice(1).join(''), characters.slice(-3).join(''), characters.slice(2, 6).join('')]
    }),
  )
  for (const text of [
    'ΟΔΟΣ',
    'οδοσ',
    'istanbul',
    'ÉCL',
    'STRASSE',
    'straSSe',
    'tickets v1',
    'bcabc',
    'SMOLLM2',
    '%a%',
    'drop_table',
  ])
    texts.add(text)
  for (const text of ['nul\0', '\0\0\0', 'AaAaAaAa', 'aaaaaaaaa', "''''", '""""', '日本語 モデル']) texts.add(text)
  const queries = [{}, { sort: 'name' }, { status: 'cancelled' }]
  const fold = (text: string) => text.replace(/[A-Z]/g, (letter) => String.fromCharCode(letter.charCodeAt(0) + 32))
  const check = async (state: string) => {
    // Each text with one of the queries, another one each time.
    for (const [index, text] of [...texts].filter((text) => text !== '').entries()) {
      const matching = [...jobs].filter(([, name]) => fold(name).includes(fold(text))).map(([id]) => id)
      const more = queries[(index + state.length) % queries.length]!
      const about = `${state}: ${JSON.stringify(text)} ${JSON.stringify(more)}`
      assert.deepEqual(await search(text, account_id, more), matching.toSorted(), about)
    }
    assert.deepEqual(await search('tickets', account_id, { status: 'failed' }), [])
    assert.deepEqual(await search('tickets', 'mine', {}), [], 'of another account')
  }
  await check('new')

  await db.transaction().execute(async (trx) => {
    for (const [index, id] of [...jobs.keys()].entries()) {
      const name = [...jobs.get(id)!].reverse().join('')
      if (index % 3 === 0) {
        jobs.delete(id)
        await trx.deleteFrom('tuning_jobs').where('id', '=', id).execute()
      } else if (index % 3 === 1) {
        jobs.set(id, name)
        texts.add(name)
        await store.updateJob(trx, id, { name })
      }
    }
  })
  await check('changed')

  // As an upgrade finds them: rows that nothing indexes.
  await db.transaction().execute(async (trx) => {
    for (const table of ['datasets', 'tuning_jobs', 'models', 'deployments'])
      if (postgres) await sql`drop index if exists ${sql.ref(`${table}_name_trigrams`)}`.execute(trx)
      else
        for (const event of ['inserted', 'changed', 'deleted'])
          await sql`drop trigger ${sql.ref(`${table}_name_${event}`)}`.execute(trx)
    if (!postgres)
      for (const table of ['name_scopes', 'name_keys', 'name_trigrams']) await trx.schema.dropTable(table).execute()
    await addNameSearch(trx as unknown as Kysely<unknown>)
  })
  await check('upgraded')
})

const onPostgres = { skip: full.skip || (process.env.TEST_DATABASE_URL ? false : 'about Postgres') }
test('a Postgres role that may not create extensions gets the lists without the index', onPostgres, async () => {
  const postgres = (await newPostgresDatabase())!
  const role = `tunery_role_${randomBytes(4).toString('hex')}`
  const admin = await openUnmigrated(dataDir, postgres.url)
  const url = new URL(postgres.url)
  url.username = role
  try {
    await sql.raw(`create role ${role} login`).execute(admin)
    await sql.raw(`grant all on schema public to ${role}`).execute(admin)
    const limited = await openDatabase(dataDir, url.href)
    const { rows } = await sql`select indexname from pg_indexes where indexname like '%trigrams'`.execute(limited)
    assert.deepEqual(rows, [])
    assert.deepEqual(await store.listJobs(limited, 'mine', JobQuery.parse({ name: 'nothing' }), undefined), [])
    await limited.destroy()
  } finally {
    await admin.destroy()
    await postgres.drop()
    await sql.raw(`drop role if exists ${role}`).execute(db)
  }
})

test('deployments and exports are filtered and sorted like jobs', async () => {
  const of = (index: number) =>
    ({
      account_id: index < 8 ? 'mine' : 'other',
      status: index % 2 ? 'ready' : 'failed',
      created_at: timeOf(index),
    }) as const
  await db.transaction().execute(async (trx) => {
    for (const index of [...names.keys(), 8]) {
      const at = of(index)
      await deployments.insert(trx, {
        ...at,
        id: `dep_${index}`,
        name: `d${9 - index}`,
        model: 'test/tiny',
        error_json: null,
        updated_at: 1,
      })
      const times = {
        format: 'gguf',
        quantization: null,
        merge: 1,
        archive: null,
        push_to: null,
        stage: null,
        progress: 0,
        files_json: '[]',
      } as const
      const none = {
        check_json: null,
        push_json: null,
        error_json: null,
        crashes: 0,
        interruptions: 0,
        started_at: null,
        finished_at: null,
        expires_at: null,
      }
      await exports.insert(trx, {
        ...at,
        ...times,
        ...none,
        id: `exp_${index}`,
        model_id: index < 4 ? 'mdl_a' : 'mdl_b',
      })
    }
  })
  const pages = async <T extends { id: string }>(list: (after: T | undefined) => Promise<T[]>): Promise<string> => {
    const [found, limit]: [T[], number] = [[], 3]
    for (;;) {
      const rows = await list(found.at(-1))
      found.push(...rows.slice(0, limit))
      if (rows.length <= limit) return found.map(({ id }) => id.slice(4)).join('')
    }
  }
  const listDeployments = (filter: object) =>
    pages<deployments.DeploymentRow>((last) =>
      deployments.list(db, 'mine', DeploymentQuery.parse({ limit: '3', ...filter }), last),
    )
  const listExports = (filter: object) =>
    pages<exports.ExportRow>((last) => exports.list(db, 'mine', ExportQuery.parse({ limit: '3', ...filter }), last))
  const between = { created_after: iso(1), created_before: iso(6) }
  for (const read of [listDeployments, listExports]) {
    assert.equal(await read({}), '76543210', 'newest first')
    assert.equal(await read({ order: 'asc' }), '01234567')
    assert.equal(await read({ status: 'ready' }), '7531')
    assert.equal(await read(between), '5432')
  }
  assert.equal(await listDeployments({ sort: 'name' }), '76543210')
  assert.equal(await listDeployments({ name: 'D7' }), '2')
  assert.equal(await listExports({ model: 'mdl_a', status: 'failed', order: 'asc' }), '02')
  for (const wrong of [{ status: 'queued' }, { order: 'up' }])
    assert.equal(DeploymentQuery.safeParse(wrong).success, false)
  for (const wrong of [{ status: 'stopped' }, { name: 'x' }, { sort: 'name' }])
    assert.equal(ExportQuery.safeParse(wrong).success, false, JSON.stringify(wrong))
})

test('a job without a name is named after its dataset and base, within the length limit', () => {
  assert.equal(nameOfJob('tickets.jsonl', 'HuggingFaceTB/SmolLM2-135M-Instruct'), 'tickets · SmolLM2-135M-Instruct')
  assert.equal(nameOfJob('v1.2', 'gpt2'), 'v1.2 · gpt2')
  for (const dataset of ['x'.repeat(300), '🙂'.repeat(150), '\u202e\u0007', `a${'🙂'.repeat(150)}`]) {
    const name = nameOfJob(dataset, `org/${'b'.repeat(96)}`)
    assert.equal(DisplayName.parse(name), name)
    assert.match(name, / ?· b{96}$/)
    assert.equal(DisplayName.parse(nameOfStep(name, 12345)), nameOfStep(name, 12345))
    assert.match(nameOfStep(name, 12345), / · step 12345$/)
  }
})

test('metadata accepts up to 16 pairs of plain text', () => {
  const pairs = (count: number, value: unknown = 'v') =>
    Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, value]))
  const accepts = (metadata: unknown) =>
    Labels.safeParse({ metadata }).success && CreateJob.safeParse({ model_id: 'm', dataset_id: 'd', metadata }).success
  for (const good of [{}, pairs(16), { ['k'.repeat(64)]: 'v'.repeat(512) }, { a: '' }])
    assert.ok(accepts(good), JSON.stringify(good))
  for (const bad of [
    pairs(17),
    { ['k'.repeat(65)]: 'v' },
    { a: 'v'.repeat(513) },
    { '': 'v' },
    pairs(1, 1),
    pairs(1, null),
    ['v'],
    'v',
    { 'a\u0000': 'v' },
    { a: '\u202e' },
  ])
    assert.equal(accepts(bad), false, JSON.stringify(bad).slice(0, 80))
  assert.equal(Description.parse('two\nlines'), 'two\nlines')
})

test('migration 0012 adds names, parents, recipes and evaluations to an older database', async () => {
  const old = new Kysely<unknown>({ dialect: new SqliteDialect({ database: new SQLite(':memory:') }) })
  const folder = path.join(root, 'server/platform/db/migrations')
  const steps = readdirSync(folder)
    .filter((file) => file < '0013')
    .sort()
  for (const file of steps.slice(0, -1)) await (await import(path.join(folder, file))).up(old)
  const insert = (table: string, row: object) => {
    const columns = sql.join(Object.keys(row).map((name) => sql.ref(name)))
    return sql`insert into ${sql.table(table)} (${columns}) values (${sql.join(Object.values(row))})`.execute(old)
  }
  const of = { account_id: 'a', created_at: 1 }
  await insert('accounts', { id: 'a', name: 'a', tier: 'free', created_at: 1 })
  const file = {
    format: 'jsonl',
    rows: 1,
    size_bytes: 2_000_000,
    sha256: 'abc',
    check_json: '{}',
    status: 'ready',
    description: '',
  }
  await insert('datasets', { id: 'ds_1', name: 'tickets.jsonl', ...of, ...file })
  const resolved_config_json = JSON.stringify({ method: { value: 'lora' }, training_config: { epochs: { value: 3 } } })
  const {
    name: _,
    description,
    metadata_json,
    base_model_id,
    parent_json,
    recipe_json,
    slowed_by,
    openai_json,
    result_file_id,
    evaluation_id,
    result_evaluation_id,
    traceparent,
    deleted_at,
    ...row
  } = job(0, { ...of, resolved_config_json, status: 'completed', paused: 0 })
  await insert('tuning_jobs', { ...row, id: 'job_1', model_id: 'org/base', model: 'mdl_1' })
  // The model that it continued and its dataset were deleted.
  await insert('tuning_jobs', {
    ...row,
    id: 'job_2',
    model_id: 'mdl_1',
    dataset_id: 'ds_gone',
    model: 'mdl_2',
    created_at: 2,
  })
  const model = { base_model_id: 'org/base', kind: 'adapter', method: 'lora', gguf_sha256: 'def', size_bytes: 1, ...of }
  await insert('models', { ...model, id: 'mdl_2', job_id: 'job_2', step: 9 })
  await insert('models', { ...model, id: 'mdl_3', job_id: 'job_2', step: 6 })
  await insert('models', { ...model, id: 'mdl_4', name: 'mine' })
  for (const [seq, validation_loss] of [3, 2].entries())
    await insert('job_events', {
      job_id: 'job_1',
      seq,
      type: 'metrics',
      message: '',
      data_json: JSON.stringify({ step: 4, validation_loss, validation_exact: 0 }),
      created_at: seq,
    })
  await (await import(path.join(folder, steps.at(-1)!))).up(old)

  const db = old as Db
  const [first, second] = [(await store.findJobUnscoped(db, 'job_1'))!, (await store.findJobUnscoped(db, 'job_2'))!]
  assert.deepEqual([first.name, first.base_model_id, first.parent_json], ['tickets · base', 'org/base', null])
  const dataset = { id: 'ds_1', name: 'tickets.jsonl', sha256: 'abc', size_mb: 2 }
  assert.deepEqual(recipeOf(first), { method: 'lora', epochs: 3, dataset, validation_dataset: null })
  assert.deepEqual(
    [second.name, second.base_model_id, parentOf(second)!.job_id],
    ['ds_gone · base', 'org/base', 'job_1'],
  )
  const models = await db.selectFrom('models').selectAll().orderBy('id').execute()
  assert.deepEqual(
    models.map(({ name, parent_model_id }) => [name, parent_model_id]),
    [
      ['ds_gone · base', 'mdl_1'],
      ['ds_gone · base · step 6', 'mdl_1'],
      ['mine', null],
    ],
  )
  const { base_model_id: base, steps: lineage } = await lineageOf(db, models[0]!)
  assert.equal(base, 'org/base')
  assert.deepEqual(
    lineage.map(({ model_id, job_id, dataset }) => [model_id, job_id, dataset?.id]),
    [
      ['mdl_1', 'job_1', 'ds_1'],
      ['mdl_2', 'job_2', 'ds_gone'],
    ],
  )
  assert.deepEqual(
    (await store.evaluations(db, 'job_1')).map(({ step, data_json }) => [step, JSON.parse(data_json).validation_loss]),
    [[4, 2]],
  )
  await old.destroy()
})

test('the metrics of a job all belong to one step', () => {
  const first = metricsAfter({}, { step: 1, steps_total: 9, loss: 3, learning_rate: 0.1, tokens: 5 })
  assert.deepEqual(first, { step: 1, steps_total: 9, loss: 3, learning_rate: 0.1, train_loss: 3 })
  const evaluated = metricsAfter(first, { step: 1, steps_total: 9, validation_loss: 2, train_loss: 2.5 })
  assert.deepEqual(evaluated, { ...first, validation_loss: 2, train_loss: 2.5 })
  assert.deepEqual(metricsAfter(evaluated, { step: 2, steps_total: 9, loss: 1 }), {
    step: 2,
    steps_total: 9,
    loss: 1,
    train_loss: 1,
  })
  assert.deepEqual(metricsAfter(first, { step: 3, steps_total: 9, validation_loss: 2, train_loss: 2.5 }), {
    step: 3,
    steps_total: 9,
    validation_loss: 2,
    train_loss: 2.5,
  })
})

test('the start of a queued job is estimated from the duration of similar completed jobs', async () => {
  const accountOf = (ref: string) => (ref === 'half' ? 'other' : 'mine')
  const queueOf = (refs: string[]) => ({
    pending: async () => ({
      entries: refs.map((ref, id) => ({
        id,
        ref,
        account_id: accountOf(ref),
        run_at: 0,
        place: id,
        status: 'waiting' as const,
        turn_until: ref === 'runs' ? 900_000 : 0,
      })),
      served: new Map(),
    }),
  })
  const recipe = (size_mb: number, method = 'lora') =>
    JSON.stringify({ method, epochs: 2, dataset: { size_mb }, validation_dataset: null })
  const metrics_json = JSON.stringify({ train_seconds: 10 })
  await db.transaction().execute(async (trx) => {
    await trx.deleteFrom('tuning_jobs').execute()
    const done = { status: 'completed' as const, metrics_json, recipe_json: recipe(1), finished_at: 1 }
    await store.insertJob(trx, job(1, { ...done, ran_ms: 12_000 }))
    const running = {
      status: 'running' as const,
      recipe_json: recipe(1),
      estimated_completion: 5000,
      paused: 0 as const,
    }
    await store.insertJob(trx, job(2, { ...running, id: 'runs' }))
    const queued = { status: 'queued' as const, paused: 0 as const }
    await store.insertJob(trx, job(3, { ...queued, id: 'twice', recipe_json: recipe(2) }))
    await store.insertJob(
      trx,
      job(4, { ...queued, id: 'half', account_id: 'other', recipe_json: recipe(1), progress: 0.5 }),
    )
    await store.insertJob(trx, job(5, { ...queued, id: 'unknown', recipe_json: recipe(1, 'full') }))
    await store.insertJob(trx, job(6, { ...queued, id: 'last', recipe_json: recipe(1) }))
    await store.insertJob(trx, job(7, { ...queued, id: 'paused', paused: 1, recipe_json: recipe(1) }))
  })
  const estimates = await estimateQueue(db, queueOf(['runs', 'twice', 'half', 'unknown', 'last']), 'tuning', 1000, {
    at_once: 1,
    slice_ms: 900_000,
  })
  assert.deepEqual(
    [...estimates].map(([id, estimate]) => [id, ...Object.values(estimate)]),
    [
      ['runs', null, null, 5000],
      ['twice', 1, 5000, 27_000],
      ['half', 2, 5000 + 2000 + 20_000, 34_000],
      ['unknown', 3, 27_000 + 2000 + 5000, null],
      ['last', 4, null, null],
    ],
  )
})

test('estimates know turns and time slices', () => {
  const [hour, minute] = [3_600_000, 60_000]
  const entry = (id: number, ref: string, account_id: string) => ({ id, ref, account_id, run_at: 0, turn_until: 0 })
  const turns = { at_once: 1, slice_ms: 15 * minute }
  const lengths: Record<string, number> = { a1: hour, a2: hour, b: minute, c: 20 * minute }
  const play = (waiting: ReturnType<typeof entry>[], left: number, more: Partial<typeof turns> = {}) => {
    const running = { ...entry(1, 'a1', 'a'), left, turn_ends: 10 * minute }
    const estimates = playTurns([running], waiting, (ref) => lengths[ref]!, new Map([['a', 1]]), 0, {
      ...turns,
      ...more,
    })
    return Object.fromEntries(
      [...estimates].map(([ref, { queue_position, estimated_start, estimated_end }]) => [
        ref,
        [queue_position, ...[estimated_start, estimated_end].map((time) => time !== null && time / minute)],
      ]),
    )
  }
  const waiting = [entry(2, 'a2', 'a'), entry(3, 'b', 'b'), entry(4, 'c', 'c')]
  // b after 10 minutes, c after 11 until 26, a1 until 41, c until 46, a1 until 81, a2.
  const ends = { a1: [null, false, 81], b: [1, 10, 11], c: [2, 11, 46], a2: [3, 81, 141] }
  assert.deepEqual(play(waiting, hour), ends)
  assert.deepEqual(play(waiting.slice(0, 1), hour), { a1: [null, false, 60], a2: [1, 60, 120] }, 'nobody else waits')
  assert.deepEqual(play(waiting, hour, { slice_ms: 0 }).b, [1, 60, 61], 'without slices it waits for its end')
  const unknown = play(waiting, Number.POSITIVE_INFINITY)
  assert.deepEqual(
    [unknown.b, unknown.a2],
    [
      [1, 10, 11],
      [3, false, false],
    ],
    'of unknown length',
  )
  const many = Array.from({ length: 100_000 }, (_, id) => entry(id + 2, `d${id}`, `account ${id % 1000}`))
  const began = performance.now()
  const positions = playTurns([], many, () => hour, new Map(), 0, turns)
  assert.equal(positions.size, 100_000)
  assert.ok(performance.now() - began < allowed(2000), `100,000 jobs took ${performance.now() - began} ms`)
})
