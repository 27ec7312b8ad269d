import type { Kysely } from 'kysely'

/**
 * The SHA-256 of the projector that was trained with a model, and that of the whole weights that an adapter needs.
 * Null: that of the hub's base.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  for (const column of ['projector_sha256', 'weights_projector_sha256'])
    await db.schema.alterTable('models').addColumn(column, 'text').execute()
}
