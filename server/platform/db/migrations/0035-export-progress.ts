// Four bytes lose digits that SQLite keeps: a move between the databases would not give the same rows.
import { type Kysely, sql } from 'kysely'
import { isPostgres } from '../dialect.ts'

export async function up(db: Kysely<unknown>): Promise<void> {
  if (isPostgres(db)) await sql`alter table exports alter column progress type double precision`.execute(db)
}
