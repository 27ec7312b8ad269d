// What the two databases have in common, and how code distinguishes them.
import {
  type CompiledQuery,
  type DatabaseConnection,
  type Kysely,
  PostgresAdapter,
  type QueryResult,
  SelectQueryNode,
} from 'kysely'
import { ApiError } from '../../../contract/errors.ts'

/** Whether SQL of this database is that of Postgres; otherwise it is that of SQLite. */
export const isPostgres = (db: Pick<Kysely<unknown>, 'getExecutor'>): boolean =>
  db.getExecutor().adapter instanceof PostgresAdapter

/** The code of errors while Postgres is away, is starting, or has ended the connection. */
export const databaseAway = 'DATABASE_AWAY'

/** How long a list may take, with its wait for earlier ones. */
export const list_ms = 5000

/** Lists are the reads that return rows in an order: any number of rows. Other reads find rows by a key. */
export const isList = (node: object): node is SelectQueryNode =>
  SelectQueryNode.is(node as SelectQueryNode) && 'orderBy' in node

/** The error of a list that took longer. */
export const listTooSlow = (limit_ms: number) =>
  new ApiError(
    'overloaded',
    `Reading this list took longer than ${limit_ms / 1000} s. ` +
      'Narrow it by time or status, or leave out the search for a name; or try again later.',
  )

/** A connection of a driver. `transaction`: what the open one, if any, needs. */
export interface Connection<T> extends DatabaseConnection {
  transaction?: T | undefined
}

/** A connection whose queries `execute` runs. A stream of rows has one part. */
export function createConnection<T>(
  execute: (connection: Connection<T>, query: CompiledQuery) => Promise<QueryResult<unknown>>,
): Connection<T> {
  const connection: Connection<T> = {
    executeQuery: <R>(query: CompiledQuery) => execute(connection, query) as Promise<QueryResult<R>>,
    async *streamQuery<R>(query: CompiledQuery) {
      yield (await execute(connection, query)) as QueryResult<R>
    },
  }
  return connection
}
