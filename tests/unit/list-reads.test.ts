// With 100,000 jobs a list does not block the event loop, and one that takes too long ends with an error.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Kysely, sql } from 'kysely'
import { JobQuery } from '../../contract/fine-tuning.ts'
import { listJobs } from '../../server/features/jobs/store.ts'
import { type Db, databaseFile, openThreadedDatabase } from '../../server/platform/db/open.ts'
import type { Schema } from '../../server/platform/db/schema.ts'
import { ThreadedSqliteDialect } from '../../server/platform/db/sqlite/dialect.ts'
import { allowed } from '../support/allowed-time.ts'

const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-lists-'))
let db: Db
before(async () => {
  db = await openThreadedDatabase(dataDir)
  await sql`insert into accounts (id, name, tier, created_at) values ('a', 'a', 'free', 1)`.execute(db)
  const columns = (
    await sql<{ name: string; type: string; notnull: number }>`
    select name, type, "notnull" from pragma_table_info('tuning_jobs')`.execute(db)
  ).rows
  const expressions: Record<string, string> = {
    id: "'job_' || i",
    account_id: "'a'",
    name: "'name ' || i",
    status: "case when i % 20000 = 0 then 'failed' else 'completed' end",
    created_at: 'i',
  }
  const required = columns.filter(({ name, notnull }) => notnull || name in expressions)
  const values = required.map(({ name, type }) => expressions[name] ?? (/text/i.test(type) ? "'{}'" : '0'))
  await sql
    .raw(`with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
      insert into tuning_jobs (${required.map(({ name }) => name).join()}) select ${values.join()} from n`)
    .execute(db)
})
after(async () => {
  await db.destroy()
  rmSync(dataDir, { recursive: true, force: true })
})

const list = (query: object, from = db) => listJobs(from, 'a', JobQuery.parse({ limit: '20', ...query }), undefined)

/** The longest time in ms that the event loop stood still meanwhile. */
async function longestBlock(work: () => Promise<unknown>): Promise<number> {
  let [last, longest] = [performance.now(), 0]
  const note = () => {
    const now = performance.now()
    longest = Math.max(longest, now - last)
    last = now
  }
  const timer = setInterval(note, 1)
  await work()
  note()
  clearInterval(timer)
  return longest
}

test('lists by name and status of 100,000 jobs do not block the event loop, and find what they should', async () => {
  await list({})
  for (const [query, count] of [
    [{ name: 'nothing' }, 0],
    [{ name: 'NAME 9999' }, 11],
    [{ name: 'nothing', sort: 'name' }, 0],
    [{ status: 'failed' }, 5],
    [{ status: 'running' }, 0],
  ] as const) {
    // Several at once, so that lists on the main thread would clearly exceed the bound.
    const blocked = await longestBlock(async () => {
      for (const rows of await Promise.all([list(query), list(query), list(query), list(query)]))
        assert.equal(rows.length, count)
    })
    assert.ok(blocked < allowed(50), `${JSON.stringify(query)} blocked the event loop for ${blocked} ms`)
  }
})

test('a list that passes its deadline is stopped and says what to do; the next list works', async () => {
  // A short list meets it, also on a busy machine.
  const deadline_ms = 100 * Math.ceil(allowed(300) / 100)
  const hasty: Db = new Kysely<Schema>({
    dialect: new ThreadedSqliteDialect({ file: databaseFile(dataDir), timeout_ms: 2000 }, deadline_ms),
  })
  try {
    await list({}, hasty)
    const started = performance.now()
    // A product of all jobs with themselves: hours.
    const endless = hasty
      .selectFrom(['tuning_jobs as a', 'tuning_jobs as b'])
      .select('a.id')
      .where(sql<boolean>`a.progress + b.progress < 0`)
      .orderBy('a.created_at')
      .execute()
    const message = new RegExp(`longer than ${deadline_ms / 1000} s. Narrow it`)
    await assert.rejects(endless, { code: 'overloaded', status: 503, message })
    assert.equal((await list({ status: 'failed' }, hasty)).length, 5)
    assert.ok(performance.now() - started < deadline_ms + allowed(1200))
  } finally {
    await hasty.destroy()
  }
})
