// Postgres for tests: databases on the server that TEST_DATABASE_URL names, and servers from the machine's own
// programs.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chownSync, existsSync, globSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { freePort } from '../../bench/support/free-port.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { until } from './client.ts'

/**
 * Creates a database, empty but for the migrations. Undefined without TEST_DATABASE_URL: the test runs on SQLite. With
 * TEST_DATABASE_TEMPLATE, the name of a migrated database there, it is a copy of that one.
 */
export async function newPostgresDatabase() {
  const server = process.env.TEST_DATABASE_URL
  if (!server) return undefined
  const name = `tunery_test_${randomBytes(6).toString('hex')}`
  const run = (statement: string) => runOn(server, statement)
  await run(`create database ${name} template ${process.env.TEST_DATABASE_TEMPLATE ?? 'template0'}`)
  return { url: databaseUrl(server, name), drop: () => run(`drop database ${name} with (force)`) }
}

/** Creates a migrated database that tests copy, which takes a tenth of the time of the migrations. */
export async function createTemplate(server: string): Promise<string> {
  const name = 'tunery_test_template'
  await runOn(server, `create database ${name} template template0`)
  const db = await openDatabase('', databaseUrl(server, name))
  await db.destroy()
  return name
}

function databaseUrl(server: string, name: string): string {
  const url = new URL(server)
  url.pathname = `/${name}`
  return url.href
}

async function runOn(server: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: server })
  await client.connect()
  try {
    await client.query(statement)
  } finally {
    await client.end()
  }
}

/** Options of a test that reads SQLite's files, or makes a backup of them. */
export const onSqlite = { skip: process.env.TEST_DATABASE_URL ? 'about SQLite' : false }

const programs = globSync('/usr/lib/postgresql/*/bin').sort().at(-1)

/** The ids of a user that may run Postgres, which refuses root; undefined: whoever runs the tests. */
function postgresUser(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  const id = (option: string) => Number(execFileSync('id', [option, 'postgres'], { encoding: 'utf8' }))
  return { uid: id('-u'), gid: id('-g') }
}

/** Options of a test that needs its own Postgres: skipped, with what to do, where its programs are missing. */
export const postgresTest = { skip: programs ? false : 'Postgres is not installed: apt-get install postgresql' }

/**
 * A Postgres server for one test, which can be killed and started again. `durable`: what it acknowledged survives
 * that; otherwise it is faster. `kept`: a folder that outlives the server, and whose database the next one continues
 * with.
 */
export async function startPostgres({ durable = true, kept }: { durable?: boolean; kept?: string } = {}) {
  const user = postgresUser()
  const folder = kept ?? mkdtempSync(path.join(os.tmpdir(), 'tunery-postgres-'))
  mkdirSync(folder, { recursive: true })
  if (user) chownSync(folder, user.uid, user.gid)
  const data = path.join(folder, 'data')
  const run = (name: string, ...args: string[]) =>
    execFileSync(path.join(programs!, name), args, { ...user, cwd: folder, stdio: 'pipe' })
  if (!existsSync(data)) run('initdb', '--pgdata', data, '--auth', 'trust', '--username', 'tunery', '--no-sync')
  const port = await freePort()
  const url = `postgres://tunery@127.0.0.1:${port}/postgres`
  let server: ChildProcess
  const start = async () => {
    const settings = {
      listen_addresses: '127.0.0.1',
      port,
      unix_socket_directories: folder,
      ...(!durable && { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' }),
    }
    const args = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    server = spawn(path.join(programs!, 'postgres'), ['-D', data, ...args], { ...user, cwd: folder, stdio: 'ignore' })
    await until('Postgres to answer', async () => {
      const client = new pg.Client({ connectionString: url })
      client.on('error', () => {})
      return await client.connect().then(
        () => client.end().then(() => true),
        () => false,
      )
    })
  }
  /** SIGQUIT: at once, with all its children, as after a crash. */
  const kill = async () => {
    const ended = once(server, 'exit')
    server.kill('SIGQUIT')
    await ended
  }
  await start()
  const endWithTests = () => server.kill('SIGQUIT')
  process.once('exit', endWithTests)
  return {
    url,
    start,
    kill,
    async stop() {
      process.off('exit', endWithTests)
      if (server.exitCode === null && server.signalCode === null) await kill()
      if (kept === undefined) rmSync(folder, { recursive: true, force: true })
    },
  }
}
