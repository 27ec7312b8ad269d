// Moves an installation: its rows to another database, its files to another storage. The source is only read. A killed
// move resumes where it was: its progress is in the target database.
import { existsSync, mkdtempSync, readdirSync } from 'node:fs'
import { copyFile, mkdir, readdir, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { sql } from 'kysely'
import { isoTime } from '../../../lib/utc-day.ts'
import { readServerId } from '../../platform/cluster/servers.ts'
import { isPostgres } from '../../platform/db/dialect.ts'
import { readMigrations, unfinishedMove } from '../../platform/db/migrate.ts'
import {
  type Db,
  databaseFile,
  lockDataDir,
  openDatabase,
  openReadOnly,
  openUnmigrated,
} from '../../platform/db/open.ts'
import type { Row } from '../../platform/db/schema.ts'
import { firstAccount, installationOf, WrongInstallation } from '../../platform/storage/installation.ts'
import { claimStorage, type ObjectStore, openObjectStore, ownerKey } from '../../platform/storage/objects/index.ts'
import { MigrateError } from './error.ts'
import { copyArtifacts, type FilesPlace, listArtifacts } from './files.ts'
import { type AnyDb, compareTable, copyTable, firstWithRows, progressTable, type TableResult } from './rows.ts'
import { readTables, type Table } from './tables.ts'

/** Where an installation is: as the settings of the same names say. */
export interface Installation {
  data_dir: string
  database_url?: string | undefined
  storage_url?: string | undefined
}

/** What moves: undefined stays where it is. `data_dir`: SQLite and all files, in a new data folder. */
export interface Destination {
  database_url?: string | undefined
  storage_url?: string | undefined
  data_dir?: string | undefined
  /** Ids of servers that were killed and whose data folder is lost: usage that was only there is given up. */
  lost_servers?: readonly string[] | undefined
}

interface MoveResult {
  tables: TableResult[]
  rows: number
  files: number
  bytes: number
}

/** Files of a data folder that are no artifacts, and that an installation needs. */
const keyFiles = ['secret.key', 'installation']

/** Moves an installation. Throws a MigrateError; a second call with the same arguments resumes. */
export async function moveInstallation(
  source: Installation,
  to: Destination,
  report: (line: string) => void,
): Promise<MoveResult> {
  refuseNonsense(source, to)
  const locks = [lockFolder(source.data_dir), ...(to.data_dir === undefined ? [] : [lockFolder(to.data_dir)])]
  const cleanUp: (() => unknown)[] = locks.map((lock) => () => lock.release())
  try {
    requireFoldedUsage(source.data_dir)
    const tables = await readTables()
    const from = await openReadOnly(source.data_dir, source.database_url)
    cleanUp.push(() => from.destroy())
    await requireSameVersion(from as AnyDb)
    await requireStopped(from as AnyDb)
    const movesRows = to.database_url !== undefined || to.data_dir !== undefined
    if (movesRows) await requireNoneKilled(from as AnyDb, source.data_dir, to.lost_servers ?? [])
    const owner = await ownerOf(from as AnyDb)
    const target = movesRows ? await openTarget(to, owner, tables) : undefined
    if (target) cleanUp.push(() => target.destroy())

    const moved = await moveFiles(source, to, from, report, cleanUp)
    if (!target) return { tables: [], rows: 0, ...moved }
    for (const table of tables) {
      let copied = 0
      await copyTable(from as AnyDb, target, table, (rows) => {
        copied += rows
        if (copied % 10_000 < rows) report(`${table.name}: ${copied} rows`)
      })
    }
    const results: TableResult[] = []
    for (const table of tables) {
      const result = await compareTable(from as AnyDb, target, table)
      if (result.rows > 0) report(`${table.name}: ${result.rows} rows, verified`)
      results.push(result)
    }
    if (to.data_dir !== undefined) await copyKeyFiles(source.data_dir, to.data_dir)
    await target.transaction().execute(async (trx) => {
      await trx.deleteFrom('migrations').where('name', '=', unfinishedMove).execute()
      await trx.schema.dropTable(progressTable).execute()
    })
    return { tables: results, rows: results.reduce((sum, { rows }) => sum + rows, 0), ...moved }
  } finally {
    for (const undo of cleanUp.reverse()) await undo()
  }
}

function refuseNonsense(source: Installation, to: Destination): void {
  const { database_url, storage_url, data_dir } = to
  if (database_url === undefined && storage_url === undefined && data_dir === undefined)
    throw new MigrateError(
      'Say where to: --to-database, --to-storage, or --to-data-dir for SQLite and files in a folder.',
    )
  if (data_dir !== undefined && (database_url !== undefined || storage_url !== undefined))
    throw new MigrateError('--to-data-dir takes database and files; leave --to-database and --to-storage out.')
  if (database_url !== undefined && !/^postgres(ql)?:\/\//.test(database_url))
    throw new MigrateError('--to-database is a Postgres database: postgres://user:password@host/database.')
  if (database_url !== undefined && database_url === source.database_url)
    throw new MigrateError('The database is there already (TUNERY_DATABASE_URL).')
  if (storage_url !== undefined && storage_url === source.storage_url)
    throw new MigrateError('The files are there already (TUNERY_STORAGE_URL).')
  if (data_dir !== undefined && path.resolve(data_dir) === path.resolve(source.data_dir))
    throw new MigrateError('The target is the data folder itself. Name a new folder.')
  if (source.database_url === undefined && !existsSync(databaseFile(source.data_dir)))
    throw new MigrateError(
      `There is no database in ${source.data_dir}. Set TUNERY_DATA_DIR to the service's data folder.`,
    )
}

function lockFolder(folder: string): { release(): void } {
  const lock = lockDataDir(folder)
  if (!lock) throw new MigrateError(`A Tunery serves the data folder ${folder}. Stop it first.`)
  return lock
}

/** Usage that is only in the journal would be lost. */
function requireFoldedUsage(dataDir: string): void {
  const folder = path.join(dataDir, 'usage')
  if (existsSync(folder) && readdirSync(folder).some((name) => name.endsWith('.jsonl')))
    throw new MigrateError(
      `Usage of the last requests is not in the database yet (${folder}), as the service was killed. Start it, stop ` +
        'it with Ctrl-C, and run this again.',
    )
}

async function requireSameVersion(db: AnyDb): Promise<void> {
  const { pending, unknown } = await readMigrations(db)
  if (unknown.includes(unfinishedMove))
    throw new MigrateError('The source is itself the target of a move that has not finished. Finish that one first.')
  if (pending.length > 0 || unknown.length > 0)
    throw new MigrateError(
      'The database is of another version of Tunery. Start this version once and stop it, and run this again.',
    )
}

/** Servers on other machines that use the same Postgres. */
async function requireStopped(db: AnyDb): Promise<void> {
  if (!isPostgres(db)) return
  const { rows } = await sql<{ host: string; pid: number }>`
    select host, pid from servers where seen_at > ${Date.now() - 20_000}
  `.execute(db)
  if (rows[0])
    throw new MigrateError(
      `A server uses the database (${rows[0].host}, process ${rows[0].pid}). Stop all servers. One that was killed ` +
        'counts for 20 more seconds.',
    )
}

/** A server leaves its row when it is killed; usage of its last requests may be in its journal, on its machine. */
async function requireNoneKilled(db: AnyDb, dataDir: string, lost: readonly string[]): Promise<void> {
  if (!isPostgres(db)) return
  const rows = (await db.selectFrom('servers').selectAll().orderBy('seen_at').execute()) as Row<'servers'>[]
  const killed = rows.filter(({ id }) => !lost.includes(id) && id !== readServerId(dataDir))
  if (killed.length === 0) return
  const names = killed.map(({ id, host, seen_at }) => `${id} on ${host}, last seen ${isoTime(seen_at)}`)
  throw new MigrateError(
    `Servers of this database were killed (${names.join('; ')}), and usage of their last requests may be in their ` +
      'data folders only. Start each where it was, stop it with Ctrl-C, and run this again. If such a folder is ' +
      `lost, add --lost-server ${killed[0]!.id}: what was only there is given up.`,
  )
}

/** The first account, which names the installation. */
async function ownerOf(db: AnyDb): Promise<string> {
  const first = await firstAccount(db)
  if (!first) throw new MigrateError('The installation is empty: start the service on the new database instead.')
  return first
}

/** Opens the target database, new or of the same unfinished move. */
async function openTarget(
  { database_url, data_dir = '' }: Destination,
  owner: string,
  tables: Table[],
): Promise<AnyDb> {
  const isNew = database_url === undefined && !existsSync(databaseFile(data_dir))
  if (isNew) await requireEmptyFolder(data_dir)
  const unmigrated = (await openUnmigrated(data_dir, database_url)) as AnyDb
  const { unknown } = await readMigrations(unmigrated)
  if (unknown.includes(unfinishedMove)) {
    const state = await unmigrated.selectFrom(progressTable).selectAll().where('table_name', '=', '').executeTakeFirst()
    if (state?.last_json === JSON.stringify(owner)) return unmigrated
    await unmigrated.destroy()
    throw new MigrateError('The target database has an unfinished move of another installation. Empty it first.')
  }
  await unmigrated.destroy()
  const db = (await openDatabase(data_dir, database_url)) as AnyDb
  try {
    const filled = await firstWithRows(db, tables)
    if (filled)
      throw new MigrateError(
        `The target database holds other data (the table ${filled} has rows). Data moves into an empty database only.`,
      )
    await db.transaction().execute(async (trx) => {
      await trx.insertInto('migrations').values({ name: unfinishedMove, applied_at: Date.now() }).execute()
      await trx.schema
        .createTable(progressTable)
        .addColumn('table_name', 'text', (column) => column.primaryKey())
        .addColumn('last_json', 'text')
        .addColumn('copied', 'bigint', (column) => column.notNull())
        .addColumn('done', 'integer', (column) => column.notNull())
        .execute()
      const about = { table_name: '', last_json: JSON.stringify(owner), copied: 0, done: 0 }
      await trx.insertInto(progressTable).values(about).execute()
    })
    return db
  } catch (error) {
    await db.destroy()
    throw error
  }
}

async function requireEmptyFolder(folder: string): Promise<void> {
  const names = await readdir(folder).catch(() => [])
  if (names.some((name) => !/^server\.lock(-journal)?$/.test(name)))
    throw new MigrateError(`${folder} is not empty. Data moves into a new folder only.`)
}

async function moveFiles(
  source: Installation,
  to: Destination,
  db: Parameters<typeof listArtifacts>[0],
  report: (line: string) => void,
  cleanUp: (() => unknown)[],
): Promise<{ files: number; bytes: number }> {
  if (to.storage_url === undefined && to.data_dir === undefined) return { files: 0, bytes: 0 }
  const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-move-'))
  cleanUp.push(() => rm(scratch, { recursive: true, force: true }))
  const open = async (url: string | undefined) => {
    const store = url === undefined ? undefined : await openObjectStore(url)
    if (store) cleanUp.push(() => store.close())
    return store
  }
  const from: FilesPlace = { dataDir: source.data_dir, store: await open(source.storage_url) }
  const target: FilesPlace = { dataDir: to.data_dir ?? '', store: await open(to.storage_url) }
  if (target.store) await claimStore(target.store, db, scratch)
  const artifacts = await listArtifacts(db)
  let done = 0
  return await copyArtifacts(artifacts, from, target, scratch, ({ key }, bytes) => {
    done++
    report(`${key}: ${(bytes / 1e6).toFixed(1)} MB, verified (${done} of ${artifacts.length})`)
  })
}

/** Takes an empty storage for the installation. Throws for that of another one. */
async function claimStore(store: ObjectStore, db: Db, staging: string): Promise<void> {
  if (!(await store.head(ownerKey)))
    for await (const { key } of store.list(''))
      throw new MigrateError(`The storage ${store.name} holds other data (${key}). Name another prefix.`)
  const owner = { owner: (await installationOf(db))!, formerOwner: await firstAccount(db) }
  try {
    await claimStorage({ store, staging }, { ...owner, live: async () => new Set() })
  } catch (error) {
    throw error instanceof WrongInstallation ? new MigrateError(error.message) : error
  }
}

/** Without its keys, the new folder could not read the secrets of its rows. */
async function copyKeyFiles(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true, mode: 0o700 })
  for (const name of keyFiles)
    if (existsSync(path.join(from, name))) await copyFile(path.join(from, name), path.join(to, name))
}
