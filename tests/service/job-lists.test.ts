// Names, filters, order and pages of jobs, models, deployments and exports, on a real database.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { type Kysely, sql } from 'kysely'
import { SortedQuery } from '../../contract/common.ts'
import { DeploymentQuery } from '../../contract/deployments.ts'
import { ExportQuery } from '../../contract/exports.ts'
import { JobQuery } from '../../contract/fine-tuning.ts'
import * as deployments from '../../server/features/deployments/store.ts'
import * as exports from '../../server/features/exports/store.ts'
import * as store from '../../server/features/jobs/store.ts'
import { up as addNameSearch } from '../../server/platform/db/migrations/0041-name-search.ts'
import { scannedRows } from '../../server/platform/db/name-search.ts'
import { type Db, openDatabase, openUnmigrated } from '../../server/platform/db/open.ts'
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
    metadata_json: index % 3 === 2 ? '{"team":"a=b","size":"1"}' : '{}',
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

test('a list filters by status, metadata, time and part of the name, with any character in it', async () => {
  assert.deepEqual(await listNames({ metadata: 'team=a=b' }, 1), ['axb', 'alpha'])
  assert.deepEqual(await listNames({ metadata: 'team=a=b', name: 'x', sort: 'name' }, 1), ['axb'])
  assert.deepEqual(await listNames({ metadata: 'team=a' }, 1), [])
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
    { metadata: 'team' },
    { sort: 'id' },
    { order: 'up' },
    { created_after: 'yesterday' },
    { name: '' },
    { other: '1' },
  ])
    assert.equal(JobQuery.safeParse(wrong).success, false, JSON.stringify(wrong))
  assert.equal(SortedQuery.safeParse({ status: 'queued' }).success, false, 'models have no status')
})

test('a search in many jobs finds what comparing each name finds, after changes and an upgrade too', async () => {
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
