// A transaction that is committed and then reported as failed: on SQLite its sync fails, on Postgres its answer is
// lost, as if the connection had ended.
import { type FileHandle, open } from 'node:fs/promises'
import path from 'node:path'
import type { TestContext } from 'node:test'
import Database from 'better-sqlite3'
import pg from 'pg'
import type { TestApp } from './service.ts'

/**
 * Loses the commit of the rows that `select` counts, once there is one. Returns whether it has: no caller has seen the
 * commit succeed then.
 */
export async function loseCommit(t: TestContext, app: TestApp, select: string): Promise<() => boolean> {
  const url = app.shared.TUNERY_DATABASE_URL
  return url ? await loseAnswer(t, url, select) : await failSyncs(t, path.join(app.dataDir, 'tunery.db'), select)
}

async function failSyncs(t: TestContext, database: string, select: string): Promise<() => boolean> {
  const reader = new Database(database, { readonly: true })
  t.after(() => reader.close())
  const rows = reader.prepare(select).pluck()
  const handle = await open(database)
  const prototype: FileHandle = Object.getPrototypeOf(handle)
  await handle.close()
  const { datasync } = prototype
  let failures = 0
  t.mock.method(prototype, 'datasync', function (this: FileHandle) {
    if (failures === 2 || rows.get() === 0) return datasync.call(this)
    failures++
    return Promise.reject(new Error('EIO: i/o error, fdatasync'))
  })
  // The first of the syncs may have begun before the commit, and have been another's.
  return () => failures === 2
}

async function loseAnswer(t: TestContext, url: string, select: string): Promise<() => boolean> {
  const reader = new pg.Client({ connectionString: url })
  await reader.connect()
  t.after(() => reader.end())
  const { query } = pg.Client.prototype
  let isLost = false
  t.mock.method(pg.Client.prototype, 'query', async function (this: pg.Client, ...args: [string]) {
    const result = await query.apply(this, args as never)
    if (isLost || !/commit$/.test(args[0]) || (await reader.query(select)).rows[0].count === '0') return result
    isLost = true
    throw Object.assign(new Error('Connection terminated unexpectedly'), { code: 'ECONNRESET' })
  })
  return () => isLost
}
