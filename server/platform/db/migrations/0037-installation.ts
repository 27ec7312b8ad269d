import { randomBytes } from 'node:crypto'
import { type Kysely, sql } from 'kysely'

/**
 * The id of the installation: all processes on this database have it, and what they share outside of it has its name.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('installation')
    .addColumn('id', 'text', (c) => c.primaryKey())
    .execute()
  await sql`insert into installation (id) values (${randomBytes(6).toString('hex')})`.execute(db)
}
