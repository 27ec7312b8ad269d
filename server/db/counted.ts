import { type ColumnDefinitionBuilder, type Kysely, PostgresAdapter } from 'kysely'

/** Makes a column the primary key that the database counts up by itself: Postgres by identity, SQLite by its row id. */
export const counted = (db: Kysely<unknown>) => (column: ColumnDefinitionBuilder) =>
  db.getExecutor().adapter instanceof PostgresAdapter ? column.generatedAlwaysAsIdentity().primaryKey() : column.primaryKey().autoIncrement()
