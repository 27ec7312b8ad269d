// Kysely dialect for SQLite with a writer thread. Writes and whole transactions are serialized on the one connection of
// that thread. Reads outside of transactions wait for no writer in WAL mode: lists use the connection of a reader
// thread, other reads one of this thread.
import type SQLite from 'better-sqlite3'
import {
  AndNode,
  type CompiledQuery,
  DeleteQueryNode,
  type Driver,
  InsertQueryNode,
  type QueryResult,
  RawNode,
  type RootOperationNode,
  SelectQueryNode,
  SqliteAdapter,
  SqliteDialect,
  SqliteQueryCompiler,
  UpdateQueryNode,
  WhereNode,
} from 'kysely'
import { createConnection, isList, list_ms, listTooSlow, type Connection as SharedConnection } from '../dialect.ts'
import { createTurns, groupSyncs } from '../turns.ts'
import { openReader, runStatement, type StatementResult, syncWal } from './connection.ts'
import { startReader, startWriter, type Thread, type ThreadSettings, type WriteRequest } from './thread.ts'

/** The open transaction: the thread that runs it, and the function that releases the write lock. */
interface Transaction {
  thread: Thread<WriteRequest>
  release: () => void
}
type Connection = SharedConnection<Transaction>

/** Adds the condition to lists that lets the reader thread end them. */
class ListCompiler extends SqliteQueryCompiler {
  override visitSelectQuery(node: SelectQueryNode): void {
    if (!isList(node)) {
      super.visitSelectQuery(node)
      return
    }
    const condition = RawNode.createWithSql('before_deadline()')
    const where = WhereNode.create(node.where ? AndNode.create(condition, node.where.where) : condition)
    super.visitSelectQuery({ ...node, where })
  }
}

class TwoConnectionsAdapter extends SqliteAdapter {
  override get supportsMultipleConnections() {
    return true
  }
}

export class ThreadedSqliteDialect extends SqliteDialect {
  readonly #settings: ThreadSettings
  readonly #list_ms: number

  constructor(settings: ThreadSettings, listLimit_ms = list_ms) {
    super({ database: () => Promise.reject(new Error('the driver opens the database')) })
    this.#settings = settings
    this.#list_ms = listLimit_ms
  }

  override createAdapter() {
    return new TwoConnectionsAdapter()
  }

  override createQueryCompiler() {
    return new ListCompiler()
  }

  override createDriver(): Driver {
    return new ThreadedDriver(this.#settings, this.#list_ms)
  }
}

class ThreadedDriver implements Driver {
  private readonly settings: ThreadSettings
  private readonly listLimit_ms: number
  private readonly turns = createTurns()
  /** Several commits share a sync, and nobody's turn lasts as long as one. */
  private readonly synced: () => Promise<void>
  /** Commits that changed something, and how many of them are on the disk. */
  private commits = 0
  private durable = 0
  private writer: Thread<WriteRequest> | undefined
  private listReader: ReturnType<typeof startReader> | undefined
  private reader: SQLite.Database | undefined

  constructor(settings: ThreadSettings, listLimit_ms: number) {
    this.settings = settings
    this.listLimit_ms = listLimit_ms
    this.synced = groupSyncs(async () => {
      const before = this.commits
      await syncWal(settings.file)
      this.durable = Math.max(this.durable, before)
    })
  }

  async init() {}

  async acquireConnection() {
    return createConnection<Transaction>((connection, query) => this.execute(connection, query))
  }

  async beginTransaction(connection: Connection) {
    const release = await this.turns.take()
    try {
      const thread = this.currentWriter()
      // Immediate: a deferred transaction that reads first fails at once if another process writes in between.
      await thread.send({ kind: 'run', sql: 'begin immediate', parameters: [], inside: false })
      connection.transaction = { thread, release }
    } catch (error) {
      release()
      throw error
    }
  }

  async commitTransaction(connection: Connection) {
    await connection.transaction!.thread.send({ kind: 'run', sql: 'commit', parameters: [], inside: true })
    this.end(connection)
    this.commits++
    await this.synced()
  }

  async rollbackTransaction(connection: Connection) {
    // None is open if its commit was not synced. Otherwise this fails only if the thread has ended, and the
    // transaction with it: the caller should see the earlier error.
    await connection.transaction?.thread.send({ kind: 'rollback' }).catch(() => {})
    this.end(connection)
  }

  async releaseConnection() {}

  async destroy() {
    await this.turns.take()
    await this.listReader?.close()
    // Close the writer last: the last connection to close checkpoints and removes the write-ahead log.
    this.reader?.close()
    await this.writer?.close()
  }

  private currentWriter(): Thread<WriteRequest> {
    if (!this.writer || this.writer.hasEnded()) this.writer = startWriter(this.settings)
    return this.writer
  }

  /** Undefined if another process locks readers out; the writer thread can wait for it. */
  private read(sql: string, parameters: readonly unknown[]): QueryResult<unknown> | undefined {
    try {
      this.reader ??= openReader(this.settings.file)
      return runStatement(this.reader, sql, parameters)
    } catch (error) {
      if ((error as { code?: string }).code?.startsWith('SQLITE_BUSY')) return undefined
      throw error
    }
  }

  /** The same for a list. */
  private async readList(sql: string, parameters: readonly unknown[]): Promise<QueryResult<unknown> | undefined> {
    if (!this.listReader || this.listReader.hasEnded()) this.listReader = startReader(this.settings)
    try {
      return await this.listReader.send({ kind: 'read', sql, parameters, deadline: Date.now() + this.listLimit_ms })
    } catch (error) {
      const { code } = error as { code?: string }
      if (code?.startsWith('SQLITE_BUSY')) return undefined
      if (code !== 'SQLITE_INTERRUPT') throw error
      throw listTooSlow(this.listLimit_ms)
    }
  }

  private async execute(
    { transaction }: Connection,
    { sql, parameters, query }: CompiledQuery,
  ): Promise<QueryResult<unknown>> {
    if (transaction) return transaction.thread.send({ kind: 'run', sql, parameters, inside: true })
    const rows = isList(query)
      ? await this.readList(sql, parameters)
      : SelectQueryNode.is(query) && this.read(sql, parameters)
    if (rows) return rows
    const release = await this.turns.take()
    let result: StatementResult
    try {
      result = await this.currentWriter().send({ kind: 'run', sql, parameters, inside: false })
    } finally {
      release()
    }
    if (result.only_read) return result
    // Workers look for work several times a second, mostly in vain: a sync wakes three threads beside those that
    // decode.
    if (!changedNothing(query, result)) this.commits++
    // What it found there already must not be lost either.
    if (this.durable < this.commits) await this.synced()
    return result
  }

  private end(connection: Connection): void {
    connection.transaction?.release()
    connection.transaction = undefined
  }
}

/** SQLite does not say it of other statements, such as those that change the schema. */
const changedNothing = (query: RootOperationNode, { rows, numAffectedRows = 0n }: QueryResult<unknown>) =>
  (UpdateQueryNode.is(query) || InsertQueryNode.is(query) || DeleteQueryNode.is(query)) &&
  rows.length === 0 &&
  numAffectedRows === 0n
