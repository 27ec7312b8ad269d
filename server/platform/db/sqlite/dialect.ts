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
import { openReader, runStatement, syncWal } from './connection.ts'
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
    return createDriver(this.#settings, this.#list_ms)
  }
}

function createDriver(settings: ThreadSettings, listLimit_ms: number): Driver {
  const turns = createTurns()
  /** Several commits share a sync, and nobody's turn lasts as long as one. */
  const synced = groupSyncs(async () => {
    const before = commits
    await syncWal(settings.file)
    durable = Math.max(durable, before)
  })
  /** Commits that changed something, and how many of them are on the disk. */
  let commits = 0
  let durable = 0
  let writer: Thread<WriteRequest> | undefined
  let listReader: ReturnType<typeof startReader> | undefined
  let reader: SQLite.Database | undefined

  function currentWriter(): Thread<WriteRequest> {
    if (!writer || writer.hasEnded()) writer = startWriter(settings)
    return writer
  }

  /** Undefined if another process locks readers out; the writer thread can wait for it. */
  function read(sql: string, parameters: readonly unknown[]): QueryResult<unknown> | undefined {
    try {
      reader ??= openReader(settings.file)
      return runStatement(reader, sql, parameters)
    } catch (error) {
      if ((error as { code?: string }).code?.startsWith('SQLITE_BUSY')) return undefined
      throw error
    }
  }

  /** The same for a list. */
  async function readList(sql: string, parameters: readonly unknown[]): Promise<QueryResult<unknown> | undefined> {
    if (!listReader || listReader.hasEnded()) listReader = startReader(settings)
    try {
      return await listReader.send({ kind: 'read', sql, parameters, deadline: Date.now() + listLimit_ms })
    } catch (error) {
      const { code } = error as { code?: string }
      if (code?.startsWith('SQLITE_BUSY')) return undefined
      if (code !== 'SQLITE_INTERRUPT') throw error
      throw listTooSlow(listLimit_ms)
    }
  }

  async function execute(
    { transaction }: Connection,
    { sql, parameters, query }: CompiledQuery,
  ): Promise<QueryResult<unknown>> {
    if (transaction) return transaction.thread.send({ kind: 'run', sql, parameters, inside: true })
    const rows = isList(query) ? await readList(sql, parameters) : SelectQueryNode.is(query) && read(sql, parameters)
    if (rows) return rows
    const release = await turns.take()
    let result: QueryResult<unknown>
    try {
      result = await currentWriter().send({ kind: 'run', sql, parameters, inside: false })
    } finally {
      release()
    }
    if (SelectQueryNode.is(query)) return result
    // Workers look for work several times a second, mostly in vain: a sync wakes three threads beside those that
    // decode.
    if (!changedNothing(query, result)) commits++
    // What it found there already must not be lost either.
    if (durable < commits) await synced()
    return result
  }

  function end(connection: Connection): void {
    connection.transaction?.release()
    connection.transaction = undefined
  }

  return {
    async init() {},

    async acquireConnection() {
      return createConnection<Transaction>(execute)
    },

    async beginTransaction(connection: Connection) {
      const release = await turns.take()
      try {
        const thread = currentWriter()
        // Immediate: a deferred transaction that reads first fails at once if another process writes in between.
        await thread.send({ kind: 'run', sql: 'begin immediate', parameters: [], inside: false })
        connection.transaction = { thread, release }
      } catch (error) {
        release()
        throw error
      }
    },

    async commitTransaction(connection: Connection) {
      await connection.transaction!.thread.send({ kind: 'run', sql: 'commit', parameters: [], inside: true })
      end(connection)
      commits++
      await synced()
    },

    async rollbackTransaction(connection: Connection) {
      // None is open if its commit was not synced. Otherwise this fails only if the thread has ended, and the
      // transaction with it: the caller should see the earlier error.
      await connection.transaction?.thread.send({ kind: 'rollback' }).catch(() => {})
      end(connection)
    },

    async releaseConnection() {},

    async destroy() {
      await turns.take()
      await listReader?.close()
      // Close the writer last: the last connection to close checkpoints and removes the write-ahead log.
      reader?.close()
      await writer?.close()
    },
  }
}

/** SQLite does not say it of other statements, such as those that change the schema. */
const changedNothing = (query: RootOperationNode, { rows, numAffectedRows = 0n }: QueryResult<unknown>) =>
  (UpdateQueryNode.is(query) || InsertQueryNode.is(query) || DeleteQueryNode.is(query)) &&
  rows.length === 0 &&
  numAffectedRows === 0n
