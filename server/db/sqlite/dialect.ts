// Kysely dialect for SQLite with a writer thread. Writes and whole transactions are serialized on the one connection of
// that thread. Reads outside of transactions use a connection of this thread, which in WAL mode waits for no writer.
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
  /** The open transaction: the thread that runs it, and the function that releases the write lock. */
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
  const lock = createLock()
  let writer: WriterThread | undefined
  let reader: SQLite.Database | undefined

  function currentWriter(): WriterThread {
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

  async function execute(
    { transaction }: Connection,
    { sql, parameters, query }: CompiledQuery,
  ): Promise<QueryResult<unknown>> {
    if (transaction) return transaction.thread.send({ kind: 'run', sql, parameters, inside: true })
    const found = SelectQueryNode.is(query) && read(sql, parameters)
    if (found) return found
    const release = await lock()
    try {
      return await currentWriter().send({ kind: 'run', sql, parameters, inside: false })
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
      const release = await lock()
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
    },

    async rollbackTransaction(connection: Connection) {
      // Fails only if the thread has ended, and the transaction with it. The caller should see the earlier error.
      await connection.transaction!.thread.send({ kind: 'rollback' }).catch(() => {})
      end(connection)
    },

    async releaseConnection() {},

    async destroy() {
      await lock()
      // Close the writer last: the last connection to close checkpoints and removes the write-ahead log.
      reader?.close()
      await writer?.close()
    },
  }
}

/** FIFO lock. Resolves with the function that releases it. */
function createLock(): () => Promise<() => void> {
  let last = Promise.resolve()
  return async () => {
    const previous = last
    const { promise, resolve } = Promise.withResolvers<void>()
    last = promise
    await previous
    return resolve
  }
}
