// Kysely's SQLite with the writing in a thread of its own: writes and whole transactions go to the one connection
// there, in turn; reads outside of transactions are done at once by a connection of this thread, which in WAL mode
// waits for no writer.
import type SQLite from 'better-sqlite3'
import {
  type CompiledQuery,
  type DatabaseConnection,
  type Driver,
  type QueryResult,
  SelectQueryNode,
  SqliteAdapter,
  SqliteDialect,
} from 'kysely'
import { openReader, runStatement } from './connection.ts'
import { startWriter, type WriterSettings, type WriterThread } from './thread.ts'

interface Connection extends DatabaseConnection {
  /** The transaction that is open on it: the thread that it began in, and what lets the next one begin. */
  transaction?: { thread: WriterThread; release: () => void }
}

class TwoConnectionsAdapter extends SqliteAdapter {
  override get supportsMultipleConnections() {
    return true
  }
}

export class ThreadedSqliteDialect extends SqliteDialect {
  readonly #settings: WriterSettings

  constructor(settings: WriterSettings) {
    super({ database: () => Promise.reject(new Error('the driver opens the database')) })
    this.#settings = settings
  }

  override createAdapter() {
    return new TwoConnectionsAdapter()
  }

  override createDriver(): Driver {
    return createDriver(this.#settings)
  }
}

function createDriver(settings: WriterSettings): Driver {
  const nextTurn = createTurns()
  let writer: WriterThread | undefined
  let reader: SQLite.Database | undefined

  function living(): WriterThread {
    if (!writer || writer.hasEnded()) writer = startWriter(settings)
    return writer
  }

  /** Undefined where another process keeps readers out: the writer's thread may wait for it. */
  function read(sql: string, parameters: readonly unknown[]): QueryResult<unknown> | undefined {
    try {
      reader ??= openReader(settings.file)
      return runStatement(reader, sql, parameters)
    } catch (error) {
      if ((error as { code?: string }).code?.startsWith('SQLITE_BUSY')) return undefined
      throw error
    }
  }

  async function execute(
    { transaction }: Connection,
    { sql, parameters, query }: CompiledQuery,
  ): Promise<QueryResult<unknown>> {
    if (transaction) return transaction.thread.ask({ kind: 'run', sql, parameters, inside: true })
    const found = SelectQueryNode.is(query) && read(sql, parameters)
    if (found) return found
    const release = await nextTurn()
    try {
      return await living().ask({ kind: 'run', sql, parameters, inside: false })
    } finally {
      release()
    }
  }

  function end(connection: Connection): void {
    connection.transaction?.release()
    connection.transaction = undefined
  }

  return {
    async init() {},

    async acquireConnection() {
      const connection: Connection = {
        executeQuery: <R>(query: CompiledQuery) => execute(connection, query) as Promise<QueryResult<R>>,
        async *streamQuery<R>(query: CompiledQuery) {
          yield (await execute(connection, query)) as QueryResult<R>
        },
      }
      return connection
    },

    async beginTransaction(connection: Connection) {
      const release = await nextTurn()
      try {
        const thread = living()
        // One that reads first and writes later would fail at once where another process wrote in between; this one
        // waits for its turn.
        await thread.ask({ kind: 'run', sql: 'begin immediate', parameters: [], inside: false })
        connection.transaction = { thread, release }
      } catch (error) {
        release()
        throw error
      }
    },

    async commitTransaction(connection: Connection) {
      await connection.transaction!.thread.ask({ kind: 'run', sql: 'commit', parameters: [], inside: true })
      end(connection)
    },

    async rollbackTransaction(connection: Connection) {
      // It fails only with its thread, whose transaction is gone then; the caller is to hear what went wrong before.
      await connection.transaction!.thread.ask({ kind: 'rollback' }).catch(() => {})
      end(connection)
    },

    async releaseConnection() {},

    async destroy() {
      await nextTurn()
      // The last one to close tidies up the write-ahead log: that is the thread's.
      reader?.close()
      await writer?.close()
    },
  }
}

/** Resolves, in the order in which it was asked, with what lets the next one have its turn. */
function createTurns(): () => Promise<() => void> {
  let last = Promise.resolve()
  return async () => {
    const mine = last
    const { promise, resolve } = Promise.withResolvers<void>()
    last = promise
    await mine
    return resolve
  }
}
